"""A sample of op_db through the tools; `python -m tests.op_tools.coverage --all` is the whole."""

from __future__ import annotations

import pytest

from tests.op_tools import coverage
from tests.opinfo import core

OPS = core.load_ops()


@pytest.mark.parametrize("name", coverage.sampled(OPS, 24))
def test_operators_are_as_without_a_tool_or_as_by_hand(name: str) -> None:
    wrong = [
        case
        for dtype in core.DTYPES
        if core.supports(OPS[name], dtype)
        for case in coverage.cases(OPS[name], dtype, list(coverage.TOOLS), "dipu")
        if case.error and (case.tool, name) not in coverage.KNOWN
    ]
    assert wrong == []
