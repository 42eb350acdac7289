"""The statistics of calls: one JSON line for each call, and one for its gradients.

The native recorder measures tensors where it is there; else, and where it cannot, the values are
copied to the host and measured at once.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from op_tools import (
    diagnostics,
    gradients,
    kernels,
    late,
    names,
    outsiders,
    recording,
    reducing,
    results,
    statistics,
)
from op_tools.background import Background
from op_tools.call import Call
from op_tools.statistics_text import start_of, written


class StatisticsStore:
    """Writes lines."""

    def __init__(self, hash_only: bool, sampled: bool = True, everything: bool = False) -> None:
        folder = results.folder("op_statistics_result")
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        stem = f"op_statistics_info_pid{results.owner(folder)}_{stamp}{results.rank()}"
        self.place, number = folder / f"{stem}.jsonl", 1
        while self.place.exists():
            number += 1
            self.place = folder / f"{stem}-{number}.jsonl"
        self._file = self.place.open("xb", buffering=0)
        self.bytes = 0
        self.files = 1
        self._hash_only, self._sampled = hash_only, sampled
        self._lines: list[str] = []
        self._limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._background: Background | None = None
        self._working = False
        self.recorder = self._native()
        if everything and self.recorder is not None:
            if outsiders.begin(self._disturbed):
                self.recorder.trust_torch(outsiders.groups)
            else:
                self._disturbed()
        gradients.beforehand.append(self.settle)

    def _native(self) -> Any:
        """The native recorder; None: there is no native part."""
        helper = kernels.helper()
        if helper is None:
            return None
        store = weakref.proxy(self)  # it is ours: no cycle
        return helper.Recorder(
            self._hash_only,
            self._sampled,
            self._limit,
            lambda tensor: store.described(tensor),
            recording.window,
            reducing.starter,
            reducing.launcher,
            lambda: store.flush_soon(),
            lambda func, text: diagnostics.add(
                "OpCapture", names.name_of(func) if func else "statistics", RuntimeError(text)
            ),
        )

    def _disturbed(self) -> None:
        """Any memory may be written unseen from now on, between two calls."""
        self._sampled = True
        self.recorder.trust_nobody()

    def texts(self, tensors: list[Tensor]) -> list[str]:
        """Tensors' statistics in JSON; from now on they may be written."""
        if self.recorder is None:
            return list(map(self.described, tensors))
        made = list(map(self.recorder.text, tensors))
        if self._sampled:
            self.recorder.settle()
        else:  # the recorder launches before the writes that it sees, and it does not see this call
            kernels.forget_all()
        return made

    def described(self, tensor: Tensor) -> str:
        """A tensor's statistics in JSON, measured on the host."""
        shape = torch.Size() if tensor.is_nested else tensor.shape
        return f"{start_of(tensor.dtype, shape)}{self._measured(tensor)}}}"

    def _measured(self, tensor: Tensor) -> str:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            return f'"skipped":"no statistics of a tensor of layout {tensor.layout}"'
        if tensor.device.type != "cpu" and late.captures(tensor.device.type)():
            return '"skipped":"a graph is being captured"'
        return written(statistics.of(tensor, self._hash_only), self._hash_only)

    def settle(self) -> None:
        """Any memory may be written from now on."""
        if self.recorder is not None and os.getpid() == self._pid:  # else it is the parent's
            self.recorder.settle()

    def call(self, head: str, given: str, result: list[Tensor], mutated: dict[int, Tensor]) -> None:
        """The line of a call: its arguments were measured before it, which may write them."""
        line = f'{head},"inputs":[{given}],"outputs":[{",".join(self.texts(result))}]'
        if mutated:
            texts = self.texts(list(mutated.values()))
            after = ",".join(f'"{at}":{text}' for at, text in zip(mutated, texts, strict=True))
            line += f',"mutated":{{{after}}}'
        self.add(line + "}\n")

    def gradients(self, head: str, inputs: list[Any], outputs: list[Any]) -> None:
        """The line of a call's gradients."""
        into = ",".join([text or "null" for text in inputs])
        out = ",".join([text or "null" for text in outputs])
        self.add(f'{head},"grad_inputs":[{into}],"grad_outputs":[{out}]}}\n')

    def forget(self, tensor: Tensor) -> None:
        """A tensor was written."""
        if self.recorder is not None:
            self.recorder.forget(tensor)

    def add(self, line: str) -> None:
        """A line that is to be written."""
        full = False
        if self.recorder is not None:
            self.recorder.add(line)  # it flushes
        else:
            with self._lock:
                self._lines.append(line)
                full = len(self._lines) >= self._limit
        if full or self._file.closed:  # a backward pass after the end
            self.flush()

    def flush_soon(self) -> None:
        """Writes what is there; in the background what a device has found, which is more work."""
        if self._file.closed or not self.recorder.defers:  # a backward pass after the end
            self.flush()
        elif os.getpid() == self._pid and not self._working:
            self._working = True
            if self._background is None:
                self._background = Background()
            self._background.put(self._work)

    def _work(self) -> None:
        """In the background, until the end: what the native part has put into words is written."""
        try:
            while done := self.recorder.work(self._file.fileno()):
                with self._lock:
                    self._wrote(done) if isinstance(done, int) else self._write(done)
        except Exception as error:  # a full disk: a tool must not kill the program that it watches
            diagnostics.add("OpCapture", "statistics", error)
        finally:
            self.recorder.stop_work()
            self._working = False

    def flush(self) -> None:
        """Writes what waits."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self.recorder is not None:
                data = self.recorder.take()
            else:
                data = "".join(self._lines).encode()
                self._lines.clear()
            self._write(data)

    def _write(self, data: bytes) -> None:
        reopened = self._file.closed  # a backward pass after the end
        if reopened:
            self._file = self.place.open("ab", buffering=0)
        self._file.write(data)
        if reopened:
            self._file.close()
        self._wrote(len(data))

    def _wrote(self, size: int) -> None:
        self.bytes += size
        results.budget.spend(size)

    def close(self) -> None:
        """Writes what waits."""
        if self._background is not None and os.getpid() == self._pid:
            self.recorder.end_work()
            self._background.close()
        self.flush()
        self._file.close()
        outsiders.end(self._disturbed)
        gradients.beforehand.remove(self.settle)
        if self.recorder is not None:
            self.recorder.limit = 1  # what comes later is written at once


def head(call: Call) -> str:
    """The start of a line: which call it is."""
    site = call.site
    place = _place(site.file, site.line) if site is not None else '""'
    what = f'{{"id":{call.id},"op":"{call.name}","direction":"{call.direction}"'
    return f'{what},"step":{call.step},"module":{_quoted(call.module)},"site":{place}'


@lru_cache(10_000)
def _place(file: str, line: int) -> str:
    return json.dumps(f"{os.path.basename(file)}:{line}")


@lru_cache(10_000)
def _quoted(text: str) -> str:
    return json.dumps(text)
