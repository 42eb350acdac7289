# SPDX-License-Identifier: Apache-2.0
"""Execution of a model with ONNX Runtime on torch's memory: nothing is copied."""

from __future__ import annotations

from typing import Any

import onnxruntime
import torch
from onnxruntime.capi import onnxruntime_pybind11_state as native
from torch import Tensor
from torch.utils import dlpack

from deeplink.errors import CompileError
from deeplink.i18n import _
from deeplink_vendors.cpu.onnx.types import ELEMENT
from dicp.backend import Loading, Result

QUIET = 3  # errors only; they are raised as exceptions, too


class Session:
    """The executable of one partition. Thread-safe: each call has its own binding."""

    def __init__(self, model: bytes, loading: Loading) -> None:
        self._weights = {name: t.contiguous() for name, t in loading.constants.items()}
        try:
            session = onnxruntime.InferenceSession(
                model, _options(loading.threads, self._weights), ["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's own types differ by version
            raise CompileError(
                _("ONNX Runtime refuses {name}: {error}.").format(name=loading.name, error=error),
                _(
                    'pass options={"verify": True} to torch.compile to find the operator, '
                    "and report it."
                ),
            ) from error
        self._native = session._sess
        self._inputs = loading.inputs
        self._results = [_ResultBuffer(f"result{i}", r) for i, r in enumerate(loading.results)]
        self._device = native.OrtDevice(
            native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 0
        )

    def __call__(self, args: list[Any]) -> list[Any]:
        # hot path
        binding, device = native.SessionIOBinding(self._native), self._device
        given = [_dense(arg) for arg in args]
        for name, tensor in zip(self._inputs, given, strict=True):
            kind = ELEMENT[tensor.dtype]
            binding.bind_input(name, device, kind, tensor.shape, tensor.data_ptr())
        rooms = [room.bind(binding, device) for room in self._results]
        self._native.run_with_iobinding(binding, None)
        if None not in rooms:
            return rooms
        made = binding.get_outputs()
        return [
            room.take(value) if tensor is None else tensor
            for room, tensor, value in zip(self._results, rooms, made, strict=True)
        ]


class _ResultBuffer:
    """The destination of a result: new memory of torch when its size is known."""

    def __init__(self, name: str, result: Result) -> None:
        self._name, self._dtype = name, result.dtype
        self._known = result.dtype is not None and None not in result.shape
        self._shape = [size or 0 for size in result.shape]
        self._kind = ELEMENT[result.dtype or torch.int64]

    def bind(self, binding: Any, device: Any) -> Tensor | None:
        if not self._known:
            binding.bind_output(self._name, device)
            return None
        tensor = torch.empty(self._shape, dtype=self._dtype)
        binding.bind_output(self._name, device, self._kind, self._shape, tensor.data_ptr())
        return tensor

    def take(self, value: Any) -> Any:
        """Return a tensor that owns the runtime's memory; an integer as such."""
        if self._dtype is None:
            return int(value.numpy())
        tensor = dlpack.from_dlpack(value.to_dlpack())
        return tensor.view(torch.bool) if self._dtype == torch.bool else tensor


def _dense(argument: Any) -> Tensor:
    if isinstance(argument, Tensor):
        return argument.contiguous()
    return torch.tensor(argument, dtype=torch.int64)


def _options(threads: int, weights: dict[str, Tensor]) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = QUIET
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    values = [_value(tensor) for tensor in weights.values()]
    options.add_external_initializers(list(weights), values)
    return options


def _value(tensor: Tensor) -> Any:
    plain = tensor.detach()
    if plain.dtype == torch.bool:
        return onnxruntime.OrtValue.ortvalue_from_numpy(plain.numpy())
    made = native.OrtValue.from_dlpack(plain.__dlpack__(), False)
    return onnxruntime.OrtValue(made)
