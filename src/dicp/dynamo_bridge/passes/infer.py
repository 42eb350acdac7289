# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of nodes that a pass inserts, inferred by torch's fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from deeplink.errors import CompileError
from deeplink.i18n import _
from dicp import torch_internals


def insert(
    before: fx.Node,
    target: Callable[..., Any],
    args: Sequence[Any],
    like: fx.Node | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> fx.Node:
    """Insert a call before a node and infer its value; `like` provides the user's line."""
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, tuple(args), dict(kwargs or {}))
    origin = (like or before).meta
    node.meta = {k: origin[k] for k in ("stack_trace", "nn_module_stack") if k in origin}
    node.meta["val"] = value_of(node)
    return node


def value_of(node: fx.Node) -> Any:
    """Return the fake value of a call, from the fake values of its arguments."""
    assert callable(node.target)
    values = [n.meta["val"] for n in node.all_input_nodes]
    args = fx.map_arg(node.args, lambda n: n.meta["val"])
    kwargs = fx.map_arg(node.kwargs, lambda n: n.meta["val"])
    with torch_internals.fake_mode_for(values):
        return node.target(*args, **kwargs)


def replace(old: fx.Node, new: fx.Node) -> None:
    """Replace a node by another, which must have equal shape and type."""
    was, is_now = old.meta["val"], new.meta["val"]
    if isinstance(was, Tensor) and not _same_value(was, is_now):
        raise CompileError(
            _("a rewrite of {target} changed {text} to {text2}.").format(
                target=old.target, text=_text(was), text2=_text(is_now)
            ),
            _('torch.compile(…, options={"rewrite": False}) goes without rewrites.'),
        )
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _same_value(a: Tensor, b: Any) -> bool:
    if not isinstance(b, Tensor) or a.dtype != b.dtype or a.dim() != b.dim():
        return False
    pairs = zip(a.shape, b.shape, strict=True)
    # a symbolic size is not evaluated: that would specialise the graph to an example's value
    return all(not (isinstance(x, int) and isinstance(y, int)) or x == y for x, y in pairs)


def _text(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, Tensor) else str(value)
