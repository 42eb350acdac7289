# SPDX-License-Identifier: Apache-2.0
"""WhyNan: from a loss or gradient that is NaN to the kernel that made the first NaN or Inf.

The results of every kernel are checked, and recorded with the kernels of their arguments. A symptom
is a value that affects the program: a loss, a value that the program reads, or a gradient that an
optimizer is about to use. The search goes back from the symptom. An Inf without a symptom is not
reported, nor that of a mask, nor a step that a GradScaler skips.
"""

from __future__ import annotations

import json
import linecache
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from deeplink import settings
from deeplink.i18n import _, joined
from op_tools.core import dispatch, op_names, output_paths, step_counter, terminal, tool_errors
from op_tools.core.call import Call, held_bytes, tensor_list
from op_tools.core.options import Options
from op_tools.core.problem import Problem, run_command
from op_tools.core.tool import Observer, Started
from op_tools.diagnosis.nan import backward_roots
from op_tools.diagnosis.nan.provenance import Record, Records, address, strided
from op_tools.tensors import finite, statistics
from op_tools.tensors.mutation import written_by_schema
from op_tools.tools import overflow

WAITING = 256  # calls that are judged together, where the host has to wait for the device
HELD = 1 << 28  # bytes of their tensors at most
READS = "_local_scalar_dense"  # what `.item()` calls


@dataclass(frozen=True)
class Symptom:
    """A bad value that affects the program."""

    text: str
    value: float
    maker: int
    step: int


@dataclass
class _Unread:
    record: Record
    given: list[Tensor]
    made: list[Tensor]
    sizes: list[Tensor]  # of results, on the device
    versions: list[int]  # of arguments: one that was overwritten since is that of its maker
    by_value: bool  # an argument of the program is an Inf


