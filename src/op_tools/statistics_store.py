"""The statistics of calls: one JSON line for each call, and one for its gradients."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from op_tools import results, statistics
from op_tools.call import Call
from op_tools.snapshot import Unchanged


class _Names(dict[torch.dtype, str]):
    def __missing__(self, dtype: torch.dtype) -> str:
        self[dtype] = str(dtype).removeprefix("torch.")
        return self[dtype]


_DTYPES = _Names()


class StatisticsStore:
    """Writes lines; a tensor whose memory is as it was is not measured again."""

    def __init__(self, hash_only: bool, known: Unchanged[str]) -> None:
        folder = results.folder("op_statistics_result")
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        stem = f"op_statistics_info_pid{results.owner(folder)}_{stamp}"
        self.place, number = folder / f"{stem}.jsonl", 1
        while self.place.exists():
            number += 1
            self.place = folder / f"{stem}-{number}.jsonl"
        self._file = self.place.open("xb", buffering=0)
        self.bytes = 0
        self.files = 1
        self._hash_only = hash_only
        self.known = known
        self._lines: list[str] = []
        self._limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def texts(self, given: list[Tensor]) -> str:
        """The statistics of tensors, with commas between."""
        return ",".join([self.text(tensor) for tensor in given])

    def call(self, head: str, given: str, result: list[Tensor], mutated: dict[int, Tensor]) -> None:
        """The line of a call: its arguments were measured before it, which may write them."""
        line = f'{head},"inputs":[{given}],"outputs":[{self.texts(result)}]'
        if mutated:
            written = ",".join(f'"{at}":{self.text(tensor)}' for at, tensor in mutated.items())
            line += f',"mutated":{{{written}}}'
        self._add(line + "}\n")

    def gradients(self, head: str, inputs: list[Any], outputs: list[Any]) -> None:
        """The line of a call's gradients."""
        texts = [",".join(text or "null" for text in side) for side in (inputs, outputs)]
        self._add(f'{head},"grad_inputs":[{texts[0]}],"grad_outputs":[{texts[1]}]}}\n')

    def text(self, tensor: Tensor) -> str:
        """A tensor's statistics in JSON."""
        known = self.known.get(tensor) if tensor.layout == torch.strided else None
        if known is None:
            known = self._measured(tensor)
        shape = ",".join(map(str, tensor.shape)) if not tensor.is_nested else ""
        return f'{{"dtype":"{_DTYPES[tensor.dtype]}","shape":[{shape}],{known}}}'

    def _measured(self, tensor: Tensor) -> str:
        try:
            host, times = statistics.hosted(tensor)
        except ValueError as error:
            return f'"skipped":{json.dumps(str(error))}'
        found = statistics.measured(host, times, self._hash_only)
        text = f'"hash":"{found.hash:016x}"'
        if not self._hash_only:
            numbers = zip(("min", "max", "mean", "norm"), found[1:5], strict=True)
            shown = ",".join([f'"{name}":{_number(value)}' for name, value in numbers])
            text = f'{shown},"nonfinite":{found.nonfinite},{text}'
        self.known.put(tensor, text, host)
        return text

    def _add(self, line: str) -> None:
        with self._lock:
            self._lines.append(line)
            if len(self._lines) >= self._limit or self._file.closed:
                self._flush()

    def _flush(self) -> None:
        if os.getpid() != self._pid:
            return
        data = "".join(self._lines).encode()
        self._lines.clear()
        if self._file.closed:  # a backward pass after the end
            self._file = self.place.open("ab", buffering=0)
        self._file.write(data)
        self.bytes += len(data)
        results.budget.spend(len(data))

    def close(self) -> None:
        """Writes what waits."""
        with self._lock:
            self._flush()
            self._file.close()


def head(call: Call) -> str:
    """The start of a line: which call it is."""
    site = call.site
    where = _place(site.file, site.line) if site is not None else '""'
    return (
        f'{{"id":{call.id},"op":"{call.name}","direction":"{call.direction}","step":{call.step},'
        f'"module":{_quoted(call.module)},"site":{where}'
    )


@lru_cache(10_000)
def _place(file: str, line: int) -> str:
    return json.dumps(f"{os.path.basename(file)}:{line}")


@lru_cache(10_000)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _number(value: float | None) -> str:
    return repr(value) if value is not None and math.isfinite(value) else "null"
