"""A vendor's kernels on a device of its own: what they are given, and what is not theirs."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from torch.utils import _pytree as pytree

import torch_dipu  # noqa: F401
from diopi.conformance import plan, recipes
from diopi.conformance.attempt import attempt
from diopi.conformance.case import Group
from diopi.conformance.running import run
from diopi.conformance.subject import of_kernels
from diopi.implementation import Implementation
from diopi.op import get


# copies between device and host, and new tensors, are the device's own
@pytest.mark.parametrize(
    ("name", "places"),
    [("add", {"dipu"}), ("copy", {"dipu"}), ("to_copy", {"dipu"}), ("full", set())],
)
def test_kernels_see_the_tensors_of_their_device_alone(name: str, places: set[str]) -> None:
    op = get(name)
    given: set[str] = set()

    def kernel(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        given.update(t.device.type for t in leaves if isinstance(t, Tensor) and t.dim())
        return op.meaning(*args, **kwargs)

    subject = of_kernels("there", Implementation("there", {name: kernel}), "dipu")
    limits = plan.tier_of("smoke")
    for group in plan.groups(limits, [op]):
        samples = recipes.samples(group, limits.read)
        for case, checks in plan.cases(group, samples, limits):
            callee = recipes.callee(group, case.index)
            result = attempt(case, callee, samples[case.index], subject, checks)
            assert not result.bad, result
    assert given == places


def test_an_op_without_tensors_is_asked_for_its_result_on_the_device() -> None:
    group = Group("tril_indices", "int64", "own")
    callee, sample = recipes.callee(group), recipes.samples(group, 1)[0]
    assert run(callee, sample, "dipu").result.device.type == "dipu"


def test_scalars_that_the_host_reads_stay_there() -> None:
    group = Group("foreach_addcdiv_tensor", "float32", "own")
    callee, sample = recipes.callee(group), recipes.samples(group, 1)[0]
    given: list[Any] = []
    run(callee, sample, "dipu", function=lambda *args: given.extend(args))
    assert given[0][0].device.type == "dipu" and given[3].device.type == "cpu"


def test_where_an_index_stands_twice_nothing_is_judged() -> None:
    """Which of the values is kept there nobody says: no larger indices, none that repeat."""
    limits = plan.tier_of("quick")
    for group in plan.groups(limits, [get("scatter_value"), get("index_copy")]):
        if group.source.endswith("+samples"):
            samples = recipes.samples(group, limits.read)
            for case, _ in plan.cases(group, samples, limits):
                assert case.profile not in plan.GROWTHS and case.layout != "expanded", case
