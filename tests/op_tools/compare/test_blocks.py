"""A block of a large call, computed alone, has the values of the large call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from op_tools import OpAutoCompare
from op_tools.compare import blocks
from op_tools.compare.blocks import Block, Compared, Span
from op_tools.core import step_counter, tool_errors
from op_tools.core.call import Call
from op_tools.core.gradients import Gradients
from tests.op_tools.compare.test_sampled_compare import CALLS

PRODUCTS = {"linear", "mm", "matmul", "bmm", "addmm", "baddbmm"}


def call(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Call:
    level = "aten" if isinstance(func, torch._ops.OpOverload) else "api"
    full = f"aten.{name}.default" if level == "aten" else f"torch.{name}"
    return Call(1, full, func, args, kwargs, level)  # type: ignore[arg-type]


def gelu(x: Tensor) -> Call:
    return call("gelu", F.gelu, (x,), {})


def differences(compared: Compared) -> tuple[int, list[blocks.Aim]]:
    numbers = [] if compared.numbers is None else compared.numbers.tolist()
    return blocks.found(compared.regions, numbers)


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
    one, choose = call(name, func, args, kwargs), Span(20_000)
    for _ in range(3):
        block = Block.of(one, choose)
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            pytest.skip("the CPU has no such kernel")
        assert block is None or differences(block.compared(result)) == (0, [])
        assert block is None or name not in PRODUCTS


def wrong_at(place: int) -> Callable[[Tensor], Tensor]:
    """Gelu with one wrong element at a place of its memory, whatever the size."""

    def func(x: Tensor) -> Tensor:
        made = F.gelu(x)
        made.view(-1)[place % made.numel()] *= 2
        return made

    return func


@pytest.mark.parametrize("place", [0, 17, 40_001, 89_999])
def test_one_wrong_element_is_found_and_placed(place: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 300) + 2
    func = wrong_at(place)
    one, choose, found = call("gelu", func, (x,), {}), Span(20_000), set()
    for _ in range(16):
        block = Block.of(one, choose)
        assert block is not None
        count, aims = differences(block.compared(func(x)))
        assert count >= 1
        found |= set(map(placed, aims))
    assert (place // 300, place % 300) in found


def placed(aim: blocks.Aim) -> tuple[int, int]:
    row, column = (int(aim.indices(300, 1, at)[0]) for at in (0, 1))
    return row, column


def test_a_nan_in_both_results_is_no_difference() -> None:
    x = torch.full((300, 300), float("nan"))
    block = Block.of(gelu(x), Span(20_000))
    assert block is not None and differences(block.compared(x)) == (0, [])


def test_a_nan_in_one_result_is_a_difference() -> None:
    x = torch.ones(300, 300)
    result = F.gelu(x)
    result[:, 5] = float("nan")
    counts = []
    for choose in [Span(89_000)] * 4:
        block = Block.of(gelu(x), choose)
        assert block is not None
        counts.append(differences(block.compared(result))[0])
    assert max(counts) == 150  # a block has half of the rows


def test_an_exchange_in_a_written_list_is_found_and_placed() -> None:
    torch.manual_seed(0)
    lists = [[torch.randn(200, 300) for _ in range(5)] for _ in range(3)]

    def func(*args: Any) -> None:
        torch._foreach_addcdiv_(*args)
        for one in args[0]:
            one.view(-1)[1000:1002] = one.view(-1)[1000:1002].flip(0)

    one, choose, found = call("_foreach_addcdiv_", func, (*lists, 0.1), {}), Span(40_000), set()
    for _ in range(40):
        block = Block.of(one, choose)
        assert block is not None
        func(*one.args)
        for aim in differences(block.compared(None))[1]:
            [member] = aim.members(5)
            found.add((member, *(int(aim.indices(300, 1, at)[0]) for at in (0, 1))))
    for member in range(5):
        assert found & {(member, 3, 100), (member, 3, 101)}


def test_a_written_list_without_a_fault_has_no_differing_element() -> None:
    lists = [[torch.randn(200, 300), torch.randn(70)] for _ in range(3)]
    one = call("_foreach_addcdiv_", torch._foreach_addcdiv_, (*lists, [0.1, 0.2]), {})
    block = Block.of(one, Span(40_000))
    assert block is not None
    torch._foreach_addcdiv_(*lists, [0.1, 0.2])
    assert differences(block.compared(None)) == (0, [])


@pytest.mark.parametrize(
    ("name", "func", "args"),
    [
        ("gelu", F.gelu, ()),
        ("softmax", torch.softmax, (-1,)),
        ("layer_norm", F.layer_norm, ((300,),)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gradient_of_a_block_is_that_of_the_call(
    name: str, func: Any, args: tuple[Any, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x = torch.randn(400, 300, dtype=dtype, requires_grad=True)
    with torch.no_grad():
        block = Block.of(call(name, func, (x, *args), {}), Span(40_000))
    assert block is not None
    result = func(x, *args)
    flown = torch.randn_like(result)
    [gradient] = torch.autograd.grad(result, x, flown)
    with torch.no_grad():
        found = block.compared_gradients(Gradients([flown], [gradient], True))
        assert found.numbers is not None and differences(found) == (0, [])
        gradient[:, 7] *= 1.1
        count, aims = differences(block.compared_gradients(Gradients([flown], [gradient], True)))
    assert count > 40
    assert all(placed(aim)[1] == 7 for aim in aims)


def test_every_element_is_checked_after_a_few_calls() -> None:
    choose, seen = Span(20_000), torch.zeros(400, 400, dtype=torch.bool)
    for _ in range(40):
        choose.next_call()
        picks = choose((400, 400), (0, 1), choose.sample)
        assert picks is not None
        rows, columns = (torch.arange(400) if own is None else own for own in picks)
        seen[rows[:, None], columns] = True
    assert bool(seen.all())


@pytest.fixture(autouse=True)
def _steps() -> Iterator[None]:
    yield
    step_counter.reset()


def planted(kernel: str, corrupt: Callable[[Tensor], None]) -> torch.library.Library:
    """Replace a kernel of the device by one that corrupts its result."""
    library = torch.library.Library("aten", "IMPL")
    own = torch.library.get_kernel(f"aten::{kernel}", "PrivateUse1")

    def run(keys: object, *args: Any, **kwargs: Any) -> Any:
        made = own.call_boxed(keys, *args, **kwargs)
        for one in [made] if isinstance(made, Tensor) else args[0]:
            corrupt(one.view(-1))
        return made

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(kernel, run, "PrivateUse1", with_keyset=True)
    return library


def double(flat: Tensor) -> None:
    flat[len(flat) // 3] *= 2


def exchange(flat: Tensor) -> None:
    place = len(flat) // 3
    flat[place : place + 2] = flat[place : place + 2].flip(0)


@pytest.mark.parametrize("elements", [400, 1500])  # judged as a whole, and by a larger sample
@pytest.mark.parametrize("kernel", ["gelu", "gelu_backward"])
def test_one_wrong_element_of_a_large_call_is_named(kernel: str, elements: int) -> None:
    """A sample of 4,096 elements would not find it in a few calls."""
    torch.manual_seed(0)
    x = (torch.randn(elements, elements) + 2).to("dipu").requires_grad_()
    library = planted(kernel, double)
    try:
        with OpAutoCompare(ops=["torch.nn.functional.gelu"]) as tool:
            for _ in range(3 * blocks.EACH):
                F.gelu(x).sum().backward()
                step_counter.step()
    finally:
        library._destroy()
    item = "output" if kernel == "gelu" else "grad"
    named = {(failure.name.rpartition(".")[2], failure.item) for failure in tool.failures}
    assert ("gelu", item) in named
    assert not tool_errors.problems("OpAutoCompare")


def test_an_exchange_in_an_operator_that_writes_is_named() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(1200, 1000).to("dipu") for _ in range(3)]
    library = planted("_foreach_mul_.Scalar", exchange)
    try:
        with OpAutoCompare() as tool:
            for _ in range(3 * blocks.EACH):
                torch._foreach_mul_(weights, 0.9)
                step_counter.step()
    finally:
        library._destroy()
    assert {failure.name for failure in tool.failures} == {"torch._foreach_mul_"}
