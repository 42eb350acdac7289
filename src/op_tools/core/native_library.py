"""The native part of op_tools: built at first use, and the observer of aten kernels in it.

Torch's RecordFunction observers see every kernel in every thread, and put nothing in its way. A
dispatch mode serves where the native part cannot be built, and for tools that replace a call.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch

from deeplink import native, settings
from deeplink.errors import BuildError
from op_tools.core import dispatch, step_counter

log = logging.getLogger("op_tools")
_watching = False


@cache
def helper() -> ModuleType | None:
    """The native part; None if it cannot be built or is switched off."""
    if not settings.OP_TOOLS_NATIVE.get():
        return None
    try:
        return _with_counts(native.load_extension("op_tools", say=log.warning))
    except (BuildError, ImportError) as error:  # no compiler, or one that cannot build it
        log.warning(
            "op_tools: native part unavailable, using the slow Python implementation: %s",
            str(error).splitlines()[0],
        )
        return None


def _with_counts(module: ModuleType) -> ModuleType:
    """Counts calls and steps natively from now on."""
    if isinstance(dispatch.ids, itertools.count):
        dispatch.ids = module.Ids(next(dispatch.ids))
    step_counter.keep(module.set_step)
    return module


def loaded() -> ModuleType | None:
    """The native part if it is in use already; nothing is built."""
    return helper() if "op_tools._C" in sys.modules else None


def watch(
    on: bool,
    host: bool,
    decide: Callable[[str], Any],
    before: Callable[..., Any],
    after: Callable[..., None],
) -> bool:
    """Starts or stops observing kernels; returns whether the native part does it. `host`: kernels
    of the CPU are observed too.
    """
    global _watching
    if not on and not _watching:
        return True
    module = helper()
    if module is None:
        return False
    module.watch_kernels(on, host, decide, before, after)
    _watching = on
    return True


def function_of(name: str) -> Any:
    """torch.ops.aten.add.Tensor of "aten::add.Tensor"."""
    space, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), operator), overload or "default")
