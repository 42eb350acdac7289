# SPDX-License-Identifier: Apache-2.0
"""All uses of torch's private interfaces, in one place: they differ between releases."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.exc import exceptions_allowed_to_be_fallback as UNTRACEABLE
from torch._dynamo.utils import preserve_rng_state
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from dicp.torch_internals.calls import (
    compiled_call,
    saves_by_hooks,
    straighten,
)
from dicp.torch_internals.graphs import (
    aot,
    at_hints,
    decompositions,
    device_types,
    fake_mode_for,
    fake_mode_of,
    fix_numbers,
    guards_on,
    hint,
    holds,
    parameters,
    ranges,
    sizes,
)
from dicp.torch_internals.libraries import (
    Library,
    Watch,
    open_library,
    state_of_inductor,
)
from dicp.torch_internals.recordings import (
    aligning,
    check_cpp,
    copies_into,
    holders,
    inductor,
    plain_inductor,
    raw_stream,
    recording,
    same_places,
    static_input,
)
from dicp.torch_internals.traces import (
    compiled_globals,
    guards_of_trace,
    precompiled_name,
    record_precompiled,
    requested_options,
    save_precompiled,
)

__all__ = [
    "UNTRACEABLE",
    "FakeTensor",
    "FakeTensorMode",
    "Library",
    "Watch",
    "aligning",
    "aot",
    "at_hints",
    "check_cpp",
    "compiled_call",
    "compiled_globals",
    "copies_into",
    "decompositions",
    "device_types",
    "fake_mode_for",
    "fake_mode_of",
    "fix_numbers",
    "guards_of_trace",
    "guards_on",
    "has_kernel",
    "hint",
    "holders",
    "holds",
    "inductor",
    "open_library",
    "parameters",
    "plain_inductor",
    "precompiled_name",
    "preserve_rng_state",
    "ranges",
    "raw_stream",
    "record_precompiled",
    "recording",
    "requested_options",
    "same_places",
    "save_precompiled",
    "saves_by_hooks",
    "sizes",
    "state_of_inductor",
    "static_input",
    "straighten",
    "torch_version",
    "without_modes",
]

without_modes = _disable_current_modes  # real tensors, inside of torch.compile's fake mode


def has_kernel(op: torch._ops.OpOverload[..., Any], key: str) -> bool:
    """Whether an op has a kernel for a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def torch_version() -> str:
    """Return torch's version, for keys."""
    return str(torch.__version__)
