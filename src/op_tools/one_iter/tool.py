# SPDX-License-Identifier: Apache-2.0
"""OneIteration: an iteration recorded on a trusted device, and compared with it on another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from deeplink import settings
from deeplink.errors import SettingError
from deeplink.i18n import _
from op_tools.core import dispatch, engine, lifecycle, step_counter, tool_errors
from op_tools.core.call import Call
from op_tools.one_iter import console
from op_tools.one_iter.call_tree import Layers, Outside, Seen, Watcher
from op_tools.one_iter.compare import Comparing
from op_tools.one_iter.optimizer_step import Update
from op_tools.one_iter.record import Recording
from op_tools.one_iter.record_store import Book, OneIterError, Writer
from op_tools.one_iter.result import Direction, Finding, first
from op_tools.one_iter.rng import HostRandom

Mode = Literal["record", "compare"]


class OneIteration:
    """`with OneIteration("rec"): train()` records; with `mode="compare"` the run starts from the
    record, and each layer is compared with it.

    Without a folder, all options come from the settings, and the program ends after the iteration.
    """

    def __init__(
        self, folder: str | Path | None = None, mode: Mode | None = None, step: int | None = None
    ) -> None:
        self._ends = folder is None
        self.folder = Path(folder) if folder is not None else settings.OP_ONE_ITER_RECORD.get()
        self.mode: Mode = mode or (
            "record" if folder is not None else settings.OP_ONE_ITER_MODE.get()
        )  # type: ignore[assignment]
        if self.mode not in ("record", "compare"):
            raise SettingError(
                _("OneIteration(mode={mode!r}): allowed are record and compare.").format(mode=mode)
            )
        self.step = step if step is not None else settings.OP_ONE_ITER_STEP.get()
        self.bytes = 0  # of the written record
        self._tools: list[Any] = []
        self._handles: list[Any] = []
        self._over = True
        self._problem: OneIterError | None = None

    # Results.

    @property
    def findings(self) -> list[Finding]:
        """The findings for the compared calls, in the order of the iteration."""
        found = self._watcher.findings if isinstance(self._watcher, Comparing) else {}
        return [found[key] for key in sorted(found)]

    @property
    def first(self) -> tuple[Finding, Direction] | None:
        """The first layer that diverges; None: no layer."""
        return first(self.findings)

    # Start and stop.

    def start(self) -> Self:
        """Start; an error for a record that cannot be read or written."""
        if not engine.active():
            step_counter.reset()  # of an earlier optimizer
        self._base = step_counter.current()
        self._over, self._problem = False, None
        self._numbers: Counter[Any] = Counter()
        self._updates: Counter[str] = Counter()
        self._current: Update | None = None
        random = HostRandom(self._on)
        self._book = Book(self.folder) if self.mode == "compare" else None
        self._writer = Writer(self.folder) if self._book is None else None
        self._watcher: Recording | Comparing
        if self._book is not None:
            self._watcher = Comparing(self._book, random, self._guard)
        else:
            assert self._writer is not None
            self._watcher = Recording(self._writer, random, self._guard)
        told = _Told(self._watcher, self._fail)
        self._layers = Layers(told, self._on, self._numbers)
        self._tools = [random, Outside(told, self._on, self._numbers), self._layers]
        for tool in self._tools:
            tool.start()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        lifecycle.register(self)
        return self

    def stop(self, quiet: bool = False) -> None:
        """Stop, and report an iteration that was not reached.

        `quiet`: do not report in a process without module calls, such as a data loader.
        """
        if not self._over and quiet and not self._numbers:
            self._unwatch()
            self._close(whole=False)
        if not self._over:
            self._finish()
            if self._ends and (self._problem is not None or self.first is not None):
                raise SystemExit(2 if self._problem is not None else 1)
        self._unwatch()
        if self._problem is not None and not self._ends:
            problem, self._problem = self._problem, None
            raise problem

    def close(self) -> None:
        """Stop at the end of the process."""
        self.stop(quiet=True)

    def after_fork(self) -> None:
        """Stop in a forked child: the record is the parent's."""
        self._writer = None
        self._unwatch()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            unfinished = not self._over
            self._unwatch()
            if unfinished:
                self._close(whole=False)

    # During the iteration.

    def _on(self) -> bool:
        return not self._over and self._done() == self.step

    def _done(self) -> int:
        """The number of iterations since the start."""
        return step_counter.current() - self._base

    def _guard(self, call: Call) -> Callable[..., Callable[..., None]]:
        return dispatch.guard(self._layers, call)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._on():
            path = type(optimizer).__name__
            self._current = Update(optimizer, self._updates[path])
            self._updates[path] += 1
            self._told(self._watcher.before_step, self._current)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._current is not None:
            self._told(self._watcher.after_step, self._current)
            self._current = None
        if not self._over and self._done() > self.step:
            self._finish()
            if self._ends:
                raise SystemExit(_status(self._problem, self.first))

    def _told(self, action: Callable[[Update], None], update: Update) -> None:
        try:
            with dispatch.unseen(), torch.no_grad():
                action(update)
        except OneIterError as error:
            self._fail(error)
        except Exception as error:  # a tool must not end the program
            tool_errors.add("OneIteration", update.path, error)

    def _fail(self, error: OneIterError) -> None:
        """End the comparison: the record and the program do not match."""
        self._problem, self._over = error, True
        if self._ends:
            self._unwatch()
            self._close(whole=False)
            console.problem(error)
            raise SystemExit(2)

    # The end.

    def _finish(self) -> None:
        reached = self._done() >= self.step and bool(self._numbers)
        self._unwatch()
        if not reached:
            self._problem = OneIterError(
                _(
                    "the program ended after {done} {done:step|steps}, before the "
                    "iteration {step} (they count "
                    "from 0), or without calling a module in it."
                ).format(done=self._done(), step=self.step),
                _("choose an earlier one with --step, or let the program train longer."),
            )
        self._close(whole=reached)
        if self._problem is None and self._book is not None:
            self._missing(self._book)
        if self._problem is not None:
            if self._ends:
                console.problem(self._problem)
        elif self._writer is not None:
            console.recorded(self._writer, self.step, self.bytes, self._watcher.identity)
        else:
            assert self._book is not None  # what is not recorded is compared
            pair = self._book.identity, self._watcher.identity
            console.compared(self.findings, self.first, str(self.folder), *pair)
            if settings.OP_ONE_ITER_JSON.is_set():
                path = settings.OP_ONE_ITER_JSON.get()
                console.write_json(path, self.findings, self.first, *pair)

    def _missing(self, book: Book) -> None:
        found = {finding.entry.id for finding in self.findings}
        lost = [entry for key, entry in book.entries.items() if key not in found]
        if lost:
            self._problem = OneIterError(
                _(
                    "{count} {count:call|calls} of the record {count:was|were} not made "
                    "here, first {kind} {path} ({name})."
                ).format(count=len(lost), kind=lost[0].kind, path=lost[0].path, name=lost[0].name),
                _("record the same program, with the same options, anew."),
            )

    def _unwatch(self) -> None:
        self._over = True
        lifecycle.unregister(self)
        while self._handles:
            self._handles.pop().remove()
        while self._tools:
            self._tools.pop().stop()

    def _close(self, whole: bool) -> None:
        if self._writer is not None:
            self.bytes = self._writer.close(whole)


def _status(problem: OneIterError | None, found: Any) -> int:
    return 2 if problem is not None else int(found is not None)


class _Told:
    """A watcher that passes errors about the record to its owner."""

    def __init__(self, watcher: Watcher, fail: Callable[[OneIterError], None]) -> None:
        self._watcher, self._fail = watcher, fail

    def begin(self, seen: Seen, call: Call) -> None:
        try:
            self._watcher.begin(seen, call)
        except OneIterError as error:
            self._fail(error)

    def end(self, seen: Seen, call: Call, result: Any) -> None:
        if seen.state is not None:
            self._watcher.end(seen, call, result)

    def before_step(self, update: Update) -> None:
        self._watcher.before_step(update)

    def after_step(self, update: Update) -> None:
        self._watcher.after_step(update)