class WhyNan(Observer):
    """Names the kernel with the first NaN or Inf that caused a symptom."""

    key = "OVERFLOW_CHECK"
    hook = "WhyNanHook"
    excluded = op_names.UNINITIALISED
    wants_modules = True

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{"level": "aten", **more})
        self.found: dict[str, Any] | None = None

    def begin(self, options: Options) -> None:
        self.found = None
        self._records = Records()
        self._unread: list[_Unread] = []
        self._held = 0
        self._names: dict[int, str] = {}  # of parameters, by their addresses
        self._calls = self._skipped = 0
        self._lock = threading.RLock()
        self._handle = register_optimizer_step_pre_hook(self._before_step)
        self._undo = backward_roots.watch("WhyNan", self._roots)
        self.place = output_paths.folder("why_nan") / _file_name()

    # Around a call.

    def after(self, call: Call, state: Any, result: Any) -> None:
        if self.found is not None:
            return
        word = op_names.last(call.name)
        given = strided(tensor_list(call.args, call.kwargs))
        if word == READS:
            self._read_value(call, given)
            return
        func: Any = call.func
        mutable = func._schema.is_mutable
        made = strided(written_by_schema(call) if mutable else tensor_list(result))
        made = made or strided(tensor_list(result))
        if not made or (not mutable and self._is_view(given, made)):
            return
        self._calls += 1
        with self._lock:
            self._take(call, given, made)

    @staticmethod
    def _is_view(given: Sequence[Tensor], made: Sequence[Tensor]) -> bool:
        known = {address(tensor) for tensor in given}
        return all(address(tensor) in known for tensor in made)

    def _take(self, call: Call, given: list[Tensor], made: list[Tensor]) -> None:
        site = f"{call.site.file}:{call.site.line}" if call.site is not None else ""
        record = Record(
            self._records.number(),
            *(call.name, call.direction, call.step, call.module, site),
            tuple(self._records.maker(tensor) for tensor in given),
        )
        self._records.add(record, made)
        seen = call.device is None or statistics.kind_is_seen(call.device.type)
        by_value = overflow.has_infinity(call)
        numbers = [tensor for tensor in made if finite.has_numbers(tensor)]
        if not numbers:
            return
        if seen:
            record.largest = _largest(finite.numbers(finite.greatest(numbers)))
            if record.bad:
                self._judge(record, given, made, self._sizes(given), by_value)
            return
        sizes = finite.greatest(numbers)
        versions = [-1 if tensor.is_inference() else tensor._version for tensor in given]
        self._unread.append(_Unread(record, given, made, sizes, versions, by_value))
        self._held += sum(held_bytes(tensor) for tensor in (*given, *made))
        if len(self._unread) >= WAITING or self._held >= HELD:
            self._settle()

    @staticmethod
    def _sizes(given: Sequence[Tensor]) -> list[float]:
        numbers = [tensor for tensor in given if finite.has_numbers(tensor)]
        found = iter(finite.numbers(finite.greatest(numbers)))
        return [next(found) if finite.has_numbers(tensor) else 0.0 for tensor in given]

    def _judge(
        self,
        record: Record,
        given: Sequence[Tensor],
        made: Sequence[Tensor],
        taken: Sequence[float],
        by_value: bool,
    ) -> None:
        """Classify a bad result: intended, passed on, or made by the kernel."""
        record.taken = tuple(taken)
        makers = [self._records.get(number) for number in record.makers]
        bad = [m for m, size in zip(makers, taken, strict=True) if not math.isfinite(size)]
        if not math.isnan(record.largest):
            passed_on = bool(bad) and all(m is not None and m.meant for m in bad)
            record.meant = passed_on or (by_value and not bad)
        may_be_origin = not bad or all(m is None or m.meant for m in bad)
        if may_be_origin and not record.meant:  # the search ends before a mask
            record.inputs = tuple(overflow.extents(list(given)))
            record.outputs = tuple(overflow.extents(list(made)))

    def _settle(self) -> None:
        """Read and judge the pending calls, in their order."""
        waiting, self._unread, self._held = self._unread, [], 0
        if not waiting:
            return
        values = iter(finite.numbers([size for one in waiting for size in one.sizes]))
        for one in waiting:
            count = sum(finite.has_numbers(tensor) for tensor in one.made)
            one.record.largest = _largest([next(values) for _ in range(count)])
            if one.record.bad:
                self._judge(one.record, one.given, one.made, self._taken(one), one.by_value)

    def _taken(self, one: _Unread) -> list[float]:
        """The magnitudes of the arguments, which are read for bad results only."""
        sizes = self._sizes(one.given)
        for at, (tensor, version) in enumerate(zip(one.given, one.versions, strict=True)):
            maker = self._records.get(one.record.makers[at])
            if maker is not None and version >= 0 and tensor._version != version:
                sizes[at] = maker.largest
        return sizes

    # Symptoms.

    def _read_value(self, call: Call, given: Sequence[Tensor]) -> None:
        if given and finite.has_numbers(given[0]):
            where = f" ({call.site.short})" if call.site is not None else ""
            self._symptom(
                _("the program reads a value{where}").format(where=where), given[:1], only_nan=True
            )

    def _roots(self, started: Sequence[Any]) -> None:
        given = strided([root for root in started if isinstance(root, Tensor)])
        given = [tensor for tensor in given if finite.has_numbers(tensor)]
        if given and self.works_on(given[0].device):
            # a scaled loss may overflow: its step is skipped
            self._symptom(_("the loss"), given, only_nan=True)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        skips = getattr(optimizer, "found_inf", None)  # set by a GradScaler
        try:
            if self.found is not None or (skips is not None and bool(skips)):
                self._skipped += skips is not None
                return
            groups = [group["params"] for group in optimizer.param_groups]
            parameters = [p for group in groups for p in group if p.grad is not None]
            given = strided([p.grad for p in parameters])
            given = [g for g in given if finite.has_numbers(g) and self.works_on(g.device)]
            if given:
                self._symptom(_("a gradient"), given, only_nan=False)
        except Exception as error:  # a tool must not end the program
            tool_errors.add("WhyNan", "optimizer", error)

    def _symptom(self, what: str, given: Sequence[Tensor], only_nan: bool) -> None:
        if self.found is not None:
            return
        with self._lock, dispatch.unseen():
            sizes = finite.numbers(finite.greatest(given))
            harmful = (math.isnan,) if only_nan else (math.isnan, math.isinf)
            bad = [at for at, size in enumerate(sizes) if any(is_bad(size) for is_bad in harmful)]
            if not bad:
                return
            self._settle()
            tensor, value = given[bad[0]], sizes[bad[0]]
            word = "NaN" if math.isnan(value) else "Inf"
            more = (
                _(" ({count} of {total} {count:is|are} bad)").format(
                    count=len(bad), total=len(given)
                )
                if len(given) > 1
                else ""
            )
            shape = f" {list(tensor.shape)}" if tensor.dim() else ""
            text = _("{what}{shape} is {word}{more}").format(
                what=what, shape=shape, word=word, more=more
            )
            self._explain(Symptom(text, value, self._records.maker(tensor), step_counter.current()))

    # The verdict.

    def _explain(self, symptom: Symptom) -> None:
        last = self._records.get(symptom.maker)
        if last is None:
            unseen = _("none of the recorded kernels produced it")
            verdict = _("{text} in step {step}, and {unseen}").format(
                text=symptom.text, step=symptom.step, unseen=unseen
            )
            self._write(verdict, [], None, [], symptom)
            return
        path = self._records.path(last)
        origin = path[-1]
        outside = _from_outside(origin)
        kind = "NaN" if math.isnan(origin.largest) else "Inf"
        where = _("{op} ({direction}), step {step}").format(
            op=origin.op, direction=origin.direction, step=origin.step
        )
        where += _(", module {module}").format(module=origin.module) if origin.module else ""
        if outside:
            verdict = _("The {kind} came from outside: it is an argument of {where}").format(
                kind=kind, where=where
            )
        else:
            verdict = _("first {kind} produced by {where}").format(kind=kind, where=where)
        lines = [_("in  {text}").format(text=overflow.text_of(e)) for e in origin.inputs]
        lines += [_("out {text}").format(text=overflow.text_of(e)) for e in origin.outputs]
        chain = " <- ".join(record.op for record in _shortened(path))
        lines.append(_("path from the loss back to the cause: {chain}").format(chain=chain))
        before = self._records.before(origin)
        if before:
            shown = joined(
                ", ",
                [
                    _("{op} (up to {largest:.3g})").format(op=r.op, largest=r.largest)
                    for r in before
                ],
            )
            lines.append(_("calls before it: {shown}").format(shown=shown))
        self._write(verdict, lines, origin, [*path, *before], symptom)

    def _write(
        self,
        verdict: str,
        lines: list[str],
        origin: Record | None,
        chain: Sequence[Record],
        symptom: Symptom | None,
    ) -> None:
        self.found = {
            "kind": "why-nan",
            "version": 1,
            "rank": settings.rank(),
            "verdict": verdict,
            "status": "found" if symptom is not None else "healthy",
            "symptom": symptom.text if symptom is not None else "",
            "step": symptom.step if symptom is not None else 0,
            "origin": origin.as_dict() if origin is not None else None,
            "lines": lines,
            "chain": [record.as_dict() for record in chain],
            "calls": self._calls,
            "workaround": "",
            "next": "",
        }
        if origin is not None:
            self.found["workaround"] = run_command("fallback", origin.op)
            self.found["next"] = run_command("capture", origin.op, steps=str(origin.step))
        self._save()

    def _save(self) -> None:
        try:
            self.place.write_text(json.dumps(self.found, indent=1), "utf-8")
        except OSError as error:  # a full disk loses the file, not the finding
            tool_errors.add("WhyNan", str(self.place), error)

    def finish(self, started: Started) -> None:
        self._handle.remove()
        self._undo()
        if self.found is None:
            text = _(
                "no NaN or Inf reached a loss, a gradient or the program in {calls} "
                "{calls:call|calls}"
            ).format(calls=self._calls)
            self._write(text, [], None, [], None)
        assert self.found is not None  # it was just written
        found = self.found
        origin = found["origin"] or {}
        where = _source_line(origin["site"]) if origin.get("site") else ""
        symptom = ""
        if found["symptom"]:
            symptom = _("{text}, step {step}").format(text=found["symptom"], step=found["step"])
        problem = Problem(symptom, where, tuple(found["lines"]), found["workaround"], found["next"])
        headline = _("why-nan: {verdict}").format(verdict=self.found["verdict"])
        terminal.summary(self, started, [headline, *problem.lines()])


def _from_outside(origin: Record) -> bool:
    """Whether an argument had a bad value that no observed kernel made."""
    bad = [
        maker
        for maker, size in zip(origin.makers, origin.taken, strict=False)
        if math.isnan(size) or (math.isinf(size) and not math.isnan(origin.largest))
    ]
    return bool(bad) and not any(bad)


def _largest(values: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def _shortened(path: Sequence[Record]) -> list[Record]:
    if len(path) <= 8:
        return list(path)
    return [*path[:3], *path[-4:]]


def _source_line(site: str) -> str:
    file, _, number = site.rpartition(":")
    text = linecache.getline(file, int(number)).strip()
    return f"{site}: {text}" if text else site


def _file_name() -> str:
    return f"why_nan_rank{settings.rank()}.json" if settings.world() > 1 else "why_nan.json"


def read(folder: Path) -> list[dict[str, Any]]:
    """The results of the ranks of a run, the earliest step first; incomplete files are left out."""
    found = []
    for file in sorted((folder / "why_nan").glob("why_nan*.json")):
        try:
            found.append(json.loads(file.read_text("utf-8")))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda each: (each["status"] != "found", each["step"], each["rank"]))
