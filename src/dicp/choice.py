# SPDX-License-Identifier: Apache-2.0
"""`torch.compile(model, backend="dicp")`:
select the backend for the device and the kind of work.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from deeplink import settings
from deeplink.errors import CompileError, DeeplinkError, MissingCompilerError
from dicp import torch_internals, workload
from dicp.backend import GraphCompiler, find
from dicp.dynamo_bridge import report
from dicp.dynamo_bridge.compile_fx import compile_fx, measured, wants_gradients


def dicp(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile with the backend that was measured as the fastest for most of the graph's work, else
    with the first of DICP_PREFERENCE, among those that are installed and applicable. Log the choice
    once.

    Where DICP_PREFERENCE is set, its order applies. With `mode="max-autotune"`, inference is
    compiled by all applicable backends, and the first calls decide.
    """
    training = wants_gradients(example_inputs)
    found, why = serving(torch_internals.device_types(example_inputs), training)
    if mode == "max-autotune" and not training and len(found) > 1:
        return _best(gm, example_inputs, found, options or {})
    mode = None if mode == "max-autotune" else mode  # there is no choice
    if not training and not settings.DICP_PREFERENCE.is_set():
        found, why = _fastest_first(found, workload.of(gm), why)
    for backend in found:
        try:
            made = compile_fx(gm, example_inputs, backend, options=options, mode=mode)
        except MissingCompilerError as error:
            report.warn_once(f"dicp: without {backend.label}; {str(error).splitlines()[0]}")
        else:
            report.warn_once(f"dicp: using {backend.label} ({why})")
            return made
        why = "the next available backend"
    report.warn_once(f"dicp: using eager ({why})")
    return gm.forward


def _fastest_first(
    found: Sequence[GraphCompiler], kind: str, why: str
) -> tuple[list[GraphCompiler], str]:
    """Order the backends by their measured speed for a kind of work."""
    fastest = [backend for backend in found if kind in backend.fastest]
    rest = [backend for backend in found if kind not in backend.fastest]
    if fastest:
        why = f"fastest of {len(found)} available backends for {kind}"
    return [*fastest, *rest], why


def _best(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    backends: Sequence[GraphCompiler],
    options: Mapping[str, Any],
) -> Callable[..., Any]:
    """Run the graph of each backend alternately, until one of them has won."""
    report.warn_once(
        f"dicp: {', '.join(b.label for b in backends)}; the first calls show the fastest"
    )
    candidates = {}
    for backend in backends:
        own = fx.GraphModule(gm, copy.deepcopy(gm.graph))  # some backends modify the graph
        try:
            given = {**options, "measure": False}
            candidates[backend.label] = compile_fx(own, example_inputs, backend, options=given)
        except (CompileError, MissingCompilerError) as error:
            report.warn_once(f"dicp: without {backend.label}; {str(error).splitlines()[0]}")
    if not candidates:
        return gm.forward
    return measured(candidates, gm.forward, report.begin("dicp", "inference"))


def serving(devices: set[str], training: bool) -> tuple[list[GraphCompiler], str]:
    """Return the applicable backends for tensors on these devices, and the reason for the first."""
    asked = f"{'training' if training else 'inference'} on {'/'.join(sorted(devices)) or 'nothing'}"
    found: list[GraphCompiler] = []
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
    start = f"the first that does {asked}" if found else f"none does {asked}"
    return found, "; ".join([start, *passed])


def _why_not(name: str, backend: GraphCompiler, devices: set[str], training: bool) -> str:
    if training and not backend.training:
        return f"{name} compiles inference only"
    if not devices <= set(backend.devices):
        return f"{name} runs on {'/'.join(backend.devices)}"
    return ""
