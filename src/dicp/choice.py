"""`torch.compile(model, backend="dicp")`: the backend for the device and the kind of work."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from deeplink import settings
from deeplink.errors import CompileError, DeeplinkError
from dicp.backend import Backend, find
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.compile_fx import compile_fx, measured, say_once, wants_gradients


def dicp(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Takes the first of DICP_PREFERENCE that is installed and serves; says which and why, once.

    With `mode="max-autotune"`, inference is compiled by all that serve, and the first calls decide.
    """
    training = wants_gradients(example_inputs)
    found, why = serving(_devices(example_inputs), training)
    if not found:
        say_once(f"dicp: eager; {why}")
        return gm.forward
    if mode == "max-autotune" and not training and len(found) > 1:
        return _best(gm, example_inputs, found, options or {})
    mode = None if mode == "max-autotune" else mode  # there is nothing to choose from
    say_once(f"dicp: {found[0].label}; {why}")
    return compile_fx(gm, example_inputs, found[0], options=options, mode=mode)


def _best(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backends: Sequence[Backend],
    options: Mapping[str, Any],
) -> Callable[..., Any]:
    """What each of the backends made of a graph, in turn, until one of them has won."""
    say_once(f"dicp: {', '.join(b.label for b in backends)}; the first calls show the fastest")
    candidates = {}
    for backend in backends:
        own = fx.GraphModule(gm, copy.deepcopy(gm.graph))  # some write into the graph they get
        try:
            given = {**options, "measure": False}
            candidates[backend.label] = compile_fx(own, example_inputs, backend, options=given)
        except CompileError as error:
            say_once(f"dicp: without {backend.label}; {str(error).splitlines()[0]}")
    if not candidates:
        return gm.forward
    return measured(candidates, gm.forward, report.begin("dicp", "inference"))


def serving(devices: set[str], training: bool) -> tuple[list[Backend], str]:
    """The backends for tensors on these devices, and why the first of them and none before it."""
    work = f"{'training' if training else 'inference'} on {'/'.join(sorted(devices)) or 'nothing'}"
    found: list[Backend] = []
    passed = []
    for name in settings.DICP_PREFERENCE.get():
        try:
            backend = find(name)
            backend.version()
        except (DeeplinkError, ImportError) as error:
            why = f"{name} is not installed ({str(error).splitlines()[0].rstrip('.')})"
        else:
            why = _why_not(name, backend, devices, training)
            if not why:
                found.append(backend)
        if not found:
            passed.append(why)
    start = f"the first that does {work}" if found else f"none does {work}"
    return found, "; ".join([start, *passed])


def _why_not(name: str, backend: Backend, devices: set[str], training: bool) -> str:
    if training and not backend.training:
        return f"{name} compiles inference only"
    if not devices <= set(backend.devices):
        return f"{name} runs on {'/'.join(backend.devices)}"
    return ""


def _devices(inputs: Sequence[Any]) -> set[str]:
    return {x.device.type for x in inputs if isinstance(x, Tensor)}
