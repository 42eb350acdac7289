"""The judge: injected bugs are found, correct results of other algorithms pass."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from deeplink.judge import Verdict, envelope, judge, same_choice
from deeplink.judge.formats import FORMATS, spacing

# some virtual machines announce AMX and die by SIGILL in the CPU's own bfloat16 products
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

TYPES = (torch.float32, torch.bfloat16, torch.float16)
Function = Callable[..., Tensor]


def judged(
    result: Tensor, function: Function, *args: Tensor, plain: bool = False, **options: str
) -> Verdict:
    """The verdict on a result of `function(*args)` that was computed in some way."""
    wide = [arg.double() if arg.is_floating_point() else arg for arg in args]
    reference = function(*wide)
    return judge(
        result,
        reference,
        run_envelope=lambda: envelope(lambda: [function(*wide)], [reference])[0],
        run_plain=lambda: function(*args) if plain else None,
        **options,  # type: ignore[arg-type]
    )


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# Correct algorithms, all of which must pass. All in float32 inside, whatever the type.


def sequential_sum(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[0])
    for column in x.float().unbind(1):
        total = total + column
    return total.to(x.dtype)


def split_k(a: Tensor, b: Tensor) -> Tensor:
    parts = zip(a.float().split(64, 1), b.float().split(64, 0), strict=True)
    total = torch.zeros(a.shape[0], b.shape[1])
    for left, right in parts:
        total = total + left @ right
    return total.to(a.dtype)


def fast_exp_softmax(x: Tensor) -> Tensor:
    """exp by exp2, and a product with the reciprocal instead of a quotient."""
    shifted = x.float() - x.float().amax(-1, keepdim=True)
    powers = torch.exp2(shifted * 1.4426950408889634)
    return (powers * powers.sum(-1, keepdim=True).reciprocal()).to(x.dtype)


def one_pass_norm(x: Tensor) -> Tensor:
    f = x.float()
    mean, square = f.mean(-1, keepdim=True), (f * f).mean(-1, keepdim=True)
    return ((f - mean) * torch.rsqrt(square - mean * mean + 1e-5)).to(x.dtype)


def softmax(x: Tensor) -> Tensor:
    return functional.softmax(x, -1)


def layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],))


def row_sum(x: Tensor) -> Tensor:
    return x.sum(1)


RIGHT: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "sequential sum": (sequential_sum, row_sum, ((64, 1024),)),
    "split K": (split_k, torch.mm, ((48, 512), (512, 40))),
    "fast exp": (fast_exp_softmax, softmax, ((64, 128),)),
    "one-pass variance": (one_pass_norm, layer_norm, ((64, 128),)),
    "eager gelu": (functional.gelu, functional.gelu, ((64, 128),)),
    "eager silu": (functional.silu, functional.silu, ((64, 128),)),
    "eager mm": (torch.mm, torch.mm, ((48, 300), (300, 40))),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", (0, 77))
def test_another_order_or_algorithm_is_right(name: str, dtype: torch.dtype, seed: int) -> None:
    algorithm, function, shapes = RIGHT[name]
    args = [normal(*shape, dtype=dtype, seed=seed + i) for i, shape in enumerate(shapes)]
    verdict = judged(algorithm(*args), function, *args)
    assert verdict.passed, verdict


# Bugs: each is found.


def truncated(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Cut off instead of rounded."""
    near = exact.to(dtype)
    too_large = near.double().abs() > exact.double().abs()
    return torch.where(too_large, torch.nextafter(near, torch.zeros_like(near)), near)


def tf32(x: Tensor) -> Tensor:
    return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


