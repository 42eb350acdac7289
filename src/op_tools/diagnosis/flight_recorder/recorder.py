# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: metrics of the last training steps, on disk at any moment.

It costs 0.5 to 4 % of the time of steps of 10 ms or more.

A line for each step: the loss, memory, and, within the budget of time, gradients, parameters and
results of modules in turns. When the loss is NaN or leaps, or the program raises, hangs or is ended
by a signal, the lines are copied, and the next steps are recorded in full.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from deeplink import identity, settings
from deeplink.console import console
from deeplink.i18n import _
from op_tools.core import dispatch, grad_scaler, graph_capture, lifecycle, output_paths, tool_errors
from op_tools.core.call import tensor_list
from op_tools.diagnosis.flight_recorder import entries, measurements, stacks
from op_tools.diagnosis.flight_recorder.measurements import Budget, Patience, Signals, Usual
from op_tools.diagnosis.flight_recorder.ring_file import Ring
from op_tools.diagnosis.flight_recorder.signal_thread import Unheard, end_by
from op_tools.diagnosis.nan import autograd_search, backward_roots
from op_tools.tensors import finite, statistics

OF_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"
MODULES_EVERY = 8  # steps: results of modules cost a hook around each
MEMORY_EVERY = 8  # steps, within the budget
MEMORY_AT_LEAST = 64  # steps, however short
LONG = 0.25  # seconds: a step of this length always reads memory
ARMED = 2  # steps that are recorded in full after an event
SKIPS = 20  # consecutive steps that a GradScaler may skip: its scale is then 2**-20 of the first
EVENTS = 4  # with a copy of the lines; later ones are lines only
TOGETHER = 8  # parameters that a device is queried for at once: each query has a fixed cost
AT_LEAST = 1.0  # seconds between two writes at most
PARTS = ("loss", "grads", "params", "modules")  # metrics of a line that may arrive late
TOLD = ("nan", "spike", "hang")  # events that are printed at once: the program may run for days
LAST = ("signal", "hang")  # events after which no line may follow
PERIOD = 1.0  # seconds between two checks of the watchdog
GRACE = 2.0  # seconds that the main thread has to handle a signal


