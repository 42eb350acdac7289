"""Which nodes topsgraph takes: those for which its conversion finds calls to write."""

from __future__ import annotations

from typing import Any

from torch import fx

from deeplink_vendors.enflame.graph.conversions import conversions
from deeplink_vendors.enflame.graph.source import NotTaken, Source


def supports(node: fx.Node) -> str | None:
    """Why a node stays eager; None when it can be written."""
    b = Source()
    try:
        given: dict[fx.Node, Any] = {n: _value(b, n) for n in node.all_input_nodes}
        args = fx.map_arg(node.args, given.__getitem__)
        kwargs = fx.map_arg(node.kwargs, given.__getitem__)
        conversion = conversions.get(node.target)
        assert conversion is not None
        conversion(b, node, *args, **kwargs)
    except NotTaken as reason:
        return reason.message
    except Exception as error:  # a reason as good as any: it is counted and reported
        return f"{type(error).__name__}: {error}"
    return None


def _value(b: Source, node: fx.Node) -> Any:
    several = node.meta["val"]
    if not isinstance(several, (list, tuple)):
        return b.input(node)
    return [b.of(value) for value in several]
