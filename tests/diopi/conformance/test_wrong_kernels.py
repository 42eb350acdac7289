"""Every op has cases that reach its kernel: a wrong one is found, whatever it is of."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from deeplink.errors import NoKernelError
from diopi.conformance import own
from diopi.conformance.cases.bound import bound, split
from diopi.conformance.cases.case import Group, parse
from diopi.conformance.cases.sample import Sample
from diopi.conformance.planning import plan, recipes
from diopi.conformance.workers.attempt import attempt
from diopi.conformance.workers.worker import run_one
from diopi.op import all_ops, get
from tests.diopi.conformance.wrong_kernels import found, found_in_all, only

# It returns nothing and writes nothing: there is nothing to be wrong.
SILENT = {"tensor_destruction_hook"}


def test_every_op_has_cases() -> None:
    tier = plan.tier_of("quick")
    without = [name for name, op in all_ops().items() if not any(plan.groups(tier, [op]))]
    assert without == []


def test_own_samples_are_of_ops() -> None:
    assert set(own.MAKERS) <= set(all_ops())
    assert set(own.MAKERS) >= own.FIXED


SPOT = """
matmul max_pool2d l1_loss sgd fused_adam apply_penalty rotary_embedding_v2 flash_attention_backward
nms roi_align rms_norm batch_norm_gather_stats_with_counts bitwise_not fft_c2c nonzero copy poisson
clip_grad_norm token_attention_inference
""".split()


@pytest.mark.parametrize("name", SPOT)
def test_a_wrong_kernel_is_found(name: str) -> None:
    assert found(name).startswith(f"{name}/")


@pytest.mark.slow  # some minutes: the cases of all ops, until one fails
def test_a_wrong_kernel_of_any_op_is_found() -> None:
    answers = found_in_all(list(all_ops()), jobs=os.cpu_count() or 1)
    lacking = {name: said for name, said in answers.items() if not said.startswith(f"{name}/")}
    assert lacking == dict.fromkeys(SILENT, "")


def test_wrong_indices_are_reported_and_not_followed() -> None:
    case = parse("max_pool2d_with_indices/float32/nn.functional.max_pool2d+samples.0/plain/plain")
    result = run_one(case, only(get(case.op), _far))
    assert result.check == "values"
    assert "leak" in result.checks
    assert "backward" not in result.checks


def _far(*args: Any, **kwargs: Any) -> Any:
    """Indices outside of the argument: torch's gradient would write there."""
    result, indices = get("max_pool2d_with_indices").meaning(*args, **kwargs)
    return result, indices + (1 << 40)


def test_an_argument_that_should_have_been_written_is_reported() -> None:
    group = Group("sgd", "float32", own.OWN)
    sample = recipes.samples(group, 1)[0]
    case, checks = next(plan.cases(group, [sample], plan.tier_of("smoke")))
    idle: Any = only(get("sgd"), lambda *args, **kwargs: None)
    result = attempt(case, recipes.callee(group), sample, idle, checks)
    assert result.check == "inputs"


def test_a_call_that_a_kernel_does_not_take_is_not_run_and_reported() -> None:
    def refuses(*args: Any, **kwargs: Any) -> Any:
        raise NoKernelError("only images")

    group = Group("sgd", "float32", own.OWN)
    sample = recipes.samples(group, 1)[0]
    case = next(plan.cases(group, [sample], plan.tier_of("smoke")))[0]
    result = attempt(case, recipes.callee(group), sample, only(get("sgd"), refuses))
    assert (result.status, result.reason) == ("skipped", "not implemented: only images")


def test_the_samples_of_a_function_that_torch_splits_become_calls_of_the_op() -> None:
    assert split(get("l1_loss"))
    assert not split(get("add"))
    x = torch.ones(2, requires_grad=True)
    samples = [Sample((x, x), {"reduction": "sum"}), Sample((x,), {"size_average": True})]
    (made,) = bound(get("l1_loss"), samples)  # the second is of another function
    assert made.args[2] == 2
    assert not made.args[0].requires_grad


def test_ops_of_other_types_than_a_tiers_are_not_left_out() -> None:
    groups = list(plan.groups(plan.tier_of("smoke"), [get("fft_c2c")]))
    assert {group.dtype for group in groups if group.source == own.OWN} == {"complex64"}
