"""The native part of OpTimeMeasure: it times the calls that are like one that Python has timed.

A filtered or a strange call, the first of its kind, one on a device without events and one inside
a backward pass goes through Python as before; so does everything for a trace or for tables.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from deeplink import settings
from op_tools.core import call, dispatch, module_stack, native_library, op_names, tool_errors
from op_tools.core.dispatch import Plan
from op_tools.core.worker import Background
from op_tools.timing.aggregate import Group
from op_tools.timing.call_shapes import call_shapes, is_brief, shape_of, tensor_texts, text_of
from op_tools.timing.console import line_of

Admits = Callable[[Hashable], bool]
GroupOf = Callable[[Hashable, str, Any], Group]  # of shapes, in a module, on a line


class NativeTimer:
    """One run of the tool, as far as it is native."""

    # `works_on`: None where the tool does not, False where it does and has to do so by Python
    def __init__(
        self,
        works_on: Callable[[torch.device], bool | None],
        admits: Admits,
        collect: Callable[[], None],
        limit: int,
    ) -> None:
        helper = native_library.helper()
        assert helper is not None  # by the caller
        self._collecting = _Aside(collect)
        host = SimpleNamespace(
            works_on=works_on,
            places_of=call.places_of,
            new_site=call.new_site,
            shape_of=shape_of,
            collect=self._collecting,
            problem=_problem,
            local=dispatch.local,
            paths=module_stack.local,
        )
        self._admits = admits
        self._timer = helper.Timer(host, limit)
        self._groups: dict[int, Group] = {}
        module_stack.elsewhere.append(self._timer.made)

    def close(self) -> None:
        """After it, nobody asks it."""
        self._collecting.close()
        module_stack.elsewhere.remove(self._timer.made)
        self._timer.stop_asking()

    def timed(self, plan: Plan) -> Callable[..., Any]:
        """What stands for the plan: `timed(func, args, kwargs)`."""
        # a plan of its own: one that holds what it is held by would stay for ever
        python = partial(dispatch.run, plan.again())
        admit = partial(self._admit, plan.name)
        view = plan.name.startswith("torch.") and op_names.last(plan.name) in op_names.NEVER_COPY
        return self._timer.timed(plan.name, is_brief(plan.name), view, admit, python)  # type: ignore[no-any-return]

    def _admit(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """The key of a call's kind; None when Python has to do all of them."""
        key = call_shapes(name, args, kwargs)
        return key if self._admits(key) else None

    @property
    def spent(self) -> int:
        """Nanoseconds of its own."""
        return int(self._timer.spent)

    @property
    def waiting(self) -> int:
        """Calls that are not over."""
        return int(self._timer.waiting)

    @property
    def counted(self) -> int:
        """Calls since this was asked last."""
        return int(self._timer.counted())

    def lines(self, others: list[tuple[int, str]], everything: bool, group_of: GroupOf) -> bytes:
        """Those of the calls that are over, for the file, with those of others by their ids."""

        def cells(number: int, result: int, grads: int | None) -> tuple[str, str]:
            """Its name; the shapes of arguments, results, and the gradients of both."""
            name, given = self._timer.group(number)[:2]
            made = text_of(self._timer.result(result))
            texts = [self._group(number, group_of).kind.shape, made, "-", "-"]
            if grads is not None:
                texts[2:] = [tensor_texts(given, tuple(self._timer.grads(grads))), made]
            return _cells(name), _cells(*texts)

        self._timer.limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        self._timer.settle(everything)
        return bytes(self._timer.lines(sorted(others), cells))

    def sum_up(self, group_of: GroupOf) -> None:
        """Adds the times of the calls that are over to those of their groups."""
        for number, (forward, backward) in self._timer.sums().items():
            group = self._group(number, group_of)
            group.forward.add_sums(*forward)
            group.backward.add_sums(*backward)

    def _group(self, number: int, group_of: GroupOf) -> Group:
        if number not in self._groups:
            _, key, module, site = self._timer.group(number)
            self._groups[number] = group_of(key, module, site)
        return self._groups[number]


class _Aside:
    """Something that a thread does, for which the program does not wait."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._thread: Background | None = None

    def __call__(self) -> None:
        if self._thread is None:
            self._thread = Background()
        self._thread.put(self._work)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.close()


def _cells(*texts: str) -> str:
    return line_of(texts).removesuffix("\r\n")


def _problem(name: str, what: str) -> None:
    tool_errors.add("OpTimeMeasure", name, RuntimeError(what))