def bf16_sums(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros(a.shape[0], b.shape[1])
    for left, right in zip(a.float().split(32, 1), b.float().split(32, 0), strict=True):
        total = (total + left @ right).bfloat16().float()
    return total.to(a.dtype)


def with_one_wrong(result: Tensor) -> Tensor:
    wrong = result.clone()
    wrong.view(-1)[37] *= 1.05
    return wrong


def masked(x: Tensor, diagonal: int = 1) -> Tensor:
    hidden = torch.ones(x.shape[-2:], dtype=torch.bool).triu(diagonal)
    return functional.softmax(x.masked_fill(hidden, -math.inf), -1)


BUGS: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "the last term is dropped": (lambda x: row_sum(x[:, :-1]), row_sum, ((64, 256),)),
    "the last block of K is dropped": (
        lambda a, b: (a[:, :-8].float() @ b[:-8].float()).to(a.dtype),
        torch.mm,
        ((48, 512), (512, 40)),
    ),
    "accumulates in bfloat16": (bf16_sums, torch.mm, ((48, 512), (512, 40))),
    "another epsilon": (
        lambda x: functional.layer_norm(x, (x.shape[-1],), eps=1e-1),
        layer_norm,
        ((64, 128),),
    ),
    "unbiased variance": (
        lambda x: ((x.float() - x.float().mean(-1, True)) / x.float().std(-1, keepdim=True)).to(
            x.dtype
        ),
        layer_norm,
        ((64, 128),),
    ),
    "one wrong element": (lambda x: with_one_wrong(softmax(x)), softmax, ((64, 128),)),
    "tanh instead of erf": (
        lambda x: functional.gelu(x, approximate="tanh"),
        functional.gelu,
        ((256, 128),),
    ),
    "the mask is off by one": (lambda x: masked(x, 2), masked, ((4, 32, 32),)),
    "strides ignored": (
        lambda x: softmax(x.t().contiguous().view(x.shape)),
        softmax,
        ((64, 128),),
    ),
    "the tail is not written": (
        lambda x: torch.cat([softmax(x)[:-1], torch.zeros(1, x.shape[1], dtype=x.dtype)]),
        softmax,
        ((64, 128),),
    ),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("plain", (False, True), ids=("alone", "beside the CPU"))
def test_an_injected_bug_is_found(name: str, dtype: torch.dtype, plain: bool) -> None:
    if name == "tanh instead of erf" and dtype == torch.bfloat16:
        pytest.skip("below the resolution of bfloat16")
    bug, function, shapes = BUGS[name]
    args = [normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]
    verdict = judged(bug(*args), function, *args, plain=plain)
    assert not verdict.passed


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("plain", (False, True), ids=("alone", "beside the CPU"))
def test_truncation_leans_to_one_side(dtype: torch.dtype, plain: bool) -> None:
    a, b = normal(48, 64, dtype=dtype), normal(64, 40, dtype=dtype, seed=1)
    verdict = judged(truncated(a.double() @ b.double(), dtype), torch.mm, a, b, plain=plain)
    assert not verdict.passed
    assert verdict.rule in ("rms", "bias")


def test_tf32_is_found_in_float32() -> None:
    a, b = normal(48, 512), normal(512, 40, seed=1)
    verdict = judged(tf32(a) @ tf32(b), torch.mm, a, b, plain=True)
    assert (verdict.passed, verdict.rule) == (False, "bound")


# The CPU's own low precision is no alarm; a fault on top of it is.


def test_what_the_cpu_does_worse_is_accepted_but_no_worse() -> None:
    x = normal(8, 16, 6, 6, dtype=torch.bfloat16) * 3 + 100

    def batch_norm(x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, training=True)

    plain = batch_norm(x)
    assert not judged(plain, batch_norm, x).passed  # its mean and invstd are bfloat16
    assert judged(plain, batch_norm, x, plain=True).rule == "as the CPU"
    error = plain.double() - batch_norm(x.double())
    near = (batch_norm(x.double()) + error * 1.5).bfloat16()
    assert judged(near, batch_norm, x, plain=True).passed
    far = (batch_norm(x.double()) + error * 10).bfloat16()
    assert not judged(far, batch_norm, x, plain=True).passed


# Special values.


@pytest.mark.parametrize(
    ("result", "reference", "rule"),
    [
        ([1.0, math.nan], [1.0, 2.0], "nan"),
        ([1.0, 2.0], [1.0, math.nan], "nan"),
        ([math.inf, 2.0], [1.0, 2.0], "inf"),
        ([math.inf, 2.0], [-math.inf, 2.0], "inf"),
        ([1.0, 2.0], [1.0, math.inf], "inf"),
        ([1.0, 2.5], [1.0, 2.0], "bound"),
    ],
)
def test_special_values_are_in_their_places(
    result: list[float], reference: list[float], rule: str
) -> None:
    verdict = judge(torch.tensor(result), torch.tensor(reference, dtype=torch.float64))
    assert (verdict.passed, verdict.rule) == (False, rule)


@pytest.mark.parametrize(
    ("result", "reference"),
    [
        ([math.nan, 1.0], [math.nan, 1.0]),
        ([math.inf, -math.inf], [math.inf, -math.inf]),
        ([-0.0, 0.0], [0.0, -0.0]),
        ([0.0], [1e-40]),  # flushed to zero
        ([3.4028234663852886e38], [3.4028235e38]),
        ([math.inf], [3.41e38]),  # beyond the largest number
        ([], []),
    ],
)
def test_leniency(result: list[float], reference: list[float]) -> None:
    assert judge(torch.tensor(result), torch.tensor(reference, dtype=torch.float64)).passed


def test_overflow_of_float16_is_infinity() -> None:
    wide = torch.tensor([70000.0, -70000.0], dtype=torch.float64)
    assert judge(torch.tensor([math.inf, -math.inf], dtype=torch.float16), wide).passed
    assert not judge(torch.tensor([65504.0, -65504.0], dtype=torch.float16), wide * 2).passed


# Exact results, and indices.


def test_whole_numbers_and_bools_are_exact() -> None:
    five = torch.tensor([5000, 7])
    verdict = judge(torch.tensor([5003, 7]), five)
    assert (verdict.passed, verdict.rule, verdict.index, verdict.max_abs) == (
        False,
        "exact",
        (0,),
        3.0,
    )
    assert judge(five, five).passed
    assert not judge(torch.tensor([True]), torch.tensor([False])).passed
    small = judge(torch.tensor([1], dtype=torch.uint8), torch.tensor([2], dtype=torch.uint8))
    assert small.max_abs == 1.0  # not 255


def test_whole_numbers_with_a_tolerance() -> None:
    assert judge(torch.tensor([5003]), torch.tensor([5000]), tolerance=(5.0, 0.0)).passed
    assert not judge(torch.tensor([True]), torch.tensor([False]), tolerance=(5.0, 0.0)).passed


def test_shape_and_type_are_part_of_the_result() -> None:
    reference = torch.zeros(2, 3, dtype=torch.float64)
    assert judge(torch.zeros(3, 2), reference).rule == "shape"
    assert judge(torch.zeros(2, 3, dtype=torch.int64), reference).rule == "dtype"
    assert judge(torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)).rule == (
        "dtype"
    )


