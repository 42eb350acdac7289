"""A block of a large call, computed alone, has the values of the large call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from op_tools import OpAutoCompare
from op_tools.compare import device_checks as blocks
from op_tools.compare.device_checks import BLOCK_EACH, Block
from op_tools.core.call import Call
from tests.op_tools.compare.test_sampled_compare import CALLS

PRODUCTS = {"linear", "mm", "matmul", "bmm", "addmm", "baddbmm"}


def call(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Call:
    level = "aten" if isinstance(func, torch._ops.OpOverload) else "api"
    full = f"aten.{name}.default" if level == "aten" else f"torch.{name}"
    return Call(1, full, func, args, kwargs, level)  # type: ignore[arg-type]


def chooser(elements: int = 20_000) -> Block:
    return Block(elements)


@pytest.mark.parametrize("at", range(len(CALLS)), ids=lambda at: f"{at}-{CALLS[at][0]}")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_correct_call_has_no_differing_element(at: int, dtype: torch.dtype) -> None:
    name, func, args, kwargs = CALLS[at]
    if kwargs.get("inplace"):
        args = tuple(x.clone() if isinstance(x, Tensor) else x for x in args)

    def cast(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(cast, value))
        return (
            value.to(dtype)
            if isinstance(value, Tensor) and value.dtype.is_floating_point
            else value
        )

    if dtype != torch.float64:
        if any(arg is torch.float64 for arg in args):
            pytest.skip("the call names a type")
        args, kwargs = cast(args), {key: cast(value) for key, value in kwargs.items()}
    one, choose = call(name, func, args, kwargs), chooser()
    try:
        result = func(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        pytest.skip("the CPU has no such kernel")
    for _ in range(3):
        count = blocks.differing(one, result, choose)
        assert count is None or int(count) == 0
    if name in PRODUCTS:
        assert count is None


def wrong_at(place: int) -> Callable[[Tensor], Tensor]:
    """Gelu with one wrong element at a place of its memory, whatever the size."""

    def func(x: Tensor) -> Tensor:
        made = torch.nn.functional.gelu(x)
        made.view(-1)[place % made.numel()] *= 2
        return made

    return func


@pytest.mark.parametrize("place", [0, 17, 40_001, 89_999])
def test_one_wrong_element_is_found_and_placed(place: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 300) + 2
    func = wrong_at(place)
    result = func(x)
    one, choose = call("gelu", func, (x,), {}), chooser()
    found = [blocks.differing(one, result, choose) for _ in range(2)]
    assert all(count is not None and int(count) >= 1 for count in found)
    aims = blocks.places(one, result, choose)
    assert (place // 300, place % 300) in map(placed, aims)


def placed(aim: blocks.Aim) -> tuple[int, int]:
    row, column = (int(aim.indices(300, 1, at)[0]) for at in (0, 1))
    return row, column


def test_a_nan_in_both_results_is_no_difference() -> None:
    x = torch.full((300, 300), float("nan"))
    count = blocks.differing(call("gelu", torch.nn.functional.gelu, (x,), {}), x, chooser())
    assert count is not None and int(count) == 0


def test_a_nan_in_one_result_is_a_difference() -> None:
    x = torch.ones(300, 300)
    result = torch.nn.functional.gelu(x)
    result[5] = float("nan")
    count = blocks.differing(
        call("gelu", torch.nn.functional.gelu, (x,), {}), result, Block(89_000)
    )
    again = blocks.differing(
        call("gelu", torch.nn.functional.gelu, (x,), {}), result, Block(89_000)
    )
    assert count is not None and again is not None


def test_every_element_is_checked_after_a_few_calls() -> None:
    choose, seen = Block(20_000), torch.zeros(400, 400, dtype=torch.bool)
    for _ in range(40):
        choose.next_call()
        picks = choose((400, 400), (0, 1), choose.sample)
        assert picks is not None
        rows, columns = (torch.arange(400) if own is None else own for own in picks)
        seen[rows[:, None], columns] = True
    assert bool(seen.all())


@pytest.mark.parametrize("elements", [400, 1500])  # judged as a whole, and by a larger sample
def test_one_wrong_element_of_a_large_call_is_named(elements: int) -> None:
    """A sample of 4,096 elements would not find it in a few calls."""
    torch.manual_seed(0)
    x = (torch.randn(elements, elements) + 2).to("dipu")
    library = torch.library.Library("aten", "IMPL")
    own = torch.library.get_kernel("aten::gelu", "PrivateUse1")

    def run(keys: object, *args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = own.call_boxed(keys, *args, **kwargs)
        made.view(-1)[made.numel() // 3] *= 2
        return made

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("gelu", run, "PrivateUse1", with_keyset=True)
        with OpAutoCompare(ops=["torch.nn.functional.gelu"]) as tool:
            for _ in range(2 * BLOCK_EACH):
                torch.nn.functional.gelu(x)
    finally:
        library._destroy()
    assert {failure.name for failure in tool.failures} == {"torch.nn.functional.gelu"}