class FlightRecorder:
    """`with FlightRecorder(): …`, or `deeplink run --recorder train.py`."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._unheard: Unheard | None = None
        self._active = False
        self._handle: Any = None  # of the hook around modules
        self.steps = self.skipped = 0
        self.events: list[str] = []

    # Start and stop.

    def start(self) -> Self:
        """Start recording; SettingError when the folder cannot be written."""
        if self._active:
            return self
        self._active = True
        folder = output_paths.folder("recorder")
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        stem = folder / f"recorder_pid{output_paths.owner(folder)}_{stamp}{output_paths.rank()}"
        self.ring = Ring(stem, settings.OP_RECORDER_LIMIT.get())
        self.budget, self.patience, self.signals = Budget(), Patience(), Signals()
        self.steps, self.events = 0, []
        self.skipped = self._skipped = 0  # steps, by a GradScaler: of all, and of the last ones
        self._line = self._new_line()
        self._usual, self._bad = Usual(), False
        self._lines: list[dict[str, Any]] = []  # pending lines
        self._written = time.monotonic()
        self._pending: deque[dict[str, Any]] = deque()  # lines with pending metrics
        self._names: dict[int, str] = {}  # of parameters
        self._paths: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._known: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._turn = self._armed = 0
        self._last, self._longest = time.monotonic(), 0.0
        self._first: Any = None  # the optimizer that counts the steps
        self._lock = threading.RLock()
        begin = {"begin": time.time(), "pid": os.getpid(), "command": sys.argv}
        self.ring.add({**begin, **identity.current().as_dict()})
        self._watch()
        lifecycle.register(self)
        return self

    def stop(self, quiet: bool = False) -> None:
        """Write the pending lines, and print a summary; `quiet`: only if a step was recorded."""
        if not self._active:
            return
        self._ended.set()
        if self._unheard is not None:
            self._unheard.wake()
        self._watcher.join(5)  # it may be busy with a long line
        self._unwatch()
        with self._lock, dispatch.unseen():
            try:
                self.signals.ask()
                self.signals.arrived(wait=True)
            except Exception as error:  # a failed device: the lines are written
                tool_errors.add("FlightRecorder", "stop", error)
            self._flush(everything=True)
            self.ring.add({"end": time.time(), "steps": self.steps})
            self.ring.close()
        if self.steps or not quiet:
            console().print(self.summary(), soft_wrap=True)

    def _unwatch(self) -> None:
        self._active = False
        lifecycle.unregister(self)
        while self._undo:
            self._undo.pop()()

    def close(self) -> None:
        """Stop at the end of the process."""
        self.stop(quiet=True)

    def after_fork(self) -> None:
        """Stop in a forked child: the lines are the parent's."""
        self._unwatch()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def summary(self) -> str:
        """The steps, the events and the cost."""
        skipped = (
            _(" ({skipped} skipped by the GradScaler)").format(skipped=self.skipped)
            if self.skipped
            else ""
        )
        text = _("FlightRecorder: {steps} {steps:step|steps}{skipped} in {stem}.*.jsonl, ").format(
            steps=self.steps, skipped=skipped, stem=self.ring.stem
        )
        text += _("{share:.1%} of the time").format(share=self.budget.share)
        if self.events:
            text += _("; {count} {count:event|events}, the first: {event}").format(
                count=len(self.events), event=self.events[0]
            )
        if self.ring.lost:
            text += _("; {lost} {lost:line was|lines were} not written: {failed}").format(
                lost=self.ring.lost, failed=self.ring.failed or "too long"
            )
        return text

    # Hooks.

    def _watch(self) -> None:
        before = register_optimizer_step_pre_hook(self._guarded(self._before_step))
        after = register_optimizer_step_post_hook(self._guarded(self._after_step))
        skipped = grad_scaler.watch(self._guarded(self._skipped_step))
        self._undo += [before.remove, after.remove, skipped]
        self._undo.append(backward_roots.watch("FlightRecorder", self._guarded(self._backward)))
        self._undo.append(lambda: self._modules(False))
        self._watch_end()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watchdog, args=(self._ended,), daemon=True)
        self._watcher.start()

    def _guarded(self, act: Callable[..., None]) -> Callable[..., None]:
        """Run work of the tool: an error is counted, not raised, and the time is counted."""

        def run(*args: Any) -> None:
            self.budget.enter()
            try:
                if not graph_capture.is_capturing():
                    with dispatch.unseen():
                        act(*args)
            except Exception as error:  # any error here is the tool's
                tool_errors.add("FlightRecorder", act.__name__, error)
            self.budget.leave()

        return run

    def _watch_end(self) -> None:
        plain = sys.excepthook

        def hook(kind: Any, error: Any, trace: Any) -> None:
            text = "".join(traceback.format_exception_only(kind, error)).strip()
            self._event("exception", text, stacks.of_error(trace))
            plain(kind, error, trace)

        sys.excepthook = hook

        def put_back() -> None:
            if sys.excepthook is hook:
                sys.excepthook = plain

        self._undo.append(put_back)
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            self._unheard = Unheard()
            self._undo.append(self._leave_signal)

    def _terminated(self, number: int, frame: Any) -> None:
        try:
            stack = traceback.format_stack(frame)[-4:]
            self._event("signal", signal.Signals(number).name, stack)
        finally:  # the process ends by the signal, whatever the handler raises
            end_by(number)

    def _leave_signal(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets no other change it
        if signal.getsignal(signal.SIGTERM) == self._terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._unheard is not None:
            self._unheard.close()
            self._unheard = None

    # A step.

    @staticmethod
    def _new_line() -> dict[str, Any]:
        return {"step": 0, "loss": {}, "grads": {}, "params": {}, "modules": {}}

    def _modules(self, on: bool) -> None:
        """Install the hook on modules for the steps that use it."""
        handle = self._handle
        if on and handle is None:
            look = self._guarded(self._module)

            def hook(module: nn.Module, args: Any, result: Any) -> None:
                if not torch.compiler.is_compiling():  # else torch.compile would trace the hook
                    look(module, result)

            # hides a warning of torch.compile about the tool's hook
            warnings.filterwarnings("ignore", OF_HOOKS, UserWarning)
            self._handle = register_module_forward_hook(hook)
        elif not on and handle is not None:
            handle.remove()
            self._handle = None

    def _module(self, module: nn.Module, result: Any) -> None:
        if module not in self._paths:
            self._name(module)
        if self._armed or self.budget.open:
            made = [t for t in tensor_list(result)[:1] if finite.has_numbers(t)]
            if made:
                count = len(self._line["modules"])
                name = f"{count} {self._paths[module]}"
                self.signals.take([(self._line["modules"], name)], made)

    def _name(self, root: nn.Module) -> None:
        """Name modules and parameters by their paths; a root that is called later gives longer
        paths.
        """
        for name, module in root.named_modules():
            if not name:
                self._paths.setdefault(module, type(module).__name__)
            elif len(name) >= len(self._known.get(module, "")):
                self._paths[module] = self._known[module] = name
        for name, parameter in root.named_parameters():
            if name.count(".") >= self._names.get(id(parameter), "").count("."):
                self._names[id(parameter)] = name

    def _backward(self, started: Sequence[Any]) -> None:
        first = next((t for t in started if isinstance(t, Tensor) and t.numel() == 1), None)
        if first is None:
            return
        loss = grad_scaler.unscaled(first)
        value, into = first.detach() if loss is None else loss, self._line["loss"]
        if not (statistics.is_seen(value) or self.patience.waits):
            self.signals.hold(value, into)
            return
        found = self.budget.awaited(value)
        measurements.put_loss(into, found)
        if not (math.isfinite(found) or self._bad or len(self.ring.copies) >= EVENTS):
            self._line["origin"] = str(autograd_search.origin(first, self._names) or "")

    def _skipped_step(self, optimizer: Optimizer) -> None:
        """Record a step that a GradScaler skips, with its gradients."""
        if self._first in (None, id(optimizer)):
            self._line["skipped"] = True
        self._before_step(optimizer)
        self._after_step(optimizer)

    def _before_step(self, optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
        if self._first is None:
            self._first = id(optimizer)
        overflow = getattr(optimizer, "found_inf", None)  # a GradScaler's: the optimizer skips
        scale = getattr(optimizer, "grad_scale", None)  # and unscales
        if overflow is not None:
            known = statistics.is_seen(overflow)
            self._line["skipped"] = bool(overflow) if known else None
        stuck = self._skipped == SKIPS and bool(self._line.get("skipped"))
        if not (self._armed or self.budget.open or stuck):
            self._turn += 1
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with_gradients = [p for p in parameters if p.grad is not None]
        count = len(with_gradients)
        names = [self._names.get(id(p)) or f"[{at}]" for at, p in enumerate(with_gradients)]
        grads, params = self._line["grads"], self._line["params"]
        taken, many = 0, 1 if count and statistics.is_seen(with_gradients[0]) else TOGETHER
        while taken < count and (self._armed or self.budget.open):
            ats = [(self._turn + at) % count for at in range(taken, min(taken + many, count))]
            places = [(part, names[at]) for part in (grads, params) for at in ats]
            some = [with_gradients[at] for at in ats]
            self.signals.take(places, [*(_unscaled(p.grad, scale) for p in some), *some])
            taken += len(ats)
        self._turn += max(1, taken)
        if "skipped" in self._line and not stuck:
            return  # bad gradients are an overflow of the scaled loss
        if stuck:
            self._line["skips"] = self._skipped
        if (entries.bad_names(grads) or stuck) and not self._bad and "origin" not in self._line:
            gradients = [_unscaled(parameter.grad, scale) for parameter in with_gradients]
            self.signals.take([(grads, name) for name in names], gradients)
            if entries.bad_names(grads):  # else the metrics are pending
                self._line["origin"] = entries.edge(names, grads)

    def _after_step(self, optimizer: Optimizer, args: Any = None, kwargs: Any = None) -> None:
        if self._first not in (None, id(optimizer)):
            return  # of several optimizers the first one counts
        now = time.monotonic()
        took, self._last = now - self._last, now
        if self.steps:
            self._longest = max(self._longest, took)
            self.patience.step(took)
        line, self._line = self._line, self._new_line()
        line |= {"step": self.steps, "at": time.time(), "ms": round(took * 1e3, 3)}
        self._skipped = self._skipped + 1 if line.get("skipped") else 0
        self.skipped += bool(line.get("skipped"))
        self._pending.append(line)
        self.steps += 1
        self._armed = max(0, self._armed - 1)
        self.budget.step()
        may = bool(self._armed) or self.budget.open or self._bad_loss(line)
        if took > LONG or line["step"] % (MEMORY_EVERY if may else MEMORY_AT_LEAST) == 0:
            line |= {"memory": entries.memory(), "share": round(self.budget.share, 5)}
        due = self.steps % MODULES_EVERY == 0 and self.budget.open
        # from the second step on: what is compiled in the first has no hook in its way
        self._modules(bool(self._armed) or due or self.steps == 1)
        if may or self._is_late:  # else only the pending line
            self.signals.ask()
            self.signals.arrived()
            self._flush()

    @property
    def _is_late(self) -> bool:
        return self._last - self._written > AT_LEAST

    @staticmethod
    def _bad_loss(line: dict[str, Any]) -> bool:
        loss = line["loss"].get("loss")
        return loss is not None and not math.isfinite(loss)

    def _flush(self, everything: bool = False) -> None:
        """Write the lines whose metrics are complete; in large batches when time is short."""
        with self._lock:
            waiting = set() if everything else self.signals.pending()
            while self._pending:
                line = self._pending[0]
                if waiting and any(id(line[part]) in waiting for part in PARTS):
                    break
                self._pending.popleft()
                self._lines.append(line)
                self._look(line)
            if everything or self._is_late or self._armed or self.budget.open:
                self._written = self._last
                self.ring.add_all([entries.shown(line) for line in self._lines])
                self._lines.clear()

    def _look(self, line: dict[str, Any]) -> None:
        """Detect the event of a step."""
        step, loss = line["step"], line["loss"].get("loss")
        grads, bad_loss = entries.bad_names(line["grads"]), self._bad_loss(line)
        if "skipped" in line and "skips" not in line:
            grads = []  # an overflow of the scaled loss
        was_bad, self._bad = self._bad, bad_loss or bool(grads)
        if self._bad and not was_bad:  # the first of a row of them
            bad = _("the loss") if bad_loss else _("the gradient of {name}").format(name=grads[0])
            text = _("{bad} is not finite in step {step}{module}").format(
                bad=bad, step=step, module=entries.first_bad(line)
            )
            if "skips" in line:
                text += _(
                    "; the GradScaler has skipped {skips} {skips:step|steps} in a row before it"
                ).format(skips=line["skips"])
            origin = line.get("origin")
            self._event(
                "nan",
                _("{text}; {origin}").format(text=text, origin=origin) if origin else text,
                step=step,
            )
        if bad_loss:
            return
        if loss is not None and self._usual.leaps(loss):
            text = _("the loss of step {step} is {loss:.4g}, it was about {mean:.4g}").format(
                step=step, loss=loss, mean=self._usual.mean
            )
            self._event("spike", text)

    # Events.

    def _event(self, kind: str, text: str, stack: Sequence[str] = (), step: int = 0) -> None:
        """Write a line about an event, copy the lines before it, and record the
        next steps in full.
        """
        with self._lock:
            if kind in LAST:  # pending metrics may never arrive
                self._lines += self._pending
                self._pending.clear()
            self.ring.add_all([entries.shown(line) for line in self._lines])
            self._lines.clear()
            known = sum(event.startswith(f"{kind}: ") for event in self.events)
            if known >= EVENTS and kind in ("nan", "spike"):
                return
            self.events.append(_("{kind}: {text}").format(kind=kind, text=text))
            event = {"event": kind, "step": self.steps, "at": time.time(), "text": text}
            if kind == "nan":
                event["next"] = entries.next_command(step)
            self.ring.add(event | ({"stack": list(stack)} if stack else {}))
            if kind in TOLD:
                entries.tell(event)
            if len(self.ring.copies) < EVENTS:
                self.ring.keep(f"{kind}-step{self.steps}")
            if kind in ("nan", "spike") and self._active:  # else the hook would remain
                self._armed = ARMED
                self._modules(True)

    def _watchdog(self, ended: threading.Event) -> None:
        told = 0.0
        while not self._pause(ended):
            limit = max(settings.OP_RECORDER_HANG.get(), 20 * self._longest)
            since = time.monotonic() - self._last
            if since > limit and told != self._last:
                told = self._last
                text = _("no step for {since:.0f} s, after {steps}").format(
                    since=since, steps=self.steps
                )
                self._event("hang", text, stacks.of_threads())

    def _pause(self, ended: threading.Event) -> bool:
        """Wait for the next check; returns whether the program ends. SIGTERM ends a hanging
        program, as it does without the tool.
        """
        unheard = self._unheard
        if unheard is None or ended.is_set():
            return ended.wait(PERIOD)
        number = unheard.wait(PERIOD)
        ours = number == signal.SIGTERM and signal.getsignal(number) == self._terminated
        if ours and not ended.wait(GRACE):
            self._hung(number)
        return ended.is_set()

    def _hung(self, number: int) -> None:
        try:
            if self._lock.acquire(timeout=PERIOD):  # the main thread may hold it for good
                self._event("signal", signal.Signals(number).name, stacks.of_threads())
                self._lock.release()
        finally:
            end_by(number)


def _unscaled(gradient: Tensor | None, scale: Tensor | None) -> Tensor | None:
    """A gradient divided by the scale that a fused optimizer removes."""
    if gradient is None or scale is None:
        return gradient
    return gradient / scale.to(gradient.device)
