# SPDX-License-Identifier: Apache-2.0
"""A process that runs tests one by one on request: `python -m ditorch.pytorch_tests.worker`.

It loads one source, sends the list of its tests, then answers each test with its row.
"""

from __future__ import annotations

import time
import traceback
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from deeplink import vendor
from deeplink.testing import workers
from ditorch import session
from ditorch.pytorch_tests import builtin, causes, device_config, sources
from ditorch.pytorch_tests.results import Row, Test

LONGEST = 600  # maximum characters of a message
ADVICE = "To execute this test, run the following"  # torch appends it to every message

Error = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class Outcome(unittest.TestResult):
    """The outcome of one test: the worst of its subtests, with the first message."""

    def __init__(self) -> None:
        super().__init__()
        self.result, self.message, self.where = "passed", "", ""

    def addFailure(self, test: unittest.TestCase, err: Error) -> None:
        self._record_failure("failed", err)

    def addError(self, test: unittest.TestCase, err: Error) -> None:
        # torch's machinery wraps the test's exception: an incorrect result is still a failure
        wrong = err[1] is not None and isinstance(_root(err[1]), AssertionError)
        self._record_failure("failed" if wrong else "error", err)

    def addSubTest(
        self, test: unittest.TestCase, subtest: unittest.TestCase, err: Error | None
    ) -> None:
        if err is not None:
            self._record_failure("failed", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        if self.result == "passed":
            self.result, self.message = "skipped", _one_line(reason)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.result, self.message = "failed", "unexpected success"

    def _record_failure(self, result: str, err: Error) -> None:
        if self.result in ("failed", "error") or err[0] is None:
            return
        self.result, self.message = result, describe(err[1])
        self.where = _innermost(_root(err[1]).__traceback__ or err[2])


def main() -> None:
    """Load the source, and run the requested tests."""
    line, options = workers.connect()
    torch.set_num_threads(options["threads"])
    source = sources.Source(**options["source"])
    try:
        device = _load_device(source.side, options["vendor"])
        cases = sources.load(source, device)
    except unittest.SkipTest as reason:  # the file leaves this device out
        line.send((_one_line(str(reason)), "", "skipped"))
        return
    except (Exception, SystemExit) as error:  # a test file may raise anything while it is imported
        line.send((describe(error), _innermost(error.__traceback__)))
        return
    line.send(list(cases))
    while (test := line.receive()) is not workers.CLOSED:
        builtin.loosened.clear()
        builtin.loosened.update(device_config.bounds(options["tolerances"], test))
        line.send(run(test, cases.get(test), device))


def _load_device(side: str, name: str) -> str:
    """Load what the tests of a side run on; return its device type."""
    chosen = vendor.choose(name).vendor
    if side == "device":
        vendor.load_device(chosen)
    if side == "cuda" and session.activate(name).target:
        # the CUDA backend of linear algebra; without it torch's tests skip linear algebra on any
        # device
        torch.cuda.has_magma = True
    return "cpu" if side == "cpu" else chosen.device


def run(test: Test, case: unittest.TestCase | None, device: str) -> Row:
    """Run one test with the set-up of its class and module; errors become its row."""
    outcome, started = Outcome(), time.perf_counter()
    if case is None:
        outcome.result, outcome.message = "error", "the test no longer exists"
    else:
        unittest.TestSuite([case]).run(outcome)
    seconds = time.perf_counter() - started
    return row(test, outcome.result, seconds, outcome.message, outcome.where, device)


def row(test: Test, result: str, seconds: float, message: str, where: str, device: str) -> Row:
    """Create the row of a result; a failure gets its cause."""
    cause = reason = ""
    if result in ("failed", "error"):
        rule = causes.classify(message, where, device)
        cause, reason = rule.cause, rule.reason
    took = f"{seconds:.3f}"
    return Row(*test.key, result, took, cause, reason, message, where)


def describe(error: BaseException | None) -> str:
    """Format an error and its root cause in one line."""
    text = f"{type(error).__name__}: {error}"
    # torch's machinery wraps the test's exception and adds the sample
    if error is not None and (inner := _root(error)) is not error:
        text = f"{type(inner).__name__}: {inner} ({text})"
    return _one_line(text)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _one_line(text: str) -> str:
    flat = " ".join(str(text).partition(ADVICE)[0].split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 1]}…"


def _innermost(frames: TracebackType | None) -> str:
    found: Any = traceback.extract_tb(frames)
    if not found:
        return ""
    last = found[-1]
    path = Path(last.filename)
    for at, part in enumerate(path.parts):
        # the path from the package on, which is the same on every machine
        if part in ("torch", "ditorch") and at and path.parts[at - 1] in ("site-packages", "src"):
            return f"{'/'.join(path.parts[at:])}:{last.lineno}"
    name = last.filename if last.filename.startswith("<") else path.name
    return f"{name}:{last.lineno}"


if __name__ == "__main__":
    main()
