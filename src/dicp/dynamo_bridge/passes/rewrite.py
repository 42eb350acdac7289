# SPDX-License-Identifier: Apache-2.0
"""The pattern library: chains of small ops become the fused ops that a backend supports.

A rule is a pattern and a function from the bound values to the fused op's arguments, or None where
it does not apply after all.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from dicp.backend import GraphCompiler
from dicp.dynamo_bridge.passes import infer
from dicp.dynamo_bridge.passes.match import Bound, Call, Either, Free, call, match

aten, dicp = torch.ops.aten, torch.ops.dicp
CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
END = 2**63 - 1


@dataclass(frozen=True)
class Rule:
    """One rewrite; `fused` is the name of the resulting op."""

    fused: str
    pattern: Call
    arguments: Callable[[fx.Node, Bound], tuple[Any, ...] | None]


def rewrite(gm: fx.GraphModule, backend: GraphCompiler) -> fx.GraphModule:
    """Apply every rule whose fused op the backend supports, in the order of the library."""
    for rule in LIBRARY:
        if backend.wants(rule.fused):
            apply(gm, rule)
    if backend.wants("linear"):
        _absorb_reshapes(gm)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def activate(gm: fx.GraphModule, backend: GraphCompiler) -> fx.GraphModule:
    """Fuse activations into the preceding linears and convolutions; runs after `merge`."""
    for name, rule in ACTIVATIONS:
        if backend.wants(rule.fused) and name in backend.activations:
            apply(gm, rule)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def apply(gm: fx.GraphModule, rule: Rule) -> int:
    """Rewrite every match of a rule; return their number."""
    count = 0
    for target in rule.pattern.targets:
        for node in gm.graph.find_nodes(op="call_function", target=target):
            bound = match(rule.pattern, node)
            args = None if bound is None else rule.arguments(node, bound)
            if args is not None:
                infer.replace(node, infer.insert(node, getattr(dicp, rule.fused).default, args))
                count += 1
    return count


def _shape(value: Any) -> tuple[Any, ...]:
    return tuple(value.meta["val"].shape) if isinstance(value, fx.Node) else ()


def _rank(count: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, fx.Node) and len(_shape(value)) == count


def _number(value: Any) -> bool:
    return isinstance(value, float | int)


# linear


X, W, B = Free("x"), Free("w", _rank(2)), Free("b", _rank(1))
TURNED = call(aten.permute.default, W, [1, 0])


def _absorb_reshapes(gm: fx.GraphModule) -> None:
    """Replace reshape(linear(reshape(x))) by linear(x) where only leading dimensions
    were joined.
    """
    for node in gm.graph.find_nodes(op="call_function", target=aten.reshape.default):
        inner = node.args[0]
        if inner.target is not dicp.linear.default or len(inner.users) > 1:
            continue
        flat = inner.args[0]
        if flat.target is not aten.reshape.default:
            continue
        source = flat.args[0]
        before, after = _shape(source), _shape(node)
        kept = len(before) == len(after) and _same(before[:-1], after[:-1])
        if kept and _same(before[-1:], _shape(flat)[-1:]) and _same(after[-1:], _shape(inner)[-1:]):
            args = (source, *inner.args[1:])
            infer.replace(node, infer.insert(node, dicp.linear.default, args, like=inner))


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Compare without guards: symbolic sizes are equal when they are equal expressions."""
    return len(a) == len(b) and all(str(x) == str(y) for x, y in zip(a, b, strict=True))


# rms_norm


def _rms_norm(node: fx.Node, bound: Bound) -> tuple[Any, ...] | None:
    x, w = bound["x"], bound["w"]
    last = bound["dims"] in ([-1], [len(_shape(x)) - 1])
    fits = last and isinstance(w, fx.Node) and _same(_shape(w), _shape(x)[-1:])
    return (x, w, float(bound["eps"])) if fits else None


def _cast(pattern: Any) -> Either:
    """Return a pattern with or without a cast around it."""
    return Either((Call(CASTS, (pattern,)), Call(CASTS, (pattern, Free("_type"))), pattern))


def _normalised(x: Any) -> Call:
    square = Either((call(aten.pow.Tensor_Scalar, x, 2), call(aten.mul.Tensor, x, x)))
    mean = call(aten.mean.dim, square, Free("dims"), True)
    added = Call((aten.add.Tensor, aten.add.Scalar), (mean, Free("eps", _number)))
    root = call(aten.rsqrt.default, added)
    return call(aten.mul.Tensor, x, root)


def _wide_rms_norm(node: fx.Node, bound: Bound) -> tuple[Any, ...] | None:
    """Match only float32 inside and the input's own type outside, as the fused op is defined."""
    x = bound["wide"].args[0]
    half = (torch.float16, torch.bfloat16)
    if x.meta["val"].dtype not in half or bound["wide"].meta["val"].dtype != torch.float32:
        return None
    if node.meta["val"].dtype != x.meta["val"].dtype:
        return None
    return _rms_norm(node, bound | {"x": x})


