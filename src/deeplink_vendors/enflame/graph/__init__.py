# SPDX-License-Identifier: Apache-2.0
"""topsgraph: torch.compile to C++ for TopsGraph's builder (Enflame), run here by a simulation.

The source is emitted, compiled by g++ against declarations of the builder's interface (so that the
types of every call are checked), and run to record the graph that it builds. An interpreter
executes this graph with torch's meaning of each function. It has not run on a GCU, nor through the
SDK: every name of it contains `sim`.
"""

from __future__ import annotations

import logging

from deeplink_vendors.enflame.graph import (  # noqa: F401  # register their conversions
    elementwise,
    folding,
    products,
    shapes,
)
from deeplink_vendors.enflame.graph.compiler import compile_source, version
from deeplink_vendors.enflame.graph.conversions import conversions, register_conversion
from deeplink_vendors.enflame.graph.interpreter import Simulation
from deeplink_vendors.enflame.graph.source import Source
from deeplink_vendors.enflame.graph.taken import supports
from dicp import Backend, Executable, Loading
from dicp.apart import of_dlinfer

__all__ = ["backend", "register_conversion"]

log = logging.getLogger("dicp")


def load(module: bytes, loading: Loading) -> Executable:
    """Load the simulation of a module."""
    simulation = Simulation(module, loading.constants)
    calls = len(simulation.calls)
    log.info("topsgraph (sim): %s, %d HLIR operators, on the CPU", loading.name, calls)
    return simulation


backend = Backend(
    name="topsgraph",
    version=version,
    conversions=conversions,
    emitter=Source,
    compile=compile_source,
    load=load,
    supports=supports,
    apart=of_dlinfer("moe_gating", "weight_quant_matmul", "dynamic_quant"),
    dynamic="specialize",
    training=True,
    simulated=True,
    through_host=True,  # the simulation computes on the CPU
    options={"measure": False},  # a simulation is never faster
)
