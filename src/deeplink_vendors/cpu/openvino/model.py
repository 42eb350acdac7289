# SPDX-License-Identifier: Apache-2.0
"""Execution of a model with OpenVINO on the CPU: weights,
inputs and results of known size are torch's memory.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeplink.errors import CompileError
from deeplink.i18n import _
from deeplink_vendors.cpu.openvino import package
from dicp.backend import Loading, Result

openvino = package.imported()

CONFIGURATION = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


@cache
def core() -> Any:
    """Return the runtime object, one per process, which holds the plug-ins."""
    return openvino.Core()


class Compiled:
    """The executable of one partition. Calls from several threads are serialized."""

    def __init__(self, model: bytes, loading: Loading) -> None:
        self._weights = {name: t.detach().contiguous() for name, t in loading.constants.items()}
        configuration = CONFIGURATION | {"INFERENCE_NUM_THREADS": loading.threads}
        try:
            read = core().read_model(model)
            _fill(read, self._weights)
            self._model = core().compile_model(read, "CPU", configuration)
        except Exception as error:  # the compiler's own types
            raise CompileError(
                _("OpenVINO refuses {name}: {error}.").format(name=loading.name, error=error),
                _("use the backend onnxrtgraph."),
            ) from error
        self._request = self._model.create_infer_request()
        self._lock = threading.Lock()
        ports = enumerate(self._model.inputs)
        places = {name: at for at, port in ports for name in port.get_names()}
        # an unused input is not an input of the compiled model
        self._places = [places.get(name) for name in loading.inputs]
        self._results = loading.results
        self._rooms = [_shape(result) for result in loading.results]

    def __call__(self, args: list[Any]) -> list[Any]:
        # hot path
        given = [_dense(arg) for arg in args]  # alive while the compiler reads them
        with self._lock:
            request = self._request
            for place, tensor in zip(self._places, given, strict=True):
                if place is not None:
                    request.set_input_tensor(place, _shared(tensor))
            made: list[Any] = [None] * len(self._results)
            for number, result in enumerate(self._results):
                shape = self._rooms[number]
                if shape is not None:
                    made[number] = torch.empty(shape, dtype=result.dtype)
                    request.set_output_tensor(number, _shared(made[number]))
            request.infer()
            for number, result in enumerate(self._results):
                if self._rooms[number] is None:
                    made[number] = _copied(request.get_output_tensor(number), result)
        return made


def _fill(model: Any, weights: dict[str, Tensor]) -> None:
    """Replace the inputs that are weights by constants."""
    for parameter in model.get_parameters():
        weight = weights.get(parameter.get_friendly_name())
        if weight is None:
            continue
        constant = openvino.op.Constant(_shared(weight), shared_memory=True)
        parameter.output(0).replace(constant.output(0))
        model.remove_parameter(parameter)
    model.validate_nodes_and_infer_types()


def _shape(result: Result) -> list[int] | None:
    """Return the sizes of a result, if all are known."""
    sizes = [size for size in result.shape if size is not None]
    return sizes if result.dtype is not None and len(sizes) == len(result.shape) else None


def _dense(argument: Any) -> Tensor:
    if isinstance(argument, Tensor):
        return argument.detach().contiguous()
    return torch.tensor(argument, dtype=torch.int64)


def _shared(tensor: Tensor) -> Any:
    """Return the compiler's view of a tensor's memory."""
    if tensor.dtype == torch.bfloat16:
        raw = tensor.view(torch.uint16).numpy()
        return openvino.Tensor(raw, tensor.shape, openvino.Type.bf16)
    return openvino.Tensor(tensor.numpy(), shared_memory=True)


def _copied(made: Any, result: Result) -> Any:
    """Copy a result that the compiler allocated, and overwrites in the next call."""
    if result.dtype is None:
        return int(made.data)
    if result.dtype == torch.bfloat16:
        return torch.from_numpy(made.data.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(made.data))