def _is_cast(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.target in CASTS


# rope


def _half(value: Any) -> tuple[Any, int] | None:
    """Match a half of a tensor's last dimension: return the tensor, and which half."""
    args: tuple[Any, ...] = value.args if isinstance(value, fx.Node) else ()
    if not args:
        return None
    if value.target is aten.slice.Tensor and len(args) <= 4:
        x, dim, start, end = (*args, None, None, None)[:4]
        size, last = _shape(x)[-1], len(_shape(x)) - 1
        if dim not in (last, -1) or not isinstance(size, int) or size % 2:
            return None
        end = min(end, size) if isinstance(end, int) else size
        which = {(0, size // 2): 0, (size // 2, size): 1}.get((start or 0, end))
        return None if which is None else (x, which)
    if value.target is operator.getitem and args[0].target is aten.split_with_sizes.default:
        x, sizes, dim = (*args[0].args, 0)[:3]
        halves = len(sizes) == 2 and sizes[0] == sizes[1]
        return (x, args[1]) if halves and dim in (len(_shape(x)) - 1, -1) else None
    return None


def _rope(node: fx.Node, bound: Bound) -> tuple[Any, ...] | None:
    x = bound["x"]
    if _half(bound["first"]) != (x, 0) or _half(bound["second"]) != (x, 1):
        return None
    if not _same(_shape(node), _shape(x)):
        return None
    return x, bound["cos"], bound["sin"]


def _rope_pattern(last: int) -> Call:
    turned = call(aten.cat.default, [call(aten.neg.default, Free("second")), Free("first")], last)
    return call(
        aten.add.Tensor,
        call(aten.mul.Tensor, X, Free("cos")),
        call(aten.mul.Tensor, turned, Free("sin")),
    )


# swiglu, conv


def _swiglu(node: fx.Node, bound: Bound) -> tuple[Any, ...] | None:
    gate, up = bound["gate"], bound["up"]
    both = isinstance(gate, fx.Node) and isinstance(up, fx.Node)
    if not both or gate.meta["val"].dtype != up.meta["val"].dtype:
        return None
    return (gate, up) if _same_rank(gate, up) and _same(_shape(gate), _shape(up)) else None


def _same_rank(a: fx.Node, b: fx.Node) -> bool:
    return isinstance(b.meta["val"], Tensor) and len(_shape(a)) == len(_shape(b))


def _conv(node: fx.Node, bound: Bound) -> tuple[Any, ...] | None:
    if bound["transposed"]:
        return None
    return tuple(bound[name] for name in ("x", "w", "b", "stride", "padding", "dilation", "groups"))


CONVOLUTION = call(
    aten.convolution.default, X, Free("w"), Free("b"), Free("stride"), Free("padding"),
    Free("dilation"), Free("transposed"), Free("output_padding"), Free("groups"),
)  # fmt: skip
WIDE = Free("wide", _is_cast)

LIBRARY = (
    Rule("linear", call(aten.mm.default, X, TURNED), lambda n, m: (m["x"], m["w"], None)),
    Rule("linear", call(aten.addmm.default, B, X, TURNED), lambda n, m: (m["x"], m["w"], m["b"])),
    Rule("rms_norm", call(aten.mul.Tensor, _normalised(X), Free("w")), _rms_norm),
    Rule(
        "rms_norm",
        call(aten.mul.Tensor, _cast(_normalised(WIDE)), Free("w")),
        _wide_rms_norm,
    ),
    *(Rule("rope", _rope_pattern(last), _rope) for last in (-1, 3, 2)),
    Rule(
        "swiglu",
        call(aten.mul.Tensor, call(aten.silu.default, Free("gate")), Free("up")),
        _swiglu,
    ),
    Rule("conv", CONVOLUTION, _conv),
)


def _activated(name: str) -> Callable[[fx.Node, Bound], tuple[Any, ...]]:
    def arguments(node: fx.Node, bound: Bound) -> tuple[Any, ...]:
        return (*(value for key, value in sorted(bound.items())), name)

    return arguments


def _free(count: int) -> tuple[Free, ...]:
    return tuple(Free(f"argument{i}") for i in range(count))


ELEMENTWISE: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("relu", aten.relu.default, {}),
    ("gelu", aten.gelu.default, {}),
    ("gelu_tanh", aten.gelu.default, {"approximate": "tanh"}),
    ("silu", aten.silu.default, {}),
    ("sigmoid", aten.sigmoid.default, {}),
    ("tanh", aten.tanh.default, {}),
)
ACTIVATIONS = tuple(
    (
        name,
        Rule(
            fused,
            call(target, call(getattr(dicp, fused).default, *_free(count)), **kwargs),
            _activated(name),
        ),
    )
    for fused, count in (("linear", 3), ("conv", 7))
    for name, target, kwargs in ELEMENTWISE
)
