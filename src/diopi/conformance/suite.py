# SPDX-License-Identifier: Apache-2.0
"""The suite as pytest tests, without a plug-in: a vendor's own test file has two lines.

from diopi.conformance.suite import conformance
test_conformance = conformance("acme")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from deeplink.testing import device_rules
from diopi.conformance.cases.case import Result, reproduce
from diopi.conformance.command import select
from diopi.conformance.execution.subject import open_subject
from diopi.conformance.planning import plan
from diopi.conformance.results import gaps as known_gaps
from diopi.conformance.workers.pool import Pool


def conformance(
    vendor: str,
    tier: str = "quick",
    ops: Sequence[str] = (),
    gaps: Path | None = None,
    limit: float = 60.0,
) -> Callable[[str], None]:
    """Create a test, parametrized by op,
    that fails with the commands that reproduce the failures.
    """
    import pytest

    names = [op.name for op in select(ops)]

    @pytest.mark.parametrize("op", names)
    def test(op: str) -> None:
        wrong = failures(vendor, op, tier, gaps, limit)
        if wrong == []:
            return
        if wrong is None:
            pytest.skip("no cases")
        words = f"--vendor {vendor}"
        lines = [f"{r.status}: {r.message}\n  {reproduce(r.case, words)}" for r in wrong[:20]]
        pytest.fail(f"{len(wrong)} cases of {op} are wrong\n" + "\n".join(lines), pytrace=False)

    return test


def failures(
    vendor: str, op: str, tier: str, gaps: Path | None = None, limit: float = 60.0
) -> list[Result] | None:
    """Return the wrong results of an op that no gap explains; None when it has no cases."""
    subject = open_subject(vendor, runs=False)
    known = known_gaps.read(gaps or subject.gaps)
    rules = device_rules.read(gaps or subject.gaps)
    limits = plan.of_chip(plan.tier_of(tier), rules.dtypes)
    every = plan.groups(limits, select([op])) if subject.has(op) else ()
    groups = [group for group in every if not rules.skip_reason(group.op, group.dtype)]
    with Pool(vendor, tier, 1, limit) as pool:
        found: list[Result] = list(pool.run(groups, {}))
    if all(result.status == "skipped" for result in found):
        return None
    return [r for r in found if r.bad and known_gaps.find(known, r) is None]
