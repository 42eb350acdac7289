"""inductorgraph: torch's own inductor with our passes inside, for CUDA and for training.

The passes go in by inductor's hook, so that forward and backward are compiled together, with the
strides that inductor agreed on with itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

from dicp import torch_internals
from dicp.backend import Backend
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.compile_fx import wants_gradients
from dicp.dynamo_bridge.layout import cancel_permutes
from dicp.dynamo_bridge.measure import TrainingChoice
from dicp.dynamo_bridge.options import Options

log = logging.getLogger("dicp")


def compile_whole(
    gm: fx.GraphModule, inputs: Sequence[Any], options: Options
) -> Callable[..., Any]:
    """What inductor makes of dynamo's graph."""
    training = wants_gradients(inputs)
    record = report.begin(backend.name, "training" if training else "inference")
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    record.nodes = record.taken = len(calls)
    record.parts = 1
    wanted = patches(inputs, training, options)
    compiled = torch_internals.inductor(gm, inputs, wanted, cancel_permutes)
    report.write()
    if not training:
        graphs = _device(inputs) == "cuda"
        return _own(compiled) if graphs and options.own_results else compiled
    if not options.measure or not options.own_results:
        return compiled

    def decided(text: str) -> None:
        record.decision = text
        report.write()
        log.info("%s: graph %d stays %s", backend.label, record.number, text)

    return TrainingChoice(compiled, gm.forward, decided)


def patches(inputs: Sequence[Any], training: bool, options: Options) -> dict[str, Any]:
    """Inductor's settings for a graph: CUDA graphs for inference, for training where asked for.

    Layouts are inductor's own choice: NHWC by force was slower on an H200 (docs/dicp.md).
    """
    graphs = not training or not options.own_results
    return {"triton.cudagraphs": graphs} if _device(inputs) == "cuda" else {}


def _own(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """With results of their own: those of a CUDA graph are written over by its next run."""

    def run(*args: Any) -> list[Any]:
        return [x.clone() if isinstance(x, Tensor) else x for x in compiled(*args)]

    return run


def _device(inputs: Sequence[Any]) -> str:
    kinds = {x.device.type for x in inputs if isinstance(x, Tensor)}
    return "cuda" if "cuda" in kinds else "cpu"


backend = Backend(
    "inductorgraph",
    torch_internals.torch_version,
    whole=compile_whole,
    devices=("cpu", "cuda"),
    dynamic="native",
    training=True,
)
