# SPDX-License-Identifier: Apache-2.0
"""The calls that OpTimeMeasure times natively: their groups, and their lines in the file."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from deeplink import settings
from op_tools.core import dispatch, native_library, op_names, tool_errors
from op_tools.core.call import Call, Site, site_of, tensor_list
from op_tools.core.native_library import NativeSink, call_headers
from op_tools.timing.aggregate import Group, Times, is_brief, text_of
from op_tools.timing.console import line_of

GroupOf = Callable[[Call, Any], Group]  # of a call and its result


class NativeTimer:
    """The native sink of one run of the tool.

    `has_clock` is whether torch's own events time a device. `flush` is called when lines are ready.
    """

    def __init__(
        self,
        works_on: Callable[[torch.device], bool],
        has_clock: Callable[[torch.device], bool],
        group_of: GroupOf,
        flush: Callable[[], None],
    ) -> None:
        helper = native_library.helper()
        assert helper is not None  # by the caller
        self._group_of = group_of
        # by kind of call: the group, the texts of the tensors among the arguments, of the result
        self._kinds: list[tuple[Group, list[str], str]] = []
        self._sites: dict[str, Site] = {}
        weak = weakref.proxy(self)  # the sink belongs to this object: no reference cycle
        self._sink = helper.TimeSink(
            settings.OP_TOOLS_MAX_CACHE_SIZE.get(),
            has_clock,
            _properties,
            lambda *call: weak._kind(*call),
            flush,
            lambda what: tool_errors.add("OpTimeMeasure", "its native part", RuntimeError(what)),
        )
        headers = call_headers(works_on, lambda code, line: weak._site(code, line), str)
        self.native = NativeSink(self._sink, headers, None)

    def _site(self, code: CodeType, line: int) -> str:
        site = site_of(code.co_filename, line, code.co_name)
        self._sites[repr(site)] = site
        return repr(site)

    def _kind(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        module: str,
        site: str,
    ) -> int:
        """Register the kind of a call; returns its index in `_kinds`."""
        with dispatch.unseen():
            record = Call(0, name, func, args, kwargs, module=module, site=self._sites.get(site))
            texts = list(map(text_of, tensor_list(args, kwargs)))
            self._kinds.append((self._group_of(record, result), texts, text_of(result)))
        return len(self._kinds) - 1

    @property
    def spent(self) -> int:
        """Nanoseconds that the sink itself has used."""
        return int(self._sink.spent)

    @property
    def pending(self) -> int:
        """The number of calls that are not over."""
        return int(self._sink.pending)

    def lines(self, others: list[tuple[int, str]], everything: bool) -> bytes:
        """Format the lines of finished calls, merged by id with `others`, the lines of calls that
        Python has timed. The times are added to the groups.
        """
        self._sink.limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        lines = bytes(self._sink.lines(everything, others, self._cells))
        for number, (forward, backward) in self._sink.sums().items():
            group = self._kinds[number][0]
            group.forward.merge(Times(*forward), later=True)
            group.backward.merge(Times(*backward), later=True)
        return lines

    def _cells(self, kind: int, places: list[int] | None) -> tuple[str, str]:
        """The operator, and the columns of shapes. `places`: the arguments that have gradients."""
        group, tensors, result = self._kinds[kind]
        columns = (group.kind.shape, result, "-", "-")
        if places is not None:
            columns = (group.kind.shape, result, ", ".join(tensors[at] for at in places), result)
        return _line(group.kind.op), _line(*columns)


def _properties(name: str) -> tuple[bool, bool]:
    """Whether the lists of an operator are shown in brief, and whether it is a view."""
    view = name.startswith("torch.") and op_names.last(name) in op_names.NEVER_COPY
    return is_brief(name), view


def _line(*texts: str) -> str:
    return line_of(texts).removesuffix("\r\n")
