"""A tool's native sink: calls recorded with the statistics of their tensors, without Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from op_tools.core import call, dispatch, module_stack, native_library, op_names, tool_errors
from op_tools.core.dispatch import Plan
from op_tools.tensors import device_reduction
from op_tools.tensors.mutation import is_in_place, may_write_by_name


class NativeSink:
    """`sink` takes the records; `headers` makes the header of each. The owner holds this object."""

    def __init__(
        self,
        helper: Any,
        tool: str,
        limit: int,
        described: Callable[[Tensor], str],
        flush: Callable[[], None],
        *,
        hash_only: bool = False,
        all_inputs: bool = False,
        nonfinite_only: bool = False,
    ) -> None:
        self._helper = helper
        self.sink = helper.StatisticsSink(
            hash_only,
            all_inputs,
            nonfinite_only,
            limit,
            described,
            window,
            device_reduction.starter,
            device_reduction.launcher,
            flush,
            lambda func, text: tool_errors.add(
                tool, op_names.name_of(func) if func else "statistics", RuntimeError(text)
            ),
        )

    def headers(
        self,
        works_on: Callable[[torch.device], bool],
        site: Callable[[CodeType, int], str],
        quote: Callable[[str], str],
    ) -> Any:
        """Makes the headers of calls on the devices that `works_on` accepts. `site` and `quote`
        give JSON.
        """
        return self._helper.CallHeaders(
            module_stack.local,
            dispatch.local,
            lambda kind: works_on(torch.device(kind)),
            lambda code: call.places_of(code) is not None,
            site,
            quote,
        )

    def function(self, plan: Plan, headers: Any, owner: object) -> Any:
        """Makes the calls of one of torch's functions and records them. `owner` is kept alive while
        gradients of the calls may come.
        """
        word = op_names.last(plan.name)
        counts_first_write = not (word.startswith("_foreach_") and is_in_place(word))
        return self._helper.ApiFunction(
            self.sink,
            owner,
            headers,
            plan.name,
            may_write_by_name(plan.name),
            counts_first_write,
            partial(dispatch.run, plan.again()),
        )


def native_sink(
    tool: str,
    limit: int,
    described: Callable[[Tensor], str],
    flush: Callable[[], None],
    **more: bool,
) -> NativeSink | None:
    """The sink of a tool; None without the native part."""
    helper = native_library.helper()
    return None if helper is None else NativeSink(helper, tool, limit, described, flush, **more)


def window(kind: str, index: int) -> tuple[int, int, int] | None:
    """The device memory that the host can read: see `torch.dipu.host_window`."""
    seen = getattr(torch.get_device_module(kind), "host_window", None)
    found: tuple[int, int, int] | None = seen(index) if seen is not None else None
    return found
