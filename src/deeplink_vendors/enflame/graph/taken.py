# SPDX-License-Identifier: Apache-2.0
"""The nodes that topsgraph supports: those that its conversions can emit."""

from __future__ import annotations

from torch import fx

from deeplink_vendors.enflame.graph.conversions import conversions
from deeplink_vendors.enflame.graph.source import Source


def supports(node: fx.Node) -> str | None:
    """Return why a node stays eager; None when it can be emitted."""
    return conversions.why_not(Source(), node)
