"""A backend for the tests: its emitter writes JSON, and its loader runs that with torch."""

import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dicp import Backend, Conversions, Emitter, Executable, Loading

aten, dicp = torch.ops.aten, torch.ops.dicp

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "mul": torch.mul,
    "mm": torch.mm,
    "addmm": torch.addmm,
    "bmm": torch.bmm,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "sum": torch.sum,
    "reshape": torch.reshape,
    "permute": torch.permute,
    "split": lambda x, sizes, dim=0: list(torch.split(x, sizes, dim)),
    "cat": torch.cat,
    "clone": lambda x, **_: x.clone(),
    "symbolic_mul": operator.mul,
    "symbolic_size": lambda x, dim: x.shape[dim],
    "linear": dicp.linear.default,
    "layer_norm": dicp.layer_norm.default,
    "batch_norm": dicp.batch_norm.default,
    "rms_norm": dicp.rms_norm.default,
    "rope": dicp.rope.default,
    "swiglu": dicp.swiglu.default,
    "sdpa": dicp.sdpa.default,
    "conv": dicp.conv.default,
    "conv_nhwc": dicp.conv_nhwc.default,
}
TARGETS = {
    aten.add.Tensor: "add",
    aten.mul.Tensor: "mul",
    aten.mm.default: "mm",
    aten.addmm.default: "addmm",
    aten.bmm.default: "bmm",
    aten.relu.default: "relu",
    aten.gelu.default: "gelu",
    aten.silu.default: "silu",
    aten.sum.dim_IntList: "sum",
    aten.reshape.default: "reshape",
    aten.permute.default: "permute",
    aten.split_with_sizes.default: "split",
    aten.cat.default: "cat",
    aten.clone.default: "clone",
    aten.sym_size.int: "symbolic_size",
    operator.mul: "symbolic_mul",
}
FUSED = (
    "linear",
    "layer_norm",
    "batch_norm",
    "rms_norm",
    "rope",
    "swiglu",
    "sdpa",
    "conv",
    "conv_nhwc",
)


class Writer:
    """Values are names; `lines` is the program."""

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.lines: list[Any] = []
        self.results: list[str] = []

    def input(self, node: fx.Node) -> str:
        self.inputs.append(node.name)
        return f"%{node.name}"

    def constant(self, name: str, tensor: Tensor) -> str:
        assert tensor.device.type == "meta"  # the data comes when it is loaded
        return f"%{name}"

    def op(self, function: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
        name = f"%{len(self.lines)}"
        self.lines.append([name, function, list(args), kwargs])
        return name

    def output(self, values: Sequence[str], nodes: Sequence[fx.Node]) -> None:
        self.results = list(values)

    def finish(self) -> bytes:
        program = {"inputs": self.inputs, "lines": self.lines, "results": self.results}
        return json.dumps(program).encode()


def make(*names: str, without: Sequence[str] = (), **fields: Any) -> Backend:
    """A toy backend with all ops, or those named; it records what it loads."""
    conversions = Conversions()

    def convert(function: str) -> Any:
        def conversion(emitter: Writer, node: fx.Node, *args: Any, **kwargs: Any) -> Any:
            name = emitter.op(function, args, kwargs)
            many = isinstance(node.meta["val"], (list, tuple))
            return [[name, i] for i in range(len(node.meta["val"]))] if many else name

        return conversion

    table = TARGETS | {getattr(dicp, name).default: name for name in FUSED}
    for target, name in table.items():
        if (not names or name in names) and name not in without:
            conversions.register_conversion(target)(convert(name))

    def load(blob: bytes, loading: Loading) -> Executable:
        loads.append(loading)
        program = json.loads(blob)
        programs.append(program)

        def run(args: list[Any]) -> list[Any]:
            values: dict[str, Any] = {f"%{n}": t for n, t in loading.constants.items()}
            values |= {f"%{n}": t for n, t in zip(program["inputs"], args, strict=True)}

            def value(x: Any) -> Any:
                if isinstance(x, list):
                    picked = len(x) == 2 and isinstance(x[0], str)
                    return value(x[0])[x[1]] if picked else [value(y) for y in x]
                return values[x] if isinstance(x, str) and x.startswith("%") else x

            for name, function, given, kwargs in program["lines"]:
                values[name] = FUNCTIONS[function](*map(value, given), **kwargs)
            return [value(x) for x in program["results"]]

        return run

    loads: list[Loading] = []
    programs: list[Any] = []
    emitter: Callable[[], Emitter] = Writer
    fields = {"name": "toygraph", "dynamic": "native", "version": lambda: "1"} | fields
    backend = Backend(conversions=conversions, emitter=emitter, load=load, **fields)
    backend.loads, backend.programs = loads, programs  # type: ignore[attr-defined]
    return backend