def test_among_ties_any_index_is_right() -> None:
    values = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]])
    first, last = torch.tensor([1, 0]), torch.tensor([2, 1])
    assert same_choice(values, last, first, 1)
    assert not same_choice(values, torch.tensor([0, 1]), first, 1)
    assert not same_choice(values, torch.tensor([3, 1]), first, 1)
    assert same_choice(values, torch.tensor(2), torch.tensor(1), None)


def test_a_permutation_has_each_element_once() -> None:
    values, right = torch.tensor([2.0, 2.0, 1.0]), torch.tensor([2, 0, 1])
    assert same_choice(values, torch.tensor([2, 1, 0]), right, 0, distinct=True)
    assert not same_choice(values, torch.tensor([2, 1, 1]), right, 0, distinct=True)


def test_complex_numbers_are_as_exact_as_their_size() -> None:
    wide = torch.randn(300, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    narrow = wide.to(torch.complex64)
    assert judge(narrow, wide).passed
    assert not judge(narrow * (1 + 1e-4j), wide).passed
    assert not judge(narrow.conj().resolve_conj(), wide).passed


def test_float64_is_held_against_its_own_rounding() -> None:
    x = normal(200, 300).double()
    reference = x.sum(1)
    sequential = torch.stack(x.unbind(1)).cumsum(0)[-1]
    noise = envelope(lambda: [x.sum(1)], [reference], inside=2.0**-52, between=2.0**-53)[0]
    assert judge(sequential, reference, run_envelope=lambda: noise).passed
    assert not judge(reference + 1e-11, reference, run_envelope=lambda: noise).passed


def test_of_what_is_within_the_envelope_the_verdict_shows_the_used_share() -> None:
    right = torch.ones(8, dtype=torch.float64)
    for times, share in ((1, 0.25), (3, 0.75)):
        result = (right + times * 1e-6).float()
        verdict = judge(result, right, run_envelope=lambda: right * 1e-6)
        assert verdict.rule == "envelope" and verdict.share == pytest.approx(share, rel=0.1)


# The verdict explains itself.


def test_a_verdict_says_what_where_and_how_much() -> None:
    wide = torch.ones(4, 8, dtype=torch.float64)
    result = torch.ones(4, 8)
    result[2, 5] = 1.5
    verdict = judge(result, wide)
    assert (verdict.index, verdict.result, verdict.expected, verdict.wrong) == ((2, 5), 1.5, 1.0, 1)
    assert verdict.observed == 0.5
    assert verdict.bound == 2 * 2.0**-23
    assert verdict.ratio == verdict.observed / verdict.bound
    assert str(verdict) == (
        "1 of 32 elements differ by more than rounding allows. "
        "Worst at [2, 5]: got 1.5, expected 1 (error 0.5, tolerance 2.38e-07)"
    )


def test_figures_are_those_of_the_seeds() -> None:
    result, wide = torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0], dtype=torch.float64)
    verdict = judge(result, wide)
    assert verdict.max_abs == 0.5
    assert verdict.max_rel == pytest.approx(0.5 / (2.5 + 1e-6))
    cosine = functional.cosine_similarity(result.double(), wide, dim=0).item()
    assert verdict.cosine == pytest.approx(cosine)


