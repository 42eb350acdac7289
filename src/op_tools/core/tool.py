# SPDX-License-Identifier: Apache-2.0
"""What every tool is: started and stopped, with lists and a selection, and asked around a call."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

import torch

from op_tools.core import engine, lifecycle, op_names, terminal, tool_errors
from op_tools.core.call import Call, Level
from op_tools.core.collectives import is_collective
from op_tools.core.dispatch import Plan
from op_tools.core.filters import Names, Selection, Selector
from op_tools.core.native_library import NativeSink
from op_tools.core.options import Options, options_for

# Why a tool left a call out.
CONDITION_FALSE = "the condition was false"
CONDITION_RAISED = "the condition raised an error"
NOT_SELECTED = "the selection left them out"


@dataclass
class Started:
    """A tool while it is active: its lists, its selection and what it counted."""

    options: Options
    ops: Names
    disabled: Names
    selector: Selector
    applied: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # calls left out, by reason
    elsewhere: set[str] = field(default_factory=set)  # kinds of devices that it does not watch
    skipped: dict[str, int] = field(default_factory=tool_errors.skipped)  # before it started


class Tool:
    """Around each call that it wants: `with tool: …`, or `start()` and `stop()` (or `end()`).

    Arguments go before the environment, and that before the settings file.
    """

    key: ClassVar[str]  # the word in OP_CAPTURE_LIST
    hook: ClassVar[str]  # the word in "apply OpCaptureHook on …"
    excluded: ClassVar[frozenset[str]] = frozenset()  # last parts of names that it never takes
    observes: ClassVar[bool] = False  # around the call, not instead of it
    only_looks: ClassVar[bool] = False  # it observes, and calls no kernel that could be observed
    computes: ClassVar[bool] = True  # with tensors; else nothing it does is autograd's business
    wants_modules: ClassVar[bool] = False  # module paths cost a hook around each module

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
        self._condition = condition  # asked with the operator's own arguments
        self.tells_skips = condition is None  # else of its own operators alone, one by one
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
        self.native: NativeSink | None = None  # for `begin` to set
        self.picks = True  # whether it was asked to take some calls and leave others
        self.selective = True  # whether `selects` has to be asked

    # Life.

    def start(self) -> Self:
        """Begin; a second start without a stop changes nothing. Bad lists are told here."""
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
            lifecycle.begun(self)
            terminal.resolved(self, options)
        return self

    def stop(self) -> None:
        """End, and report; a second stop changes nothing. Tools may be stopped in any order."""
        if self._active is not None:
            engine.stop(self)
            started, self._active = self.started, None
            lifecycle.over(self)
            try:
                self.finish(started)
            finally:
                self.native = None

    end = stop  # the classic other word

    def close(self) -> None:
        """At the end of Python, where nobody has stopped it."""
        self.stop()

    def forget(self) -> None:
        """In a forked child it is neither at work nor to be stopped: the files are the parent's."""
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
        """One more call that it works on."""
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
        """So many more calls of an operator came to the native sink."""
        started.applied += count

    # Decisions. The first two are asked once for each function, and remembered.

    @property
    def level(self) -> Level:
        return self.started.options.level

    def wants(self, name: str) -> bool:
        """Whether the lists let an operator through; to disable goes before to enable."""
        started = self._active
        if started is None or op_names.last(name) in self.excluded:
            return False
        return name in started.ops and name not in started.disabled

    def works_on(self, device: torch.device | None) -> bool:
        """Whether calls on this device are its business."""
        started = self._active
        if started is None or device is None or device.type == "meta":
            return False
        asked = started.options.devices
        found = device.type in map(_kind, asked) if asked else device.type != "cpu"
        if not found:
            started.elsewhere.add(device.type)
        return found

    def device_filter(self) -> Callable[[torch.device], bool]:
        """`works_on`, without a reference to the tool; False once the tool is gone."""
        tool = weakref.ref(self)
        return lambda device: (own := tool()) is not None and own.works_on(device)

    def selects(self, call: Call) -> bool:
        """Whether this call, of an operator that it wants, is one to work on."""
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
        """The sink that gets the calls of this plan; None: the tool observes each in Python."""
        goes = self.native is not None and not self.selective and self.goes_natively(plan)
        return self.native if goes else None

    def goes_natively(self, plan: Plan) -> bool:
        """Whether the native sink takes the calls of an operator."""
        return True

    def direct(self, plan: Plan) -> Callable[..., Any] | None:
        """What makes the calls of an api plan in the place of `dispatch.run`, which it may call."""
        # natively a call with tensors of the host alone is left out
        native = None if plan.places or is_collective(plan.name) else self.native_for(plan)
        return None if native is None else native.function(plan)

    # What a tool does; each may raise, and the program goes on.

    def so_far(self) -> str:
        """For the line of progress: ", 2 wrong" or nothing."""
        return ""

    def begin(self, options: Options) -> None:
        """At the start: read what is its own, refuse what cannot work."""

    def finish(self, started: Started) -> None:
        """At the stop: write and show what was found."""


def _kind(name: str) -> str:
    """The type of a device that is asked for by name: under ditorch, dipu's is cuda."""
    try:
        return torch.device(name).type
    except RuntimeError:  # no such device: `why_nothing` reports it
        return name


class Observer(Tool):
    """Looks at a call and its result, and changes neither."""

    observes = True
    only_looks = True

    def before(self, call: Call) -> Any:
        """Before the call: what it returns is handed to `after`."""

    def after(self, call: Call, state: Any, result: Any) -> None:
        """After the call."""


class Substitute(Tool):
    """Does the call in another way."""

    def substitute(self, call: Call) -> Any:
        """The result that the call would have had; NotImplemented: do it as it was."""
        raise NotImplementedError
