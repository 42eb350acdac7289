# SPDX-License-Identifier: Apache-2.0
"""The native part of op_tools: built at first use, with the frontends that hand calls to a sink.

A sink is the native part of a tool. It receives calls from torch's RecordFunction observers (level
aten), which see every kernel of every thread, or from an ApiFunction that replaces a function of
torch. Without the native part the tools observe in Python.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType, ModuleType
from typing import Any

import torch

from deeplink import native, settings
from deeplink.errors import BuildError
from op_tools.core import call, dispatch, module_stack, op_names, step_counter

log = logging.getLogger("op_tools")
_watching = False


@cache
def helper() -> ModuleType | None:
    """The native part; None if it cannot be built or is switched off."""
    if not settings.OP_TOOLS_NATIVE.get():
        return None
    try:
        module = native.load_extension("op_tools", say=log.warning)
    except (BuildError, ImportError) as error:  # no compiler, or one that cannot build it
        log.warning(
            "op_tools: native part unavailable, using the slow Python implementation: %s",
            str(error).splitlines()[0],
        )
        return None
    if isinstance(dispatch.ids, itertools.count):  # from now on calls are counted natively
        dispatch.ids = module.Ids(next(dispatch.ids))
    step_counter.copy_to(module.set_step)
    return module


def loaded() -> ModuleType | None:
    """The native part if it is loaded already; it is not built."""
    return helper() if "op_tools._C" in sys.modules else None


@dataclass(frozen=True)
class NativeSink:
    """The native part of a tool: `sink` receives calls, `headers` makes the header of each."""

    sink: Any
    headers: Any
    owner: object  # kept alive while gradients of the calls may come

    def function(self, plan: dispatch.Plan) -> Any:
        """A function that makes the calls of a function of torch and passes them to the sink."""
        module = helper()
        assert module is not None  # there is a sink
        word = op_names.last(plan.name)
        in_place = op_names.sounds_in_place(word)
        return module.ApiFunction(
            self.sink,
            self.owner,
            self.headers,
            plan.name,
            op_names.may_write(plan.name),
            not (in_place and word.startswith("_foreach_")),  # else version counters show writes
            partial(dispatch.run, plan),
        )


def call_headers(
    works_on: Callable[[torch.device], bool],
    site: Callable[[CodeType, int], str],
    quote: Callable[[str], str],
) -> Any:
    """Make the headers of calls on the devices that `works_on` accepts. `site` formats a line of
    the program, `quote` the path of a module.
    """
    module = helper()
    assert module is not None  # checked by the caller
    return module.CallHeaders(
        module_stack.local,
        dispatch.local,
        lambda kind: works_on(torch.device(kind)),
        lambda code: call.is_programs(code.co_filename),
        site,
        quote,
    )


def watch(
    on: bool,
    host: bool,
    decide: Callable[[str], Any],
    before: Callable[..., Any],
    after: Callable[..., None],
) -> bool:
    """Start or stop the native observation of kernels, and of the CPU's with `host`; False: no
    native part.
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
