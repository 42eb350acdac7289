# SPDX-License-Identifier: Apache-2.0
"""The calls that OpTimeMeasure times natively: what they have in common, and their lines."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from types import CodeType
from typing import Any

import torch

from deeplink import settings
from op_tools.core import dispatch, native_library, op_names, tool_errors
from op_tools.core.call import Call, Site, site_of
from op_tools.core.native_library import NativeSink, call_headers
from op_tools.timing.aggregate import Group
from op_tools.timing.call_shapes import call_shapes, is_brief, shape_of, tensor_texts, text_of
from op_tools.timing.console import line_of

GroupOf = Callable[[Call, Hashable, Any], Group]  # of a call, its shapes and its result


class NativeTimer:
    """One run of the tool, as far as it is native; only with the native part."""

    # `has_clock`: whether torch's own events time a device
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
        self._kinds: list[tuple[Group, Hashable, str]] = []  # shapes of arguments; text of a result
        self._sites: dict[str, Site] = {}
        weak = weakref.proxy(self)  # the sink belongs to this object: no reference cycle
        self._sink = helper.TimeSink(
            settings.OP_TOOLS_MAX_CACHE_SIZE.get(),
            has_clock,
            _properties,
            lambda *call: weak._kind(*call),
            flush,
            _problem,
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
        """The number of what a call has in common with others, in the order of `_kinds`."""
        with dispatch.unseen():
            record = Call(0, name, func, args, kwargs, module=module, site=self._sites.get(site))
            shapes = call_shapes(name, args, kwargs)
            group = self._group_of(record, shapes, result)
            self._kinds.append((group, shapes, text_of(shape_of(result))))
        return len(self._kinds) - 1

    @property
    def spent(self) -> int:
        """Nanoseconds of its own."""
        return int(self._sink.spent)

    @property
    def pending(self) -> int:
        """Calls that are not over."""
        return int(self._sink.pending)

    def lines(self, others: list[tuple[int, str]], everything: bool) -> bytes:
        """Those of the calls that are over, for the file, with those of others by their ids; their
        times are added to those of their groups.
        """
        self._sink.limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        lines = bytes(self._sink.lines(everything, others, self._cells))
        for number, (forward, backward) in self._sink.sums().items():
            group = self._kinds[number][0]
            group.forward.add_sums(*forward)
            group.backward.add_sums(*backward)
        return lines

    def _cells(self, kind: int, places: list[int] | None) -> tuple[str, str]:
        """Its name; the shapes of arguments, results, and the gradients of both."""
        group, shapes, made = self._kinds[kind]
        grads = ("-", "-") if places is None else (tensor_texts(shapes, tuple(places)), made)
        return _line(group.kind.op), _line(group.kind.shape, made, *grads)


def _properties(name: str) -> tuple[bool, bool]:
    """Whether an operator's lists are told by their ends, and whether it is a view."""
    view = name.startswith("torch.") and op_names.last(name) in op_names.NEVER_COPY
    return is_brief(name), view


def _line(*texts: str) -> str:
    return line_of(texts).removesuffix("\r\n")


def _problem(what: str) -> None:
    tool_errors.add("OpTimeMeasure", "its native part", RuntimeError(what))
