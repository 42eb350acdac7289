"""Ops of other layers in the suite of the interface."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeplink.console import console
from diopi.conformance.cases.case import Group, parse
from diopi.conformance.command import Request, run
from diopi.conformance.execution.subject import Subject, open_subject
from diopi.conformance.planning import guests, plan
from diopi.conformance.planning.guests import Trial
from diopi.conformance.workers.worker import run_one


class Wrong:
    """A guest of three cases: one right, one wrong, one that raises."""

    def ops(self) -> list[str]:
        return ["shop.cut"]

    def dtypes(self, vendor: str, device: str) -> dict[str, list[str]]:
        return {"shop.cut": ["float32", "bfloat16"]} if vendor == "acme" else {}

    def trials(self, op: str, dtype: str, vendor: str, device: str) -> list[Trial]:
        def refuse() -> str:
            raise RuntimeError("too short")

        return [("long", lambda: ""), ("odd", lambda: "half an inch off"), ("none", refuse)]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setattr(guests, "guests", lambda: {"shop": Wrong()})
    return Subject("acme", "cpu")


def test_its_groups_go_by_vendor_pattern_dtype_and_tier(shop: Subject) -> None:
    def found(
        tier: str, subject: Subject, *patterns: str, dtypes: tuple[str, ...] = ()
    ) -> list[str]:
        return [str(g) for g in guests.groups(plan.tier_of(tier), subject, patterns, dtypes)]

    both = ["shop.cut/float32/shop", "shop.cut/bfloat16/shop"]
    assert found("full", shop) == found("quick", shop, "shop.*") == both
    assert found("smoke", shop) == found("quick", shop, dtypes=("float32",)) == both[:1]
    assert found("quick", shop, "add") == found("model", shop) == []
    assert found("quick", Subject("cpu", "cpu")) == found("quick", Subject("a.b:c", "cpu")) == []


def test_what_is_wrong_or_raises_is_reported_and_the_rest_goes_on(shop: Subject) -> None:
    group = Group("shop.cut", "float32", "shop")
    results = [attempt() for _, attempt in guests.run(group, shop)]
    assert [(r.status, r.grade) for r in results] == [
        ("passed", "A"),
        ("failed", "F"),
        ("failed", "F"),
    ]
    assert results[1].message == "meaning: odd: half an inch off"
    assert results[2].message == "meaning: none: RuntimeError: too short"
    assert run_one(parse(results[1].case), shop).message == results[1].message
    assert run_one(parse("shop.cut/float32/shop.7/plain/plain"), shop).status == "skipped"


def test_fused_ops_run_beside_those_of_the_interface(tmp_path: Path) -> None:
    request = Request("cpu", "smoke", ("relu", "dlinfer.*and_mul"), jobs=1, folder=tmp_path)
    summary = run(request, console())
    assert summary.passed
    assert {cell.op: cell.bad for cell in summary.cells} == {
        "relu": 0, "dlinfer.silu_and_mul": 0, "dlinfer.gelu_and_mul": 0,
    }  # fmt: skip
    assert (
        run_one(parse("dlinfer.rms_norm/bfloat16/dlinfer.0/plain/plain"), open_subject("cpu")).grade
        == "A"
    )
