"""Gradients of calls that their device judges: gathered natively, or by Python's hooks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from op_tools import OpAutoCompare, device_gradients, device_reference, kernels
from tests.op_tools.test_autocompare import healthy, leaf, on_device, rows
from tests.op_tools.test_device_reference import alone, looks

__all__ = ["alone"]


@pytest.fixture(params=["natively", "by Python"])
def way(
    request: pytest.FixtureRequest, alone: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    if request.param == "by Python":
        monkeypatch.setenv("OP_TOOLS_NATIVE", "0")
    elif kernels.helper() is None:
        pytest.skip("there is no native part")
    kernels.helper.cache_clear()
    yield request.param
    monkeypatch.undo()
    kernels.helper.cache_clear()


def gradients() -> list[str]:
    return sorted(row["name"].split(".")[-1] for row in rows() if "grad" in row["name"])


def test_each_argument_has_its_gradient_and_one_given_twice_their_sum(way: str) -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    with OpAutoCompare(reference="device") as tool:
        ((x @ w) * x + torch.mul(w, w)).sum().backward()
    healthy(tool)
    found = gradients()
    assert found.count("mul grad[0]") == 2 and found.count("matmul grad[1]") == 1


def test_a_wrong_gradient_is_named(way: str) -> None:
    x = leaf(8, 8)
    with OpAutoCompare(ops=".*exp", reference="device") as tool:
        out = x.exp().sum()
        with torch.dipu.quirk("bit_flip", "mul", p=1.0, seed=2):
            out.backward()
    assert [(f.name.split(".")[-1], f.item) for f in tool.failures] == [("exp", "grad")]


def test_a_pass_through_a_part_of_a_call_is_said(way: str) -> None:
    x, w = leaf(2, 6, 4), leaf(3, 4)
    with OpAutoCompare(ops=".*linear", reference="device") as tool:
        torch.autograd.grad(functional.linear(x, w).sum(), [x])
    assert tool.failures == []
    assert {reason for reason, _ in tool.skipped} == {device_gradients.PART}


def test_a_second_pass_through_the_same_graph_is_not_compared_again(way: str) -> None:
    x = leaf(4, 4)
    with OpAutoCompare(ops=".*exp", reference="device") as tool:
        out = x.exp()
        out.sum().backward(retain_graph=True)
        out.mul(2).sum().backward()
    healthy(tool)
    assert gradients() == ["exp grad"]


def test_a_pass_after_the_end_is_judged_at_once(way: str) -> None:
    x = leaf(4, 4)
    with OpAutoCompare(ops=".*exp", reference="device") as tool:
        out = x.exp().sum()
    assert gradients() == []
    out.backward()
    healthy(tool)
    assert gradients() == ["exp grad"]


def test_too_many_gradients_are_judged_within_the_pass(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_reference, "WAITING", 4)
    x = leaf(4, 4)
    with OpAutoCompare(ops=".*exp", reference="device") as tool:
        out = x
        for _ in range(3):  # their results are too few to be judged
            out = (0.1 * out).exp()
        for _ in range(3):
            out = out.exp().reciprocal()
        before = looks(tool)[1]
        out.sum().backward()
        assert looks(tool)[1] > before
    healthy(tool)
    assert gradients() == ["exp grad"] * 6


def test_what_flows_is_taken_before_the_program_changes_it(way: str) -> None:
    x = leaf(4, 4)
    with OpAutoCompare(ops=".*exp", reference="device") as tool:
        x.exp().sum().backward()
        assert x.grad is not None
        x.grad.zero_()
    healthy(tool)
    assert gradients() == ["exp grad"]


def test_a_graph_that_nobody_goes_back_through_holds_nothing(way: str) -> None:
    with OpAutoCompare(ops=".*exp", reference="device") as tool:
        x = on_device(4, 4).requires_grad_()
        gone = weakref.ref(x)
        out = x.exp()
        del x, out
        gc.collect()
        assert gone() is None
    healthy(tool)
