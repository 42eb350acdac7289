# SPDX-License-Identifier: Apache-2.0
"""Which nodes topsgraph takes: those for which its conversion finds calls to write."""

from __future__ import annotations

from torch import fx

from deeplink_vendors.enflame.graph.conversions import conversions
from deeplink_vendors.enflame.graph.source import Source


def supports(node: fx.Node) -> str | None:
    """Why a node stays eager; None when it can be written."""
    return conversions.why_not(Source(), node)
