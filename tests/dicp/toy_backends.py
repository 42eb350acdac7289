"""Backends that the command of the conformance suite loads as `tests.dicp.toy_backends:NAME`."""

from typing import Any

import torch

from dicp import Executable, Loading
from tests.dicp import toy

right = toy.make("add", "mul", "relu")
without_symbols = toy.make("add", dynamic="specialize")
wrong = toy.make("add", "relu")


@wrong.conversions.register_conversion(torch.ops.aten.relu.default)
def _relu(emitter: Any, node: Any, x: Any) -> Any:
    return emitter.op("gelu", [x], {})


on_device = toy.make("add", devices=("dipu",))
_load = on_device.load


def _on_device(blob: bytes, loading: Loading) -> Executable:
    run = _load(blob, loading)

    def call(args: list[Any]) -> Any:
        assert {x.device.type for x in args} == {"dipu"}
        return run(args)

    return call


on_device.__dict__["load"] = _on_device
