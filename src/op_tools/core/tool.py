# SPDX-License-Identifier: Apache-2.0
"""The base of tools: start and stop, operator lists and selection, callbacks around a call."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

import torch

from deeplink.i18n import _
from op_tools.core import engine, lifecycle, op_names, terminal, tool_errors
from op_tools.core.call import Call, Level
from op_tools.core.collectives import is_collective
from op_tools.core.dispatch import Plan
from op_tools.core.filters import Names, Selection, Selector
from op_tools.core.native_library import NativeSink
from op_tools.core.options import Options, options_for

# Reasons why a tool leaves a call out.
CONDITION_FALSE = _("the condition was false")
CONDITION_RAISED = _("the condition raised an error")
NOT_SELECTED = _("the selection left them out")


@dataclass
class Started:
    """The state of an active tool: lists, selection and counts."""

    options: Options
    ops: Names
    disabled: Names
    selector: Selector
    applied: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # calls left out, by reason
    elsewhere: set[str] = field(default_factory=set)  # device types of calls on other devices
    skipped: dict[str, int] = field(default_factory=tool_errors.skipped)  # before the start


class Tool:
    """Works on the calls of chosen operators: `with tool: …`, or `start()` and `stop()` (or
    `end()`).

    Arguments go before the environment, and the environment before the settings file.
    """

    key: ClassVar[str]  # the word in OP_CAPTURE_LIST
    hook: ClassVar[str]  # the word in "apply OpCaptureHook on …"
    excluded: ClassVar[frozenset[str]] = frozenset()  # last parts of names that are left out
    observes: ClassVar[bool] = False  # an Observer, else a Substitute
    only_looks: ClassVar[bool] = False  # an Observer that calls no kernels of its own
    computes: ClassVar[bool] = True  # with tensors, which needs autograd to be off
    wants_modules: ClassVar[bool] = False  # needs module paths, which cost a hook in each module

    def __init__(
        self,
        ops: Sequence[str] | str | None = None,
        disable: Sequence[str] | str | None = None,
        *,
        level: Level | None = None,
        select: Selection | None = None,
        devices: Sequence[str] | None = None,
        config: str | None = None,
        condition: Callable[..., bool] | None = None,
        **more: Any,
    ) -> None:
        self._condition = condition  # of the operator's arguments
        self.announces_skips = condition is None  # by the lists; else by the condition
        self._options = partial(
            options_for,
            self.key,
            ops=ops,
            disable=disable,
            level=level,
            select=select,
            devices=devices,
            config=config,
            more=more,
        )
        self._active: Started | None = None
        self.native: NativeSink | None = None  # set by `begin`
        self.picks = True  # a condition or a selection leaves calls out
        self.selective = True  # `selects` decides on each call

    # Start and stop.

    def start(self) -> Self:
        """Start the tool, unless it is started. SettingError for options that are not allowed."""
        if self._active is None:
            options = self._options()
            ops, disabled = Names(options.ops), Names(options.disable)
            self._active = Started(options, ops, disabled, Selector(options.select))
            own = type(self).selects is not Tool.selects
            self.picks = self._condition is not None or not options.select.is_all
            self.selective = own or self.picks
            try:
                self.begin(options)
            except BaseException:
                self._active = None  # it did not start
                raise
            engine.start(self)
            lifecycle.register(self)
            terminal.resolved(self, options)
        return self

    def stop(self) -> None:
        """Stop the tool, if it is started, and report. Tools may be stopped in any order."""
        if self._active is not None:
            engine.stop(self)
            started, self._active = self.started, None
            lifecycle.unregister(self)
            try:
                self.finish(started)
            finally:
                self.native = None

    end = stop  # the name in the classic tools

    def close(self) -> None:
        """Stop at the end of the process."""
        self.stop()

    def after_fork(self) -> None:
        """Stop in a forked child without a report: the files are the parent's."""
        self._active = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def counted(self) -> None:
        """Count a call that the tool works on."""
        started = self._active
        if started is not None:  # not stopped by another thread
            started.applied += 1

    @property
    def started(self) -> Started:
        if self._active is None:
            raise RuntimeError(f"{type(self).__name__} is not started")
        if self.native is not None:
            for name, count in self.native.headers.take_counts().items():
                self.counted_natively(self._active, name, count)
        return self._active

    def counted_natively(self, started: Started, name: str, count: int) -> None:
        """Count calls of an operator that the native sink has received."""
        started.applied += count

    # Decisions. `wants` and `works_on` are called once for each function.

    @property
    def level(self) -> Level:
        return self.started.options.level

    def wants(self, name: str) -> bool:
        """Whether the tool works on an operator, by its lists; `disable` goes before `ops`."""
        started = self._active
        if started is None or op_names.last(name) in self.excluded:
            return False
        return name in started.ops and name not in started.disabled

    def works_on(self, device: torch.device | None) -> bool:
        """Whether the tool works on calls on a device."""
        started = self._active
        if started is None or device is None or device.type == "meta":
            return False
        devices = started.options.devices
        works = device.type in map(_type, devices) if devices else device.type != "cpu"
        if not works:
            started.elsewhere.add(device.type)
        return works

    def device_filter(self) -> Callable[[torch.device], bool]:
        """`works_on` without a reference to the tool; False after the tool is deleted."""
        tool = weakref.ref(self)
        return lambda device: (own := tool()) is not None and own.works_on(device)

    def selects(self, call: Call) -> bool:
        """Whether the tool works on a call, by the condition and the selection."""
        started = self.started
        if self._condition is not None:
            try:
                reason = "" if self._condition(*call.args, **call.kwargs) else CONDITION_FALSE
            except Exception as error:  # a tool must not end the program
                tool_errors.add(type(self).__name__, call.name, error)
                reason = CONDITION_RAISED
            if reason:
                started.refused[reason] += 1
                terminal.announce(self, call.name, False)
                return False
        selected = started.selector(call)
        if not selected:
            started.refused[NOT_SELECTED] += 1
        return selected

    def native_for(self, plan: Plan) -> NativeSink | None:
        """The sink of the calls of a plan; None: the tool observes each call in Python."""
        goes = self.native is not None and not self.selective and self.goes_natively(plan)
        return self.native if goes else None

    def goes_natively(self, plan: Plan) -> bool:
        """Whether the native sink takes the calls of an operator."""
        return True

    def direct(self, plan: Plan) -> Callable[..., Any] | None:
        """A function that makes the calls of an api plan instead of `dispatch.run`; None: none."""
        # the native part leaves out calls with tensors of the host alone
        native = None if plan.places or is_collective(plan.name) else self.native_for(plan)
        return None if native is None else native.function(plan)

    # For subclasses. An error in one of them does not end the program.

    def so_far(self) -> str:
        """The findings for the line of progress: ", 2 wrong" or nothing."""
        return ""

    def begin(self, options: Options) -> None:
        """Read the tool's own options at the start."""

    def finish(self, started: Started) -> None:
        """Write and show the results at the stop."""


def _type(name: str) -> str:
    """The type of a device by its name: under ditorch, "dipu" is of type cuda."""
    try:
        return torch.device(name).type
    except RuntimeError:  # no such device: `why_nothing` reports it
        return name


class Observer(Tool):
    """Observes calls and their results, and changes neither."""

    observes = True
    only_looks = True

    def before(self, call: Call) -> Any:
        """Return the state of a call that `after` needs."""

    def after(self, call: Call, state: Any, result: Any) -> None:
        """Work on a call and its result."""


class Substitute(Tool):
    """Computes calls in another way."""

    def substitute(self, call: Call) -> Any:
        """Return the result of a call; NotImplemented: the operator runs unchanged."""
        raise NotImplementedError
