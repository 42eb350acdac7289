"""`torch.compile(model, backend="dicp")`: the backend for the device and the kind of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx

from deeplink import settings
from deeplink.errors import DeeplinkError
from dicp.backend import Backend, find
from dicp.dynamo_bridge.compile_fx import compile_fx, say_once, wants_gradients


def dicp(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Takes the first of DICP_PREFERENCE that is installed and serves; says which and why, once."""
    chosen, why = choose(_devices(example_inputs), wants_gradients(example_inputs))
    if chosen is None:
        say_once(f"dicp: eager; {why}")
        return gm.forward
    say_once(f"dicp: {chosen.label}; {why}")
    return compile_fx(gm, example_inputs, chosen, options=options, mode=mode)


def choose(devices: set[str], training: bool) -> tuple[Backend | None, str]:
    """The backend for tensors on these devices, and why this one and none before it."""
    work = f"{'training' if training else 'inference'} on {'/'.join(sorted(devices)) or 'nothing'}"
    passed = []
    for name in settings.DICP_PREFERENCE.get():
        try:
            backend = find(name)
            backend.version()
        except (DeeplinkError, ImportError) as error:
            passed.append(f"{name} is not installed ({str(error).splitlines()[0].rstrip('.')})")
            continue
        if training and not backend.training:
            passed.append(f"{name} compiles inference only")
        elif not devices <= set(backend.devices):
            passed.append(f"{name} runs on {'/'.join(backend.devices)}")
        else:
            return backend, "; ".join([f"the first that does {work}", *passed])
    return None, "; ".join([f"none does {work}", *passed])


def _devices(inputs: Sequence[Any]) -> set[str]:
    return {x.device.type for x in inputs if isinstance(x, Tensor)}
