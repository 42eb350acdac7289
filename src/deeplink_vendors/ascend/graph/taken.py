# SPDX-License-Identifier: Apache-2.0
"""Which nodes ascendgraph takes: those whose operators pass the check of GE's prototypes."""

from __future__ import annotations

from torch import fx

from deeplink_vendors.ascend.graph.builder import Builder
from deeplink_vendors.ascend.graph.conversions import conversions


def supports(node: fx.Node) -> str | None:
    """Why a node stays eager; None when what would be emitted for it alone is right."""
    b = Builder()
    return conversions.why_not(b, node, b.graph)
