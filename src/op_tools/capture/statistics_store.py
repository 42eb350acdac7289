# SPDX-License-Identifier: Apache-2.0
"""Writes the statistics of calls: one JSON line for each call, and one for its gradients.

Each tensor is read once, at the call. An input that a recorded call has produced is not read
again: its line refers to that call (`"same_as"`, `"view_of"`), and so does a result that is a view
of an input. With `inputs="all"` every line has its own statistics.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction

from deeplink import settings
from deeplink.i18n import _
from op_tools.core import graph_capture, output_paths, tool_errors
from op_tools.core.call import Call, tensor_list
from op_tools.core.gradients import Gradients
from op_tools.core.native_library import NativeSink, call_headers
from op_tools.core.worker import Background
from op_tools.tensors import statistics
from op_tools.tensors.mutation import unreturned
from op_tools.tensors.snapshot import dtype_name
from op_tools.tensors.statistics_sink import statistics_sink


class StatisticsStore:
    """The file of one run of OpCapture, and the native sink that fills it, if there is one."""

    def __init__(self, hash_only: bool, all_inputs: bool = False, background: bool = True) -> None:
        folder = output_paths.folder("op_statistics_result")
        name = f"op_statistics_info_pid{output_paths.owner(folder)}_{output_paths.stamp()}"
        self.place = output_paths.create(folder / f"{name}{output_paths.rank()}.jsonl")
        self._file = self.place.open("wb", buffering=0)
        self.bytes = 0
        self._hash_only = hash_only
        self._lines: list[str] = []
        self._limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._in_background = background
        self._background: Background | None = None
        self._working = False
        store = weakref.proxy(self)  # the sink belongs to the store: no reference cycle
        self.sink: Any = statistics_sink(
            "OpCapture",
            self._limit,
            lambda tensor: store.described(tensor),
            lambda: store.flush_soon(),
            hash_only=self._hash_only,
            all_inputs=all_inputs,
        )

    def native(self, works_on: Callable[[torch.device], bool]) -> NativeSink | None:
        """The native sink for calls on the devices that `works_on` accepts; None: there is none."""
        if self.sink is None:
            return None
        return NativeSink(self.sink, call_headers(works_on, _site, json.dumps), self)

    def texts(self, tensors: list[Tensor]) -> list[str]:
        """The statistics of the current values of tensors, in JSON."""
        if self.sink is None:
            return list(map(self.described, tensors))
        return list(map(self.sink.text, tensors))

    def described(self, tensor: Tensor) -> str:
        """A tensor's statistics in JSON, measured on the host."""
        value: dict[str, Any] = {"dtype": dtype_name(tensor.dtype), "shape": []}
        if not tensor.is_nested:
            value["shape"] = list(tensor.shape)
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            value["skipped"] = f"no statistics of a tensor of layout {tensor.layout}"
        elif tensor.device.type != "cpu" and graph_capture.captures(tensor.device.type)():
            value["skipped"] = "a graph is being captured"
        else:
            value |= statistics.of(tensor, self._hash_only).as_json(self._hash_only)
        return _json(value)

    # The writer of calls, see `session.Writer`.

    def begin(self, call: Call, tensors: list[Tensor]) -> tuple[str, str]:
        """The header in the line of a call, and the statistics of the arguments."""
        return header_of(call), ",".join(self.texts(tensors))

    def end(
        self, call: Call, header: tuple[str, str], result: Any, changed: dict[int, Tensor]
    ) -> None:
        start, inputs = header
        results = tensor_list(result)
        line = f'{start},"inputs":[{inputs}],"outputs":[{",".join(self.texts(results))}]'
        mutated = unreturned(changed, results)
        if mutated:
            texts = self.texts(list(mutated.values()))
            after = ",".join(f'"{at}":{text}' for at, text in zip(mutated, texts, strict=True))
            line += f',"mutated":{{{after}}}'
        self.add(line + "}\n")

    def gradient(self, gradient: Tensor) -> str:
        with DisableTorchFunction():  # the function mode is on in the backward pass
            return self.texts([gradient])[0]

    def gradients(self, header: tuple[str, str], gradients: Gradients) -> None:
        inputs, outputs = (
            ",".join([text or "null" for text in side])
            for side in (gradients.inputs, gradients.outputs)
        )
        self.add(f'{header[0]},"grad_inputs":[{inputs}],"grad_outputs":[{outputs}]}}\n')

    def add(self, line: str) -> None:
        """Add a line."""
        full = False
        if self.sink is not None:
            self.sink.add(line)  # it flushes by itself
        else:
            with self._lock:
                self._lines.append(line)
                full = len(self._lines) >= self._limit
        if full or self._file.closed:  # a backward pass after the end
            self.flush()

    def flush_soon(self) -> None:
        """Write the pending lines, in the thread of the store if it has one."""
        if self._file.closed or not self._in_background:  # closed: a backward pass after the end
            self.flush()
        elif os.getpid() == self._pid and not self._working:
            self._working = True
            if self._background is None:
                self._background = Background(_("statistics of OpCapture"))
            self._background.put(self._work)

    def _work(self) -> None:
        """Write lines in the thread of the store until no line is pending."""
        try:
            while done := self.sink.work(self._file.fileno()):
                with self._lock:
                    self._wrote(done)
        except Exception as error:  # a full disk: a tool must not end the program
            tool_errors.add("OpCapture", "statistics", error)
        finally:
            self.sink.stop_work()
            self._working = False

    def flush(self) -> None:
        """Write all pending lines."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self.sink is not None:
                data = self.sink.take()
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
        output_paths.budget.spend(size)

    def close(self) -> None:
        """Write all pending lines, and close the file."""
        if self._background is not None and os.getpid() == self._pid:
            self.sink.end_work()
            if not self._background.close():
                return  # the thread may still write
        self.flush()
        self._file.close()
        if self.sink is not None:
            self.sink.limit = 1  # lines of a later backward pass are written at once


def header_of(call: Call) -> str:
    """The start of a line: the header of a call in JSON, without the closing brace."""
    header = {
        "id": call.id,
        "op": call.name,
        "direction": call.direction,
        "step": call.step,
        "module": call.module,
        "site": call.site.short if call.site is not None else "",
    }
    return _json(header).removesuffix("}")


_json = json.JSONEncoder(separators=(",", ":")).encode


@lru_cache(10_000)
def _site(code: CodeType, line: int) -> str:
    """A line of the program, in JSON."""
    return json.dumps(f"{os.path.basename(code.co_filename)}:{line}")
