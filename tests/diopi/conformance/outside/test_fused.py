"""Kernels of the fused operators: matched by name and arguments, judged by their hard cases."""

from __future__ import annotations

from pathlib import Path

from diopi.conformance.cases.case import parse
from diopi.conformance.execution.subject import open_kernels
from diopi.conformance.outside.spec import Spec
from diopi.conformance.planning import guests, plan
from diopi.conformance.workers.worker import run_one

KERNELS = """
def silu_and_mul_kernel(x):
    gate, up = x.double().chunk(2, -1)
    return (gate / (1 + (-gate).exp()) * up).to(x.dtype)

def norm(x, weight, eps):
    return x * weight

def gelu_and_mul(x):
    return x
"""


def test_functions_are_matched_with_fused_operators_and_judged(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(KERNELS)
    spec = Spec(str(file), "cpu", maps=(("norm", "dlinfer.rms_norm"),))
    subject = guests.adopt(open_kernels(spec))
    assert sorted(subject.fused) == ["dlinfer.rms_norm", "dlinfer.silu_and_mul"]
    assert subject.matching is not None
    (left,) = subject.matching.unmatched
    assert left.reason.startswith("dlinfer.gelu_and_mul has the arguments x, approximate")

    groups = guests.groups(plan.tier_of("smoke"), subject, (), ())
    assert {group.op for group in groups} == set(subject.fused)
    right = run_one(parse("dlinfer.silu_and_mul/float32/dlinfer.0/plain/plain"), subject)
    wrong = run_one(parse("dlinfer.rms_norm/float32/dlinfer.0/plain/plain"), subject)
    assert (right.status, wrong.status) == ("passed", "failed"), (right, wrong)