def test_spacing_is_the_distance_to_the_next_number() -> None:
    values = torch.tensor([1.0, 1.5, 2.0, 1000.0, 3e-5])
    for dtype in TYPES:
        x = values.to(dtype)
        step = torch.nextafter(x, torch.full_like(x, math.inf)).double() - x.double()
        assert torch.equal(spacing(x.double(), FORMATS[dtype]), step)


def test_expensive_evidence_is_not_computed_when_cheap_evidence_is_enough() -> None:
    def never() -> Tensor:
        raise AssertionError("asked for")

    for dtype in TYPES:
        x = normal(64, 64, dtype=dtype)
        reference = functional.silu(x.double())
        assert judge(functional.silu(x), reference, run_plain=never, run_envelope=never).passed


# Named standards, with their numbers.


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float16, 1e-4), (torch.bfloat16, 1e-3), (torch.float32, 1e-5), (torch.float64, 1e-8)],
)
def test_allclose_has_the_tolerances_of_the_seeds(dtype: torch.dtype, tolerance: float) -> None:
    verdict = judge(torch.ones(3, dtype=dtype), torch.ones(3).double(), standard="allclose")
    assert (verdict.passed, verdict.atol, verdict.rtol) == (True, tolerance, tolerance)
    far = torch.full((3,), 1.5, dtype=dtype)
    assert not judge(far, torch.ones(3).double(), standard="allclose").passed


