# SPDX-License-Identifier: Apache-2.0
"""Runs of a program under a plan: of a command in a process, or of a function."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from deeplink import settings
from deeplink.i18n import _
from deeplink.process import children
from deeplink.run.fork_server import Run, Warm
from deeplink.run.loss_log import PATTERN, Loss, observed, printed
from op_tools.compare.tool import OpAutoCompare
from op_tools.core.call import Level
from op_tools.diagnosis.bisect.health_checks import Seen
from op_tools.diagnosis.bisect.reroute_tool import OpReroute, Plan, counted

NOT_OURS = (
    "OP_TOOLS_RUN", "OP_TOOLS_STEPS", "OP_TOOLS_MODULES", "OP_TOOLS_SITES", "OP_TOOLS_FIRST",
    "OP_TOOLS_EVERY", "OP_TOOLS_LEVEL", "OP_CAPTURE_FIRST",
)  # fmt: skip
LOOK = 0.25  # seconds between two checks of the losses of a run


@dataclass(frozen=True)
class Until:
    """The condition, by the losses so far, that ends a run early."""

    told: Callable[[Sequence[Loss]], bool]
    text: str  # identifies the condition: a shortened run is reused for the same one only


class Runner(Protocol):
    """Runs the program once; `plan` None: unchanged, without a tool. `until` may
    end the run early.
    """

    line: list[str]

    def __call__(
        self, plan: Plan | None, number: int, suspects: bool = False, until: Until | None = None
    ) -> Seen: ...


@dataclass
class Command:
    """A command line; its output goes to a file."""

    line: list[str]
    folder: Path
    pattern: str = PATTERN
    timeout: float | None = None
    resume: bool = False  # reuse an earlier run with the same settings
    fresh: bool = True  # a new Python for each run, not a fork of one that has imported torch
    _warm: Warm | None = field(default=None, init=False)

    def __call__(
        self, plan: Plan | None, number: int, suspects: bool = False, until: Until | None = None
    ) -> Seen:
        values: dict[str, str] = {}
        folder = self.folder / f"run-{number:02}"
        if plan is not None:
            plan = replace(plan, counts=str(folder))
            values = {"OP_TOOLS_RUN": "bisect", "OP_BISECT_PLAN": str(folder / "plan.json")}
        if suspects and plan is not None:
            values |= comparing(plan.level, "signature", folder)
            values["OP_TOOLS_RUN"] = "bisect,autocompare"
        seen = self.start(values, number, None if plan is None else asdict(plan), until)
        found = counted(folder) if plan is not None else None
        accused = accused_in(folder) if suspects else ()
        return replace(seen, counts=found, suspects=accused)

    def start(
        self,
        values: Mapping[str, str],
        number: int,
        plan: dict[str, Any] | None = None,
        until: Until | None = None,
    ) -> Seen:
        """Run the command with settings until it ends or its time is over."""
        folder = self.folder / f"run-{number:02}"
        log, told, done = folder / "log", folder / "losses", folder / "done.json"
        question = until.text if until is not None else ""
        asked = json.loads(json.dumps([self.line, dict(values), plan, question]))
        ended = _ended(done, asked) if self.resume else None
        if ended is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
            begun = time.monotonic()
            environment = settings.environment(
                {"DEEPLINK_LOSS_FILE": str(told), **values, **_surroundings()}, NOT_OURS
            )
            with log.open("wb") as out:
                exit, problem = self._waited(out.fileno(), environment, until, (log, told))
            ended = exit, problem, time.monotonic() - begun
            done.write_text(json.dumps({"asked": asked, "ended": ended}), encoding="utf-8")
        return Seen(self._losses(log, told), *ended[:2], log, seconds=ended[2])

    def _losses(self, log: Path, told: Path, whole: bool = True) -> list[Loss]:
        """The losses that were observed or printed; not `whole`: without the last,
        incomplete line.
        """
        text = log.read_text(encoding="utf-8", errors="replace")
        return observed(told) or printed(
            text if whole else text[: text.rfind("\n") + 1], self.pattern
        )

    def _waited(
        self,
        out: int,
        environment: Mapping[str, str],
        until: Until | None,
        files: tuple[Path, Path],
    ) -> tuple[int, str]:
        """How the command ended, or that it was ended early."""
        try:
            child = self._started(out, environment)
        except OSError as error:
            return 127, _("it cannot be started: {strerror}").format(
                strerror=error.strerror or error
            )
        begun, pause = time.monotonic(), LOOK
        try:
            while True:
                left = math.inf if self.timeout is None else begun + self.timeout - time.monotonic()
                try:
                    exit = child.wait(max(0.0, min(left, pause)))
                    break
                except subprocess.TimeoutExpired:
                    if left <= pause:
                        _end(child)
                        return 124, _("it was stopped after {timeout:.0f} s").format(
                            timeout=self.timeout
                        )
                looked = time.monotonic()
                if until is not None and until.told(self._losses(*files, whole=False)):
                    _end(child)
                    return 0, ""
                pause = max(LOOK, 20 * (time.monotonic() - looked))
        except BaseException:  # Ctrl-C: nothing of it is left running
            _end(child)
            raise
        if exit < 0:
            return exit, _("it was ended by {name}").format(name=signal.Signals(-exit).name)
        return exit, ""

    def _started(self, out: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | Run:
        if not self.fresh and self._warm is None:
            self._warm = Warm.of(self.line, settings.environment(_surroundings(), NOT_OURS))
            self.fresh = self._warm is None
        if self._warm is not None:
            with contextlib.suppress(ConnectionError):
                return self._warm.start(self.line, out, environment)
            self._warm, self.fresh = None, True
        return children.start(
            self.line, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            env=dict(environment), start_new_session=True,
        )  # fmt: skip

    def close(self) -> None:
        """End the runs."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None


