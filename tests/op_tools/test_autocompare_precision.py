"""OpAutoCompare takes what the program allows of float32 into account, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from op_tools import OpAutoCompare


@contextmanager
def tf32_allowed() -> Iterator[None]:
    torch.backends.fp32_precision = "tf32"
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.fp32_precision = "none"
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
