"""OpAutoCompare by the device's own float64: calls on long lists, and what only they do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from op_tools import OpAutoCompare, bulk, device_figures, device_lists
from op_tools.accepted import Accepted
from op_tools.call import Call
from op_tools.device_list_verdicts import Verdicts
from op_tools.device_lists import Flats, Lists
from tests.op_tools.test_autocompare import healthy, on_device, rows
from tests.op_tools.test_device_reference import alone, looks

__all__ = ["alone"]  # a fixture

COUNT = bulk.MANY + 1


def some(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [(on_device(3, at + 1).abs() + 0.5).to(dtype) for at in range(COUNT)]


CALLS: dict[str, Callable[[list[Tensor], list[Tensor]], object]] = {
    "in place": lambda x, y: torch._foreach_mul_(x, 0.9),
    "a new list": lambda x, y: torch._foreach_sqrt(torch._foreach_abs(x)),
    "several lists": lambda x, y: torch._foreach_addcdiv_(x, y, torch._foreach_exp(y), value=0.1),
    "a list twice": lambda x, y: torch._foreach_addcmul_(x, y, y, 0.5),
    "itself": lambda x, y: torch._foreach_mul_(x, x),
    "numbers for each": lambda x, y: torch._foreach_div_(x, [float(at + 1) for at in range(COUNT)]),
    "one number of each": lambda x, y: torch._foreach_norm(x),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", CALLS)
def test_a_healthy_list_is_right(alone: None, name: str, dtype: torch.dtype) -> None:
    plain, seen = (some(dtype), some(dtype)), (some(dtype), some(dtype))
    CALLS[name](*plain)
    with OpAutoCompare(reference="device", ops="torch._foreach.*") as tool:
        CALLS[name](*seen)
    assert all(map(torch.equal, plain[0], seen[0]))
    assert looks(tool)[1] == tool.compared > 0
    assert all(" to " in row["name"] for row in rows())
    healthy(tool)


@pytest.mark.parametrize(
    ("name", "kernel", "guilty"),
    [
        ("in place", "mul", "torch._foreach_mul_"),
        ("a new list", "abs", "torch._foreach_abs"),
    ],
)
def test_a_wrong_tensor_of_a_list_is_named_by_the_host(
    alone: None, name: str, kernel: str, guilty: str
) -> None:
    x = some()
    with (
        torch.dipu.quirk("bit_flip", kernel, p=1.0, seed=2),
        OpAutoCompare(reference="device", ops="torch._foreach.*") as tool,
    ):
        CALLS[name](x, x)
    assert {failure.name for failure in tool.failures} == {guilty}
    assert looks(tool)[0] == 1 and tool.failures[0].saved


def test_every_so_many_th_list_is_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("op_tools.device_kinds.EVERY", 4)
    x = some()
    with OpAutoCompare(reference="device", ops="torch._foreach.*") as tool:
        for _ in range(9):
            torch._foreach_mul_(x, 0.9)
    assert looks(tool) == (4, 5)  # the first two, the 4th and the 8th


def test_lists_that_are_in_a_graph_are_taken_as_any_other_call(alone: None) -> None:
    x = [tensor.requires_grad_() for tensor in some()]
    with OpAutoCompare(reference="device", ops="torch._foreach.*") as tool:
        sum(tensor.sum() for tensor in torch._foreach_mul(x, 2.0)).backward()  # type: ignore[union-attr]
    assert any("grad[" in row["name"] for row in rows())
    healthy(tool)


def test_lists_of_a_device_without_float64_are_for_the_host(alone: None) -> None:
    x = some()
    with torch.dipu.quirk("no_float64"), OpAutoCompare(reference="device") as tool:
        torch._foreach_mul_(x, 0.5)
    assert looks(tool)[1] == 0 and tool.compared == 1
    healthy(tool)


# Beside a device: the same on the host.


def taken(function: Callable[..., object], *args: object) -> tuple[Lists, Flats]:
    call = Call(0, f"torch.{function.__name__}", function, args, {}, device=torch.device("cpu"))
    dtype = device_lists.type_of(call)
    assert dtype is not None
    flats = Flats()
    return device_lists.taken_before(call, device_lists.kind_of(call), dtype, flats), flats


@pytest.mark.parametrize("changed", (False, True))
def test_an_argument_that_a_call_should_not_write_is_read_again(changed: bool) -> None:
    x, y = ([torch.ones(4) for _ in range(COUNT)] for _ in range(2))
    lists, flats = taken(torch._foreach_add_, x, y)
    torch._foreach_add_(x, y)
    if changed:
        y[3].data[1] = -0.0  # nobody counts it
    device_lists.taken_after(lists, None, flats, reread=True)
    assert device_lists.run(lists, flats)
    (found,) = Verdicts(Accepted()).items([lists], 1 << 20)
    assert (found is None) == changed


def test_calls_are_judged_together_or_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_figures, "PIECE", 3)
    calls = []
    for dtype, fault in ((torch.float32, 0.0), (torch.float32, 1e-3), (torch.bfloat16, 0.0)):
        x = [torch.full((4,), at + 1.0, dtype=dtype) for at in range(COUNT)]
        lists, flats = taken(torch._foreach_mul_, x, 0.5)
        torch._foreach_mul_(x, 0.5 + fault)
        device_lists.taken_after(lists, None, flats, reread=False)
        assert device_lists.run(lists, flats)
        calls.append(lists)
    for elements in (1 << 20, 4):
        made = Verdicts(Accepted()).items(calls, elements)
        assert [item is not None for item in made] == [True, False, True]


def test_memory_is_used_again() -> None:
    x = [torch.ones(4) for _ in range(COUNT)]
    lists, flats = taken(torch._foreach_neg_, x)
    (flat,) = lists.held()
    flats.give(flat)
    assert flats.copy(x, torch.float64, torch.device("cpu")) is flat
    assert flats.copy(x, torch.float64, torch.device("cpu")) is not flat


def test_a_result_of_another_type_is_for_the_host() -> None:
    x = [torch.ones(4) for _ in range(COUNT)]
    lists, flats = taken(torch._foreach_neg, x)
    device_lists.taken_after(lists, [tensor.half() for tensor in x], flats, reread=False)
    assert not device_lists.run(lists, flats)
    assert device_lists.taken_of(lists, None).result[0].dtype == torch.float16  # type: ignore[arg-type]


def test_memory_is_kept_for_the_next_calls_as_long_as_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_lists, "KEPT", 64)
    flats, cpu = Flats(), torch.device("cpu")
    two = [torch.ones(16), torch.ones(16)]
    flats.allow(1 << 10)
    one = flats.take(two, torch.float64, cpu)
    flats.give(one)
    assert flats.take(two, torch.float64, cpu) is one
    flats.give(one)
    flats.allow(0)  # there is less now than is kept
    assert flats.take(two, torch.float64, cpu) is not one
    flats.close()
    flats.allow(1 << 10)
    flats.give(one)
    assert flats.take(two, torch.float64, cpu) is not one


def test_a_call_of_lists_is_of_the_same_kind_however_it_is_taken() -> None:
    x = [torch.ones(3) for _ in range(COUNT)]
    lists, _ = taken(torch._foreach_mul, x, 2.0)
    other = device_lists.taken_of(lists, None)  # type: ignore[arg-type]
    assert other.kind == lists.kind
    widened = [t.double() for t in x]  # as a reference has them
    call = other.call.given_others((widened, 2.0), {})
    narrow = {id(t): torch.float32 for t in widened}
    again = replace(other.again, call=call, narrow=narrow)
    assert replace(other, again=again).kind == lists.kind
    assert replace(other, again=replace(again, narrow={})).kind != lists.kind
