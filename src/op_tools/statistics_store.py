"""The statistics of calls: one JSON line for each call, and one for its gradients."""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from deeplink import settings
from op_tools import (
    diagnostics,
    gradients,
    interception,
    kernels,
    names,
    outsiders,
    recording,
    reducing,
    results,
    statistics,
    statistics_torch,
    steps,
)
from op_tools.background import Background
from op_tools.call import Call, Site
from op_tools.snapshot import Unchanged
from op_tools.statistics_lists import Known, Lists
from op_tools.statistics_text import numbers_of, start_of, written
from op_tools.statistics_unseen import Numbers, Unseen
from op_tools.statistics_views import Views

PLACES = 10_000  # lines of the program that are known of an operator


class StatisticsStore:
    """Writes lines; a tensor whose memory is as it was is not measured again."""

    def __init__(self, hash_only: bool, sampled: bool = True, everything: bool = False) -> None:
        folder = results.folder("op_statistics_result")
        stamp = time.strftime("%Y-%m-%d-%H-%M-%S")
        stem = f"op_statistics_info_pid{results.owner(folder)}_{stamp}{results.rank()}"
        self.place, number = folder / f"{stem}.jsonl", 1
        while self.place.exists():
            number += 1
            self.place = folder / f"{stem}-{number}.jsonl"
        self._file = self.place.open("xb", buffering=0)
        self.bytes = 0
        self.files = 1
        self._hash_only = hash_only
        self.hashed = hash_only or kernels.helper() is not None
        self._known: Unchanged[str] = Unchanged()
        # every call is seen, and so is every write of one, or autograd counts it
        self._waits = sampled and everything and kernels.helper() is None
        self._unseen = Unseen(hash_only, self.hashed, self._waits)
        self._views = None if sampled else Views(self._measured, self._unseen.gathers)
        self.gathers = self._waits or not sampled  # tensors wait for each other
        if self._waits:
            gradients.elsewhere.append(self.settle)
        self._lines: list[str] = []
        self._limit = settings.OP_TOOLS_MAX_CACHE_SIZE.get()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._background: Background | None = None
        self._working = False
        self.recorder = self._native(sampled)
        views = self._views if self.recorder is None else None
        self._quick = self._one if views is None else views.text
        self._alone = everything and outsiders.begin(self._disturbed)
        if everything and not self._alone:
            self._disturbed()
        elif self._alone and self.recorder is not None:
            self.recorder.trust_torch(outsiders.groups)
        gradients.beforehand.append(self.settle)

    def _native(self, sampled: bool) -> Any:
        """What does the same natively, on memory that the host reaches; None: nothing does."""
        helper = kernels.helper()
        if helper is None:
            return None
        store = weakref.proxy(self)  # it is ours: no cycle
        return helper.Recorder(
            self._hash_only,
            sampled,
            self._limit,
            lambda tensor: store.described(tensor),
            recording.window,
            reducing.starter,
            reducing.launcher,
            lambda: store.flush_soon(),
            lambda func, text: diagnostics.add(
                "OpCapture", names.name_of(func) if func else "statistics", RuntimeError(text)
            ),
        )

    def _disturbed(self) -> None:
        """Any may be written unseen from now on, between two calls."""
        self._alone = False
        if self.recorder is not None:
            self.recorder.trust_nobody()
        else:
            self.forget_all()

    def before(self, given: list[Tensor], may_write: bool) -> str:
        """The statistics of a call's arguments, with commas between; from now on it may be made."""
        made = ",".join(self._each(given))
        if may_write or not self._waits:
            self._unseen.start()
        return made

    def waiting_texts(self, given: list[Tensor]) -> str:
        """The same; `before_write` or `settle` is to be called before one of them is written."""
        return ",".join(self._each(given))

    def _each(self, given: list[Tensor]) -> Iterable[str]:
        """Hot path."""
        try:
            if not self._waits or not given or statistics.is_seen(given[0]):
                return list(map(self._quick, given))
            found = self._unseen.texts(given)
        except (RuntimeError, NotImplementedError):  # one is of a kind that is seldom
            return map(self._one, given)
        if None in found:
            return [text or self._one(given[at]) for at, text in enumerate(found)]
        return found  # type: ignore[return-value]

    def before_write(self, tensors: list[Tensor]) -> None:
        """A kernel is about to write them."""
        self._unseen.before_write(tensors)

    @property
    def lists(self) -> Lists:
        """Of tensors that the host does not see."""
        return self._unseen.lists

    def before_list(self, known: Known) -> None:
        """A list is about to be written."""
        if self._waits:
            self._unseen.before_list()
        else:
            self._unseen.before_write_memory(known.memories, known.device)

    def list_written(self, known: Known) -> None:
        """And was."""
        self.lists.written(known.memories)
        if self._views is not None:
            self._views.forget_memories(known.memories)

    def settle(self) -> None:
        """Any may be written from now on."""
        if os.getpid() != self._pid:  # what waits is the parent's
            return
        self._unseen.start()
        if self.recorder is not None:
            self.recorder.settle()

    def call(self, head: str, given: str, result: list[Tensor], mutated: dict[int, Tensor]) -> None:
        """The line of a call: its arguments were measured before it, which may write them."""
        line = f'{head},"inputs":[{given}],"outputs":[{",".join(self._each(result))}]'
        if mutated:
            texts = self._each(list(mutated.values()))
            after = ",".join([f'"{at}":{text}' for at, text in zip(mutated, texts, strict=True)])
            line += f',"mutated":{{{after}}}'
        if not self._waits:
            self._unseen.start()
        self.add(line + "}\n")

    def gradients(self, head: str, inputs: list[Any], outputs: list[Any]) -> None:
        """The line of a call's gradients."""
        into = ",".join([text or "null" for text in inputs])
        out = ",".join([text or "null" for text in outputs])
        self.add(f'{head},"grad_inputs":[{into}],"grad_outputs":[{out}]}}\n')

    def text(self, tensor: Tensor) -> str:
        """A tensor's statistics in JSON; from now on it may be written by what is seen."""
        return self.texts([tensor])[0]

    def texts(self, tensors: list[Tensor]) -> list[str]:
        """The same of several."""
        made = list(self._each(tensors))
        if not self._waits:
            self._unseen.start()
        return made

    def waiting_text(self, tensor: Tensor, fresh: bool) -> str:
        """The same, as in `waiting_texts`; fresh: it was just written, which is not counted yet."""
        return self._described(tensor, True) if fresh else self._one(tensor)

    def described(self, tensor: Tensor) -> str:
        """The same, by Python."""
        made = self._described(tensor)
        self._unseen.start()
        return made

    def _one(self, tensor: Tensor) -> str:
        if self.recorder is not None and self.recorder.reaches(tensor):
            return str(self.recorder.text(tensor))
        return self._described(tensor)

    def _described(self, tensor: Tensor, fresh: bool = False) -> str:
        if self._views is not None:
            try:
                return self._views.text(tensor, fresh)
            except (RuntimeError, NotImplementedError):  # of a kind that is seldom
                pass
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            start = start_of(tensor.dtype, torch.Size() if tensor.is_nested else tensor.shape)
            return f'{start}"skipped":"no statistics of a tensor of layout {tensor.layout}"}}'
        return f"{start_of(tensor.dtype, tensor.shape)}{self._numbers(tensor)}}}"

    def _numbers(self, tensor: Tensor) -> str:
        if self._views is not None or self._unseen.usable(tensor):
            found = self._measured(tensor, False)
            return found if isinstance(found, str) else found.text
        key, known = self._known.find(tensor)
        if known is None:
            host, times = statistics.hosted(tensor)
            measured = statistics.measured(host, times, self._hash_only, self.hashed)
            known = written(measured, self._hash_only)
            self._known.keep(key, tensor, known, host)
        return known

    def _measured(self, tensor: Tensor, dense: bool) -> Numbers:
        """Its numbers, or where they will be; `dense`: plain values without gaps."""
        if self._unseen.usable(tensor):
            return self._unseen.later(tensor, dense)
        floats = statistics.floats(tensor) if dense and not self.hashed else None
        if floats is not None:  # hot path
            return numbers_of(*statistics_torch.of_floats(floats))
        host, times = statistics.hosted(tensor)
        found = statistics.measured(host, times, self._hash_only, self.hashed)
        return written(found, self._hash_only)

    def forget(self, tensor: Tensor) -> None:
        """A tensor was written."""
        if self._views is not None:
            self._views.forget(tensor)
        else:
            self._known.forget(tensor)
        self._unseen.forget(tensor)
        if self.recorder is not None:
            self.recorder.forget(tensor)

    def forget_all(self) -> None:
        """Any may be written unseen, on a device: what waits is started, and none is known."""
        self._unseen.forget_all()
        if self._views is not None:
            self._views.forget_all()

    def add(self, line: str) -> None:
        """A line that is to be written."""
        if self.recorder is not None:
            self.recorder.add(line)  # it flushes
            full = False
        else:
            if self.gathers and (outsiders.groups or not self._alone):
                self.forget_all()
            with self._lock:
                self._lines.append(line)
                full = len(self._lines) >= self._limit
        if full or self._file.closed:  # a backward pass after the end
            self.flush()

    def flush_soon(self) -> None:
        """Writes what is there; in the background what a device has found, which is more work."""
        if self._file.closed or not self.recorder.defers:  # a backward pass after the end
            self.flush()
        elif os.getpid() == self._pid and not self._working:
            self._working = True
            if self._background is None:
                self._background = Background()
            self._background.put(self._work)

    def _work(self) -> None:
        """In the background, until the end: what the native part has put into words is written."""
        try:
            while done := self.recorder.work(self._file.fileno()):
                with self._lock:
                    self._wrote(done) if isinstance(done, int) else self._write(done)
        except Exception as error:  # a full disk: a tool must not kill the program that it watches
            diagnostics.add("OpCapture", "statistics", error)
        finally:
            self.recorder.stop_work()
            self._working = False

    def flush(self) -> None:
        """Writes what waits."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self.recorder is not None:
                data = self.recorder.take()
            else:
                data = "".join(self._lines).encode()
                self._lines.clear()
            self._write(data)

    def _write(self, data: bytes) -> None:
        data = self._unseen.filled(data)
        late = self._file.closed  # a backward pass after the end
        if late:
            self._file = self.place.open("ab", buffering=0)
        self._file.write(data)
        if late:
            self._file.close()
        self._wrote(len(data))

    def _wrote(self, size: int) -> None:
        self.bytes += size
        results.budget.spend(size)

    def close(self) -> None:
        """Writes what waits."""
        if self._background is not None and os.getpid() == self._pid:
            self.recorder.end_work()
            self._background.close()
        self.flush()
        self._file.close()
        outsiders.end(self._disturbed)
        gradients.beforehand.remove(self.settle)
        if self._waits:
            gradients.elsewhere.remove(self.settle)
            self._waits = False
        if self.recorder is not None:
            self.recorder.limit = 1  # what comes later is written at once


def head(call: Call) -> str:
    """The start of a line: which call it is."""
    return line_of(call.id, call.name, call.direction, call.step, call.module, call.site)


def line_of(id: int, name: str, direction: str, step: int, module: str, site: Site | None) -> str:
    """The same, of what is known of a call."""
    return f'{{"id":{id},{_what(name, direction)}{step},{_where(module, site)}'


def _what(name: str, direction: str) -> str:
    return f'"op":"{name}","direction":"{direction}","step":'


def _where(module: str, site: Site | None) -> str:
    place = _place(site.file, site.line) if site is not None else '""'
    return f'"module":{_quoted(module)},"site":{place}'


class Heads:
    """The starts of the lines of one operator's calls. Hot path."""

    def __init__(self, name: str) -> None:
        self._what = _what(name, "forward"), _what(name, "backward")
        # a site is one object for good, but a few
        self._where: dict[tuple[str, int], tuple[Site | None, str]] = {}

    def __call__(self, backward: bool, module: str, site: Site | None) -> str:
        key = (module, id(site))
        known = self._where.get(key)
        if known is None:
            if len(self._where) >= PLACES:
                self._where.clear()
            known = self._where[key] = site, _where(module, site)
        id_ = next(interception.ids)
        return f'{{"id":{id_},{self._what[backward]}{steps.current()},{known[1]}'


@lru_cache(10_000)
def _place(file: str, line: int) -> str:
    return json.dumps(f"{os.path.basename(file)}:{line}")


@lru_cache(10_000)
def _quoted(text: str) -> str:
    return json.dumps(text)