def test_a_tolerance_decides_whatever_the_standard() -> None:
    result, wide = torch.tensor([1.01]), torch.tensor([1.0], dtype=torch.float64)
    assert not judge(result, wide).passed
    assert judge(result, wide, tolerance=(0.02, 0.0)).passed
    assert judge(result, wide, tolerance=(0.0, 0.02)).passed
    assert not judge(result, wide, tolerance=(1e-3, 1e-3)).passed


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("error", (0.3, 0.9, 1.1, 3.0))
def test_the_torch_standard_is_assert_close(dtype: torch.dtype, error: float) -> None:
    from deeplink.compare import TOLERANCES

    rtol, atol = TOLERANCES[dtype]
    wide = torch.linspace(1, 2, 50, dtype=torch.float64).to(dtype).double()
    result = (wide + error * (atol + rtol * wide)).to(dtype)
    try:
        torch.testing.assert_close(result, wide.to(dtype))
        close = True
    except AssertionError:
        close = False
    assert judge(result, wide, standard="torch").passed == close


def test_the_double_benchmark_is_a_ratio_of_errors() -> None:
    wide = torch.rand(1000, generator=torch.Generator().manual_seed(0)).double() + 1
    plain = wide * (1 + 1e-6)
    for factor, passed in ((1.4, True), (1.6, False), (6.0, False)):
        result = wide + factor * (plain - wide)
        verdict = judge(result, wide, standard="ascend", run_plain=lambda: plain)
        assert verdict.passed == passed, factor


def test_without_a_benchmark_ascend_has_one_threshold() -> None:
    wide = torch.ones(100, dtype=torch.float64)
    for relative, passed in ((2.0**-14, True), (2.0**-12, False)):
        result = (wide * (1 + relative)).float()
        assert judge(result, wide, standard="ascend").passed == passed


def test_the_ulp_standard_counts_steps() -> None:
    wide = torch.ones(10000, dtype=torch.float64)
    result = torch.ones(10000, dtype=torch.bfloat16)
    result[:9] += 2 * 2.0**-7
    assert judge(result, wide, standard="ulp").passed  # 0.09 %
    result[:20] = 1 + 2 * 2.0**-7
    assert not judge(result, wide, standard="ulp").passed
    far = torch.full((10000,), 1 + 100 * 2.0**-23)
    assert not judge(far, wide, standard="ulp").passed
    assert judge(torch.full((10000,), 1 + 40 * 2.0**-23), wide, standard="ulp").passed


def test_a_result_is_only_read() -> None:
    result = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    reference = result * (1 + 2e-16)
    before = result.clone(), reference.clone()
    judge(result, reference)
    assert torch.equal(result, before[0]) and torch.equal(reference, before[1])


@pytest.mark.parametrize(("times", "passed"), [(2.0, True), (5.0, False)])
def test_more_runs_confirm_a_finding_that_a_few_runs_might_explain(
    times: float, passed: bool
) -> None:
    torch.manual_seed(0)
    right = torch.randn(1000, dtype=torch.float64).abs() + 1
    spread = torch.full((1000,), 1e-4, dtype=torch.float64)
    quiet = spread.clone()
    quiet[7] /= 4  # by chance
    result = (right + spread * torch.randn(1000)).float()
    result[7] = right[7] + times * 8 * quiet[7]
    verdict = judge(
        result, right, run_envelope=lambda: quiet, run_surer=lambda: spread if times < 4 else None
    )
    assert verdict.passed == passed
    assert not judge(result, right, run_envelope=lambda: quiet).passed


@pytest.mark.parametrize(("smallest", "passed"), [(2.0**-24, True), (0.0, False)])
def test_what_is_handed_on_below_the_normal_numbers_of_float16(
    smallest: float, passed: bool
) -> None:
    x = (normal(512).abs() * 2e-6).half()
    wide = x.double()
    right = wide * 0.37 * 40
    spread = envelope(lambda: [wide * 0.37 * 40], [right], between=2.0**-11, smallest=smallest)
    assert judge(x * 0.37 * 40, right, run_envelope=lambda: spread[0]).passed == passed
