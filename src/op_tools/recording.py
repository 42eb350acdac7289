"""Calls that are written down natively: what that part has to know of Python's side."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import torch

from op_tools import call, gradients, interception, kernels, modules, names
from op_tools.interception import Plan
from op_tools.written import is_in_place, may_write_by_name


def heads(works_on: Callable[[torch.device], bool]) -> Any:
    """What gives the starts of lines, of calls on the devices that are wanted."""
    helper = kernels.helper()
    assert helper is not None  # there is a recorder already
    return helper.Heads(
        modules.local,
        interception.local,
        lambda kind: works_on(torch.device(kind)),
        lambda code: call.places_of(code) is not None,
        _site,
        json.dumps,
    )


def function(plan: Plan, store: Any, heads: Any) -> Any:
    """What writes the calls of one of torch's functions down, with their gradients, to a store."""
    helper = kernels.helper()
    assert helper is not None  # there is a recorder already
    if helper.finish_flow not in gradients.elsewhere:
        gradients.elsewhere.append(helper.finish_flow)
    otherwise = partial(interception.run, plan.again())
    writes = may_write_by_name(plan.name)
    word = names.last(plan.name)
    uncounted = word.startswith("_foreach_") and is_in_place(word)  # by some devices
    return helper.recorded(store.recorder, store, heads, plan.name, writes, uncounted, otherwise)


def window(kind: str, index: int) -> tuple[int, int, int] | None:
    """Where the host sees a device's memory, if it does: see `torch.dipu.host_window`."""
    seen = getattr(torch.get_device_module(kind), "host_window", None)
    found: tuple[int, int, int] | None = seen(index) if seen is not None else None
    return found


def _site(code: CodeType, line: int) -> str:
    """A line of the program, in JSON."""
    return json.dumps(f"{os.path.basename(code.co_filename)}:{line}")
