"""inductorgraph: torch's own inductor with our passes inside, for CUDA and for training.

The passes go in by inductor's hook, so that forward and backward are compiled together, with the
strides that inductor agreed on with itself.
"""

from __future__ import annotations

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


def compile_whole(
    gm: fx.GraphModule, inputs: Sequence[Any], options: Options
) -> Callable[..., Any]:
    """What inductor makes of dynamo's graph."""
    training = wants_gradients(inputs)
    record = report.begin(backend.name, "training" if training else "inference")
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    record.nodes = record.taken = len(calls)
    record.parts = 1
    compiled = torch_internals.inductor(gm, inputs, patches(inputs, training), cancel_permutes)
    report.write()
    if _device(inputs) == "cuda":
        return compiled if training else _own(compiled)
    if not training or not options.measure:
        return compiled

    def decided(text: str) -> None:
        record.decision = text
        report.write()

    return TrainingChoice(compiled, gm.forward, decided)


def patches(inputs: Sequence[Any], training: bool) -> dict[str, Any]:
    """Inductor's settings for a graph: CUDA graphs for inference.

    Layouts are inductor's own choice: NHWC by force was slower on an H200 (docs/dicp.md).
    """
    return {"triton.cudagraphs": not training} if _device(inputs) == "cuda" else {}


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
