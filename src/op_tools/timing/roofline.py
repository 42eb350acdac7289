# SPDX-License-Identifier: Apache-2.0
"""The work of a call: floating-point operations and bytes, of operators with a formula."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor

from op_tools.core import op_names
from op_tools.core.call import Call, held_bytes, tensors

Formula = Callable[..., float]

# Operators that read the rows that they return, not the whole table.
_GATHER = frozenset(
    "embedding index index_select gather take take_along_dim __getitem__ masked_select".split()
)
_FREE = op_names.VIEWS | op_names.UNINITIALISED


def _matmul(a: Tensor, b: Tensor, *_: Any, out: Tensor, **__: Any) -> float:
    return 2.0 * out.numel() * a.shape[-1]


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> float:
    keys = k.shape[-2]
    return 2.0 * (q.numel() * keys + q.numel() // q.shape[-1] * keys * v.shape[-1])


# By the word of an operator at the api level: the formula, the operands whose gradients are
# products, and the cost of each of these gradients relative to the call.
_FORMULAS: dict[str, tuple[Formula, tuple[int, ...], float]] = {
    "linear": (
        lambda x, weight, *_, **__: 2.0 * x.numel() * (weight.shape[0] if weight.dim() > 1 else 1),
        (0, 1),
        1.0,
    ),
    **dict.fromkeys("matmul mm bmm mv dot __matmul__".split(), (_matmul, (0, 1), 1.0)),
    **dict.fromkeys(
        "addmm addmm_ baddbmm addmv".split(),
        (lambda _, a, b, *__, out, **___: _matmul(a, b, out=out), (1, 2), 1.0),
    ),
    "__rmatmul__": (lambda b, a, *_, out, **__: _matmul(a, b, out=out), (0, 1), 1.0),
    **dict.fromkeys(
        "conv1d conv2d conv3d".split(),
        (lambda x, w, *_, out, **__: 2.0 * out.numel() * prod(w.shape[1:]), (0, 1), 1.0),
    ),
    **dict.fromkeys(
        "conv_transpose1d conv_transpose2d conv_transpose3d".split(),
        (lambda x, w, *_, **__: 2.0 * x.numel() * prod(w.shape[1:]), (0, 1), 1.0),
    ),
    "scaled_dot_product_attention": (_attention, (0, 1, 2), 2.5 / 3),
}


def flops(call: Call, result: Any) -> tuple[float, float]:
    """Floating-point operations of a call and of its backward pass; 0: no formula."""
    if call.level == "aten":
        from torch.utils.flop_counter import flop_registry  # slow to import, and rarely used

        kernel: Any = flop_registry.get(getattr(call.func, "overloadpacket", None))
        return float(kernel(*call.args, **call.kwargs, out_val=result)) if kernel else 0.0, 0.0
    row = _FORMULAS.get(op_names.last(call.name)) if call.level != "module" else None
    out = next(tensors(result), None)
    if row is None or out is None:
        return 0.0, 0.0
    formula, operands, times = row
    args = (*call.args, *call.kwargs.values()) if len(call.args) <= max(operands) else call.args
    count = formula(*args, out=out)
    factors = [a for i, a in enumerate(args) if i in operands and isinstance(a, Tensor)]
    return count, count * times * sum(1 for tensor in factors if tensor.requires_grad)


def bytes_moved(call: Call, result: Any) -> float:
    """Bytes read and written if each operand is transferred once; 0 for a view."""
    word = op_names.last(call.name)
    if word in _FREE or call.level == "module":
        return 0.0
    written = sum(map(held_bytes, tensors(result)))
    if word in _GATHER:
        return float(2 * written)
    return float(written + sum(map(held_bytes, call.inputs)))
