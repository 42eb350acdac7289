"""Which nodes ascendgraph takes: those whose operators pass the check of GE's prototypes."""

from __future__ import annotations

from typing import Any

from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder, NotTaken
from deeplink_vendors.ascend.graph.conversions import conversions


def supports(node: fx.Node) -> str | None:
    """Why a node stays eager; None when what would be emitted for it alone is right."""
    b = Builder()
    try:
        given: dict[fx.Node, Any] = {n: _value(b, n) for n in node.all_input_nodes}
        args = fx.map_arg(node.args, given.__getitem__)
        kwargs = fx.map_arg(node.kwargs, given.__getitem__)
        conversion = conversions.get(node.target)
        assert conversion is not None
        conversion(b, node, *args, **kwargs)
        b.graph()
    except NotTaken as reason:
        return reason.message
    except Exception as error:  # a reason as good as any: it is counted and reported
        return f"{type(error).__name__}: {error}"
    return None


def _value(b: Builder, node: fx.Node) -> Any:
    several = node.meta["val"]
    if not isinstance(several, (list, tuple)):
        return b.input(node)
    return [b.of(value) for value in several]
