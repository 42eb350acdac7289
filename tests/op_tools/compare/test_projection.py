"""The random projection of products: faults are found, and no error-free product is reported."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink.precision import Precision, Sums
from op_tools.compare import projection
from op_tools.compare.projection import Finding
from op_tools.core.call import Call
from tests.op_tools import small

HALVES = (torch.bfloat16, torch.float16)
TYPES = (torch.float32, *HALVES)
ROWS, INNER, COLUMNS = 600, 512, 768


def verdict(operator: str, result: Any, *args: Any, **kwargs: Any) -> Finding | None:
    """What the check finds in a result of a call; the call has to be covered."""
    level = "aten" if operator.startswith("aten") else "api"
    call = Call(1, operator, lambda: None, args, kwargs, level, device=args[0].device)
    pending = projection.start(call, result)
    assert pending is not None
    return pending.verdict()


def factors(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (
        torch.randn(ROWS, INNER).to(small.CARD, dtype),
        torch.randn(INNER, COLUMNS).to(small.CARD, dtype),
    )


def tile_of_zeros(a: Tensor, b: Tensor, c: Tensor) -> None:
    c[256:288, 128:160] = 0


def largest_doubled(a: Tensor, b: Tensor, c: Tensor) -> None:
    place = c.abs().argmax()
    c.view(-1)[place] *= 2


def sign_flipped(a: Tensor, b: Tensor, c: Tensor) -> None:
    place = c.abs().argmax()
    c.view(-1)[place] *= -1


def neighbours_exchanged(a: Tensor, b: Tensor, c: Tensor) -> None:
    place = int(c.view(-1)[:-1].abs().argmax()) // 2 * 2
    c.view(-1)[place : place + 2] = c.view(-1)[place : place + 2].flip(0)


def row_of_another(a: Tensor, b: Tensor, c: Tensor) -> None:
    c[100] = c[101]


def last_of_k_dropped(a: Tensor, b: Tensor, c: Tensor) -> None:
    c.copy_(a[:, :-1] @ b[:-1])


def too_large(a: Tensor, b: Tensor, c: Tensor) -> None:
    c.copy_(c.float() * 1.005)


def narrow_partial_sums(a: Tensor, b: Tensor, c: Tensor) -> None:
    c.zero_()
    for at in range(0, INNER, INNER // 8):
        part = (a[:, at : at + INNER // 8] @ b[at : at + INNER // 8]).bfloat16()
        c.copy_((c + part).bfloat16())


def strides_ignored(a: Tensor, b: Tensor, c: Tensor) -> None:
    c.copy_(a.t().contiguous().view(ROWS, INNER) @ b)


def tail_dropped(a: Tensor, b: Tensor, c: Tensor) -> None:
    c[-1, -32:] = 0


def not_a_number(a: Tensor, b: Tensor, c: Tensor) -> None:
    c[3, 3] = float("nan")


def stale(a: Tensor, b: Tensor, c: Tensor) -> None:
    c.copy_(a.roll(1, 0) @ b)


FAULTS = (
    tile_of_zeros,
    largest_doubled,
    sign_flipped,
    neighbours_exchanged,
    row_of_another,
    last_of_k_dropped,
    too_large,
    narrow_partial_sums,
    strides_ignored,
    tail_dropped,
    not_a_number,
    stale,
)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_product_is_found(fault: Callable[..., None], dtype: torch.dtype) -> None:
    a, b = factors(dtype)
    c = a @ b
    assert verdict("aten.mm.default", c, a, b) is None
    fault(a, b, c)
    assert verdict("aten.mm.default", c, a, b) is not None


@pytest.mark.parametrize(
    ("operator", "function", "shapes"),
    [
        ("torch.mm", torch.mm, [(40, 60), (60, 50)]),
        ("torch.matmul", torch.matmul, [(3, 40, 60), (60, 50)]),
        ("torch.matmul", torch.matmul, [(60,), (60, 50)]),
        ("torch.matmul", torch.matmul, [(2, 3, 40, 60), (2, 3, 60, 50)]),
        ("torch.Tensor.__matmul__", torch.Tensor.__matmul__, [(40, 60), (60,)]),
        ("torch.nn.functional.linear", F.linear, [(3, 40, 60), (50, 60)]),
        ("torch.nn.functional.linear", F.linear, [(40, 60), (50, 60), (50,)]),
        ("torch.addmm", torch.addmm, [(50,), (40, 60), (60, 50)]),
        ("torch.addmm", torch.addmm, [(40, 1), (40, 60), (60, 50)]),
        ("torch.bmm", torch.bmm, [(3, 40, 60), (3, 60, 50)]),
        ("torch.baddbmm", torch.baddbmm, [(3, 40, 50), (3, 40, 60), (3, 60, 50)]),
        ("torch.nn.functional.conv1d", F.conv1d, [(2, 8, 40), (32, 8, 3), (32,)]),
        ("torch.nn.functional.conv2d", F.conv2d, [(2, 8, 20, 20), (32, 8, 3, 3)]),
        ("torch.nn.functional.conv3d", F.conv3d, [(2, 3, 9, 9, 9), (16, 3, 3, 3, 3)]),
    ],
)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_product_is_covered(
    operator: str,
    function: Callable[..., Tensor],
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype,
) -> None:
    given = [torch.randn(shape).to(small.CARD, dtype) for shape in shapes]
    result = function(*given)
    assert verdict(operator, result, *given) is None
    result.view(-1)[result.abs().argmax()] *= -1
    assert verdict(operator, result, *given) is not None


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_a_convolution_are_checked(groups: int, dtype: torch.dtype) -> None:
    image = torch.randn(2, 32, 11, 11).to(small.CARD, dtype)
    filters = torch.randn(64, 32 // groups, 3, 3).to(small.CARD, dtype)
    rest = [64], [2, 2], [1, 1], [1, 1], False, [0, 0], groups, [True, True, True]
    flown = torch.randn(2, 64, 6, 6).to(small.CARD, dtype)
    given = flown, image, filters, *rest
    made = torch.ops.aten.convolution_backward(*given)
    name = "aten.convolution_backward.default"
    assert verdict(name, made, *given) is None
    for at, label in ((0, "gradient of the input"), (1, "gradient of the weight")):
        wrong = list(made)
        wrong[at] = made[at].contiguous().clone()
        wrong[at].view(-1)[wrong[at].abs().argmax()] *= -1
        found = verdict(name, wrong, *given)
        assert found is not None
        assert found.label == label


def data(chance: random.Random, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """A factor: random, constant, smooth, of very different magnitudes, sparse, tiny, …"""
    x = torch.randn(rows, columns)
    smooth = torch.sin(torch.arange(rows) * 6.28 / rows)[:, None].expand(rows, columns)
    kinds: list[Callable[[], Tensor]] = [
        lambda: x,
        lambda: x.abs(),
        lambda: torch.full_like(x, chance.choice([1.0, 0.1, 3.3, 0.007])),
        lambda: smooth * 1.1,
        lambda: x * 10.0 ** torch.randint(-4, 5, (rows, 1)),
        lambda: x * 10.0 ** torch.randint(-4, 5, (1, columns)),
        lambda: x * (torch.rand_like(x) < 0.05),
        lambda: torch.zeros_like(x),
        lambda: x * 1e-18,
        lambda: x * 2.0**-20 if dtype is torch.float16 else x * 1e-39,
        lambda: x.sign(),
        lambda: torch.cat([x[:, : (columns + 1) // 2], -x[:, : columns // 2]], 1),
    ]
    made = chance.choice(kinds)().to(small.CARD, dtype)
    if chance.random() < 0.4:
        return made.t().contiguous().t()
    if chance.random() < 0.3:
        return torch.stack([made, made], -1).flatten(1)[:, ::2]
    return made.contiguous()


@pytest.mark.parametrize("dtype", [*TYPES, torch.float64], ids=str)
def test_no_product_of_a_correct_device_is_reported(dtype: torch.dtype) -> None:
    chance = random.Random(7)
    sizes = [1, 2, 3, 7, 16, 33, 64, 100, 257]
    for at in range(600):
        rows, inner, columns = (chance.choice(sizes) for _ in range(3))
        if at % 100 == 0:
            inner = 65_536
        a, b = data(chance, rows, inner, dtype), data(chance, inner, columns, dtype)
        if at % 3 == 0:
            assert verdict("torch.mm", a @ b, a, b) is None, (at, rows, inner, columns)
        elif at % 3 == 1:
            bias = torch.randn(columns).to(small.CARD, dtype) * 10.0 ** chance.choice([-2, 0, 2])
            result = F.linear(a, b.t(), bias)
            found = verdict("torch.nn.functional.linear", result, a, b.t(), bias)
            assert found is None, (at, rows, inner, columns)
        else:
            many = torch.stack([a, a * 0]), torch.stack([b, b])
            assert verdict("torch.bmm", torch.bmm(*many), *many) is None, (at, rows, inner, columns)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_product_under_autocast_has_rounded_factors(dtype: torch.dtype) -> None:
    x, weight, bias = (
        torch.randn(shape).to(small.CARD) for shape in [(200, 300), (100, 300), (100,)]
    )
    with torch.autocast(small.CARD, dtype=dtype):
        result = F.linear(x, weight, bias)
        assert result.dtype is dtype
        assert verdict("torch.nn.functional.linear", result, x, weight, bias) is None
        assert verdict("torch.nn.functional.linear", result * 1.02, x, weight, bias) is not None


def test_tf32_is_accepted_where_the_program_allows_it() -> None:
    if small.CARD != "dipu":
        pytest.skip("the quirk is the reference device's")
    a, b = factors(torch.float32)
    with torch.dipu.quirk("tf32"):
        c = a @ b
    assert verdict("torch.mm", c, a, b) is not None
    torch.set_float32_matmul_precision("high")
    try:
        assert verdict("torch.mm", c, a, b) is None
        c[256:288, 128:160] = 0
        assert verdict("torch.mm", c, a, b) is not None
    finally:
        torch.set_float32_matmul_precision("highest")


def test_narrow_partial_sums_are_accepted_where_the_program_allows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = (torch.randn(1024, 1024).to(small.CARD, torch.bfloat16) for _ in range(2))
    c = torch.zeros_like(a)
    for part in range(0, 1024, 128):
        c = c + a[:, part : part + 128] @ b[part : part + 128]
    assert verdict("torch.mm", c, a, b) is not None
    allowed = Precision(sums=(Sums("bfloat16", "a setting"),))
    monkeypatch.setattr(projection.precision, "now", lambda call: allowed)
    assert verdict("torch.mm", c, a, b) is None
    c[256:288, 128:160] = 0
    assert verdict("torch.mm", c, a, b) is not None


def test_nan_and_inf_of_factors_are_no_finding() -> None:
    a, b = factors(torch.float32)
    a[3, 5], b[7, 8] = float("nan"), float("inf")
    assert verdict("torch.mm", a @ b, a, b) is None


def test_an_overflow_of_float16_is_no_finding() -> None:
    a, b = (torch.full((300, 300), 100.0).to(small.CARD, torch.float16) for _ in range(2))
    assert (a @ b).isinf().all()
    assert verdict("torch.mm", a @ b, a, b) is None


def test_the_random_state_of_the_program_stays() -> None:
    a, b = factors(torch.float32)
    before = torch.get_rng_state(), torch.get_device_module(small.CARD).get_rng_state()
    assert verdict("torch.mm", a @ b, a, b) is None
    after = torch.get_rng_state(), torch.get_device_module(small.CARD).get_rng_state()
    assert all(map(torch.equal, before, after))


def test_the_check_waits_for_nothing() -> None:
    if small.CARD != "dipu":
        pytest.skip("the quirk is the reference device's")
    a, b = factors(torch.bfloat16)
    c = a @ b
    call = Call(1, "torch.mm", torch.mm, (a, b), {}, device=a.device)
    with torch.dipu.quirk("latency", "mm", ms=300):
        pending = projection.start(call, c)
        assert pending is not None
        assert not pending.done()
        assert pending.verdict() is None
        assert pending.done()


def test_what_is_no_product_is_not_covered() -> None:
    a = factors(torch.float32)[0]
    call = Call(1, "torch.add", torch.add, (a, a), {}, device=a.device)
    assert projection.start(call, a + a) is None
    ints = torch.ones(3, 3, dtype=torch.int64)
    call = Call(1, "torch.mm", torch.mm, (ints, ints), {}, device=ints.device)
    assert projection.start(call, ints @ ints) is None
    image, filters = torch.randn(1, 8, 9, 9).to(small.CARD), torch.randn(8, 1, 3, 3).to(small.CARD)
    args = image, filters, None, 1, 0, 1, 8  # a channel for each group
    call = Call(1, "torch.nn.functional.conv2d", F.conv2d, args, {}, device=image.device)
    assert projection.start(call, F.conv2d(*args)) is None
