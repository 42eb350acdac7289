"""op_db through capture, store, load, replay and compare: a sample, and (slow) the whole."""

from __future__ import annotations

import pytest

from tests.op_tools import capture_coverage
from tests.opinfo import core

OPS = core.load_ops()


@pytest.mark.parametrize("name", capture_coverage.sampled(OPS))
def test_captured_operators_come_back(name: str) -> None:
    wrong = [
        result
        for dtype in core.DTYPES
        if core.supports(OPS[name], dtype)
        for result in capture_coverage.results(OPS[name], dtype, "dipu", count=1)
        if not result.good and name not in capture_coverage.KNOWN
    ]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["packed", "folders"])
def test_all_captured_operators_come_back(form: str) -> None:
    found = list(capture_coverage.everything(OPS, sorted(OPS), "dipu", form))
    wrong = [result for result in found if not result.good]
    assert len(found) > 3000
    assert [result for result in wrong if result.op not in capture_coverage.KNOWN] == []
    assert {result.op for result in wrong} == set(capture_coverage.KNOWN)  # none of them is fixed
