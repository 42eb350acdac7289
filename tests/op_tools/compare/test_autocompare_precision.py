"""OpAutoCompare takes what the program allows of float32 into account, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from deeplink.precision import Precision, Sums
from op_tools import OpAutoCompare
from op_tools.compare.host_verdicts import RecordedCall, backward, forward
from op_tools.compare.rerun import make_rerun
from op_tools.core.call import Call


def _allow(precision: str) -> None:
    """As `torch.backends.fp32_precision`, whose name torch.testing forbids to write."""
    torch._C._set_fp32_precision_setter("generic", "all", precision)


@contextmanager
def tf32_allowed() -> Iterator[None]:
    _allow("tf32")
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        _allow("none")
        torch.set_float32_matmul_precision("highest")


MODELS = {
    "lstm": lambda: (nn.LSTM(12, 24), (20, 4, 12)),
    "gru": lambda: (nn.GRU(12, 24), (20, 4, 12)),
    "conv2d": lambda: (nn.Conv2d(8, 8, 3), (4, 8, 12, 12)),
    "linear": lambda: (nn.Linear(64, 64), (32, 64)),
}


def accused(name: str, level: str = "api") -> list[str]:
    """The verdicts on what is wrong, of a forward and a backward pass."""
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    model, given = model.to("dipu"), torch.randn(shape, device="dipu")
    with OpAutoCompare(ops=f".*({name}|{type(model).__name__})", level=level) as tool:  # type: ignore[arg-type]
        made = model(given)
        made = made[0] if isinstance(made, tuple) else made
        made.square().sum().backward()
    assert tool.items > 2
    return [str(failure.verdict) for failure in tool.failures]


@pytest.mark.parametrize("name", MODELS)
def test_tf32_is_right_where_the_program_allows_it(name: str) -> None:
    with torch.dipu.quirk("tf32"):
        assert accused(name)
        with tf32_allowed():
            assert accused(name) == []


@pytest.mark.parametrize("name", ("lstm", "conv2d"))
def test_so_it_is_of_whole_modules(name: str) -> None:
    with torch.dipu.quirk("tf32"), tf32_allowed():
        assert accused(name, "module") == []


@pytest.mark.parametrize("name", ("lstm", "gru", "linear"))
def test_a_fault_is_found_where_tf32_is_allowed(name: str) -> None:
    with torch.dipu.quirk("tf32"), torch.dipu.quirk("bf16_accumulate", "mm|addmm"), tf32_allowed():
        wrong = accused(name)
    assert wrong
    assert "not even TF32, which torch." in wrong[0]


def test_a_fault_of_a_convolution_is_found_where_tf32_is_allowed() -> None:
    with torch.dipu.quirk("bit_flip", "convolution_overrideable", p=1.0, seed=3), tf32_allowed():
        assert accused("conv2d")


# What an H200 does, bit for bit: partial sums of batch_norm's gradients go from thread to thread in
# the call's own type.


def sums_in_steps(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Over the last dimension, in a tree whose one side is rounded at each step."""
    values = values.float()
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:].to(dtype).float()
    return values[..., 0]


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("fault", (0.0, 0.1))
def test_sums_of_batch_norm_that_are_rounded_on_the_way(dtype: torch.dtype, fault: float) -> None:
    torch.manual_seed(0)
    given, grad = torch.randn(2, 4, 16, 8, 8)
    x, dy = given.to(dtype).requires_grad_(), grad.to(dtype)
    weight, bias = torch.ones(16, requires_grad=True), torch.zeros(16, requires_grad=True)
    args = (x, None, None, weight, bias, True)
    call = Call(0, "torch.nn.functional.batch_norm", torch.nn.functional.batch_norm, args, {})
    again = make_rerun(call, frozenset(map(id, (x, weight, bias))), False, None, [dtype])
    taken = RecordedCall(again, None, [], wants_gradient=True)
    made = sums_in_steps(dy.transpose(0, 1).reshape(16, -1), dtype) * (1 + fault)
    (item,) = backward(taken, [dy], [None, None, made], "calibrated")
    assert item.label == "grad[4]" and item.verdict.passed == (fault == 0.0)


# What cuBLAS does on an H200 to a sum that it splits over the chip, bit for bit: torch allows it.


def sums_in_parts(a: torch.Tensor, b: torch.Tensor, length: int) -> torch.Tensor:
    """A product of matrices whose partial sums are stored in the factors' own type."""
    pairs = zip(a.float().split(length, 1), b.float().split(length, 0), strict=True)
    return torch.stack([(x @ y).to(a.dtype).float() for x, y in pairs]).sum(0).to(a.dtype)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize(("rows", "terms", "length"), [(16, 60, 8), (24, 2048, 64), (16, 10, 5)])
def test_partial_sums_in_a_narrow_type_are_right_where_the_program_allows_them(
    dtype: torch.dtype, rows: int, terms: int, length: int
) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(rows, terms).to(dtype), torch.randn(terms, 72).to(dtype)
    call = Call(0, "torch.mm", torch.mm, (a, b), {})
    name = str(dtype).removeprefix("torch.")

    def passes(result: torch.Tensor, *allowed: Sums) -> bool:
        again = make_rerun(call, frozenset(), False, None, [dtype])
        again.precision = Precision(sums=allowed)
        (output,) = forward(RecordedCall(again, result, [None, None], False), "calibrated")
        if not output.verdict.passed and allowed:
            assert f"not even partial sums in {name}, which" in output.verdict.message
        return output.verdict.passed

    made, setting = sums_in_parts(a, b, length), Sums(name, "a setting of torch")
    assert passes(made, setting) and not passes(made)
    missing = sums_in_parts(a[:, :-1], b[:-1], length)
    assert not passes(missing, setting)


def test_a_run_on_the_host_leaves_the_statistics_of_batch_norm_alone() -> None:
    x, mean, variance = torch.randn(8, 4), torch.zeros(4), torch.ones(4)
    function = torch.nn.functional.batch_norm
    call = Call(
        0, "torch.nn.functional.batch_norm", function, (x, mean, variance, None, None, True), {}
    )
    run = make_rerun(call, frozenset(), False, None, [torch.float32]).plain_run(grad=False)
    assert run is not None and run.arguments[1].abs().max() > 0
    assert mean.tolist() == [0.0] * 4


# Autocast.


def test_autocast_rounds_what_is_of_another_narrow_type() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 48).half(), torch.randn(32, 48)
    linear = torch.nn.functional.linear
    call = Call(0, "torch.nn.functional.linear", linear, (x, weight), {})
    again = make_rerun(call, frozenset(), False, torch.bfloat16, [torch.bfloat16])
    made = linear(x.bfloat16().float(), weight.bfloat16().float()).bfloat16()
    (output,) = forward(RecordedCall(again, made, [None, None], False), "calibrated")
    assert output.verdict.passed
    (output,) = forward(RecordedCall(again, made * 1.02, [None, None], False), "calibrated")
    assert not output.verdict.passed


def test_autocast_gives_recurrent_layers_float16_whatever_was_requested() -> None:
    call = Call(0, "torch.lstm", torch.lstm, (), {})
    again = make_rerun(call, frozenset(), False, torch.bfloat16, [torch.float16])
    assert again.rounded == torch.float16
