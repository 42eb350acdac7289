"""Ops by other ops: what torch's own decompositions get wrong, or reach by another name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from diopi import get
from diopi.decomposition import OnKernels
from diopi.implementation import Implementation
from diopi.resolve import Resolved

KERNELS_110 = Path(__file__).with_name("kernels_110.txt").read_text().split()


@cache
def resolved() -> dict[str, Resolved]:
    """Run on correct kernels."""
    return Implementation("acme", {name: get(name).meaning for name in KERNELS_110}).resolve()


def on(name: str) -> Resolved:
    """An op by its decomposition."""
    assert resolved()[name].route == "decomposition"
    return resolved()[name]


def test_an_expanded_input_is_written_on_its_diagonal_only() -> None:
    input = torch.arange(3.0).expand(3, 3)
    result = on("diagonal_scatter")(input, torch.full((3,), 9.0))
    assert result.tolist() == [[9, 1, 2], [0, 9, 2], [0, 1, 9]]
    with pytest.raises(RuntimeError, match=r"the diagonal is \[3\], src \[2\]"):
        on("diagonal_scatter")(input, torch.ones(2))


def test_a_source_of_another_shape_is_refused() -> None:
    where, source = torch.tensor([0, 2]), torch.ones(2)
    with pytest.raises(RuntimeError, match=r"index_add: source is \[2\], not \[2, 2\]"):
        on("index_add")(torch.ones(3, 2), 0, where, source)
    assert on("index_add")(torch.ones(3), 0, where, source).tolist() == [2, 1, 2]


def test_a_nan_stays_one() -> None:
    x = torch.tensor([torch.nan, -4.0, 4.0, 1.0])
    found = on("hardswish_backward")(torch.ones(4), x)
    assert torch.equal(found[1:], torch.ops.aten.hardswish_backward(torch.ones(4), x)[1:])
    assert found[0].isnan()


def test_a_number_takes_the_overload_for_numbers() -> None:
    assert on("clamp_max")(torch.tensor([1.0, 5.0]), 2).tolist() == [1, 2]


class _Below(TorchDispatchMode):
    """Calls something where a device is called: below autograd, which splits nothing any more."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call = call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call()


def test_a_composite_op_is_split_below_autograd_too() -> None:
    x, weight = torch.randn(2, 3), torch.randn(4, 3)
    with _Below(lambda: on("linear")(x, weight)):
        result = torch.neg(x)  # whatever it is that calls
    torch.testing.assert_close(result, torch.nn.functional.linear(x, weight))


def drawn(name: str, *args: Any, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return on(name)(*args, **kwargs)


def test_a_new_tensor_is_filled_randomly() -> None:
    result = drawn("randn", [2000])
    assert torch.equal(result, drawn("randn", [2000]))
    assert abs(float(result.std()) - 1) < 0.1


def test_a_prim_that_makes_its_tensor_is_done_by_the_op_that_fills_one() -> None:
    result = drawn("normal_tensor_float", torch.full((2000,), 5.0), 2.0)
    assert abs(float(result.mean()) - 5) < 0.2
    assert abs(float(result.std()) - 2) < 0.2


def test_a_product_over_several_dimensions_is_one_over_one() -> None:
    input = torch.arange(1.0, 7).view(1, 2, 3)
    with torch.no_grad(), OnKernels("any", "acme", {"prod": get("prod").meaning}):
        result = torch.ops.prims.prod(input, (0, 2))
    assert result.tolist() == [6, 120]
