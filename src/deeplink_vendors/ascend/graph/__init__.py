# SPDX-License-Identifier: Apache-2.0
"""ascendgraph: torch.compile to GE's GraphDef for Ascend, run here by a simulation on the CPU.

The graph is emitted, checked against GE's operator prototypes, and executed by an interpreter with
torch's meaning of each operator, which verifies its wiring, types and attributes. It has not run on
an NPU, nor through GE: every name of it contains `sim`.
"""

from __future__ import annotations

import logging

from deeplink_vendors.ascend.graph import (  # noqa: F401  # register their conversions
    elementwise,
    gradients,
    pools,
    products,
    reductions,
    shapes,
)
from deeplink_vendors.ascend.graph.builder import Builder
from deeplink_vendors.ascend.graph.conversions import conversions, register_conversion
from deeplink_vendors.ascend.graph.graph import Graph
from deeplink_vendors.ascend.graph.interpreter import Simulation
from deeplink_vendors.ascend.graph.taken import supports
from dicp import Backend, Executable, Loading
from dicp.apart import of_dlinfer

__all__ = ["backend", "register_conversion"]

PROTOTYPES = "torch_npu 2.13.0"  # source of prototypes.csv
log = logging.getLogger("dicp")


def load(blob: bytes, loading: Loading) -> Executable:
    """Load the simulation of a GraphDef."""
    graph = Graph.from_bytes(blob)
    log.info("ascendgraph (sim): %s, %d GE nodes, on the CPU", loading.name, len(graph.nodes))
    return Simulation(graph, loading.constants)


backend = Backend(
    name="ascendgraph",
    version=lambda: f"sim of {PROTOTYPES}",
    conversions=conversions,
    emitter=Builder,
    load=load,
    supports=supports,
    apart=of_dlinfer("moe_gating", "weight_quant_matmul", "dynamic_quant"),
    dynamic="native",
    training=True,
    simulated=True,
    through_host=True,  # the simulation computes on the CPU
    options={"measure": False},  # a simulation is never faster
)
