# SPDX-License-Identifier: Apache-2.0
"""The nodes that ascendgraph supports: those whose operators pass the check of GE's prototypes."""

from __future__ import annotations

from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder
from deeplink_vendors.ascend.graph.conversions import conversions


def supports(node: fx.Node) -> str | None:
    """Return why a node stays eager; None when the graph emitted for it alone is valid."""
    b = Builder()
    return conversions.why_not(b, node, b.graph)