def _surroundings() -> dict[str, str]:
    """The environment of every run: unbuffered output, and the device at hand under CUDA's name."""
    active = {} if settings.DITORCH.is_set() else {settings.DITORCH.name: "1"}
    return {"PYTHONUNBUFFERED": "1", **active}


def _ended(done: Path, asked: Any) -> tuple[int, str, float] | None:
    """How an earlier run with the same settings ended; None: there is none."""
    try:
        found = json.loads(done.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return tuple(found["ended"]) if found["asked"] == asked else None


def _end(child: subprocess.Popen[bytes] | Run) -> None:
    """End the child and its processes, which are a session."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, kind)
        try:
            child.wait(5)
            return
        except subprocess.TimeoutExpired:
            continue


def comparing(level: str, mode: str, folder: Path) -> dict[str, str]:
    """The settings of OpAutoCompare in a run."""
    return {
        "OP_AUTOCOMPARE_MODE": mode,
        "OP_TOOLS_LEVEL": level,
        "OP_TOOLS_RESULTS": str(folder / "compared"),
    }


def accused_in(folder: Path) -> tuple[str, ...]:
    """The operators that OpAutoCompare found wrong in a run, the most frequent first."""
    found: Counter[str] = Counter()
    for file in (folder / "compared").glob("op_autocompare_result/*.csv"):
        with file.open(encoding="utf-8", newline="") as rows:
            for row in csv.DictReader(rows):
                if row.get("allclose") != "True" and row.get("name"):
                    found[row["name"].split()[0]] += 1
    return tuple(name for name, _ in found.most_common())


def evidence_in(folder: Path, op: str) -> list[str]:
    """The records of OpAutoCompare on an operator's wrong calls in the runs below a folder."""
    for file in sorted(folder.glob("run-*/compared/op_autocompare_result/*.problems.json")):
        found = json.loads(file.read_text("utf-8")).get(op, {}).get("evidence", [])
        if found:
            return [str(text) for text in found]
    return []


@dataclass
class Function:
    """A function of this process that returns its losses: faster than a command, if it can be
    called repeatedly.
    """

    call: Callable[[], Sequence[float]]
    line: list[str]

    def __call__(
        self, plan: Plan | None, number: int, suspects: bool = False, until: Until | None = None
    ) -> Seen:
        begun = time.monotonic()
        reroute = OpReroute(plan) if plan is not None else None
        compare = None
        problem, losses = "", []
        try:
            if reroute is not None:
                reroute.start()
            if suspects and plan is not None:
                level: Level = "api" if plan.level == "api" else "aten"
                compare = OpAutoCompare(mode="signature", level=level).start()
            losses = [Loss(float(value)) for value in self.call()]
        except Exception as error:  # an error of the program is the outcome of the run
            problem = f"{type(error).__name__}: {error}"
        finally:
            for tool in (compare, reroute):
                if tool is not None:
                    tool.stop()
        accused = Counter(f.name for f in compare.failures) if compare is not None else Counter()
        counts = reroute.counts if reroute is not None else None
        names = tuple(name for name, _ in accused.most_common())
        return Seen(losses, 1 if problem else 0, problem, None, counts, names,
                    time.monotonic() - begun)  # fmt: skip
