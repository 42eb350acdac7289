"""OpFallback over torch's own database of operators: everything is as on the device."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from op_tools import OpFallback
from op_tools.core.call import Level, tensors
from op_tools.tensors import host_transfer
from tests.opinfo.core import load_ops

SAMPLES = 3
TYPES = (torch.float32, torch.bfloat16, torch.int64)
# jiterator compiles for CUDA alone
OPERATORS = [op for op in load_ops().values() if not op.name.startswith("jiterator")]
# The device is not the CPU here: see its gaps.toml.
KNOWN = {
    ("nn.functional.linear_cross_entropy.chunked", torch.bfloat16),
    ("nn.functional.linear_cross_entropy.chunked_none", torch.bfloat16),
}
PARTS = 12
LEVELS: tuple[Level, ...] = ("api", "aten")
ERRORS = (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AssertionError)


def on_device(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return torch.device("dipu") if isinstance(value, torch.device) else value
    return value.detach().to("dipu").requires_grad_(value.requires_grad)


def outcome(function: Callable[..., Any], sample: Any) -> Any:
    """Results, arguments after the call, gradients and the next random number; or the error."""
    given = sample.input, tuple(sample.args), sample.kwargs
    first, args, kwargs = host_transfer.mapped(given, on_device)
    if "device" in kwargs:
        kwargs["device"] = "dipu"
    torch.manual_seed(0)
    try:
        result = function(first, *args, **kwargs)
        ends = [t for t in tensors(result) if t.requires_grad and t.is_floating_point()]
        if ends:
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    except ERRORS as error:
        return type(error).__name__
    leaves = list(tensors((first, args, kwargs)))
    values = [result, leaves, [leaf.grad for leaf in leaves if leaf.requires_grad]]
    return [described(value) for value in flat((*values, torch.rand(2, device="dipu")))]


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from flat(item)
    else:
        yield value


def described(value: Any) -> tuple[Tensor | None, Any]:
    """The values of a tensor, and what else is known of it; of another value its text."""
    if not isinstance(value, Tensor):
        return None, repr(value)[:80]
    more = value.device, value.dtype, value.layout, value.requires_grad, value.is_leaf
    if value.is_nested:
        return torch.nested.to_padded_tensor(value.detach(), 0.0).cpu(), more
    return value.detach().to_dense().cpu(), more


def difference(mine: Any, plain: Any) -> str:
    """How two outcomes differ; "" where they do not."""
    if isinstance(mine, str) or isinstance(plain, str) or len(mine) != len(plain):
        return "" if mine == plain else f"{mine} instead of {plain}"[:200]
    for at, ((value, more), (wanted, known)) in enumerate(zip(mine, plain, strict=True)):
        if more != known:
            return f"[{at}] {more} instead of {known}"
        if value is not None:
            try:
                torch.testing.assert_close(value, wanted, equal_nan=True)
            except AssertionError as error:
                return f"[{at}] {error}".replace("\n", " ")
    return ""


def differences(op: Any, dtype: torch.dtype) -> tuple[int, list[str]]:
    """How many calls of an operator's samples ran on the CPU, and what was not as on the device."""
    wants = op.supports_autograd and dtype in op.backward_dtypes and dtype != torch.int64
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, wants), SAMPLES))
    except ERRORS:
        return 0, []  # torch has none for this type
    forms = {"": op.op, "in place": None if wants else op.inplace_variant}
    moved, found = 0, []
    for (form, function), sample in itertools.product(forms.items(), samples):
        if function is None or (form and sample.broadcasts_input):
            continue
        plain = outcome(function, sample)
        for level in LEVELS:
            with OpFallback(level=level) as tool:
                mine = outcome(function, sample)
            moved += sum(tool.hits.values())
            if differs := difference(mine, plain):
                found.append(f"{form} {level}: {differs}")
    return moved, found


def assert_same(operators: list[Any]) -> None:
    moved, found = 0, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in operators:
            for dtype in TYPES:
                if dtype in op.dtypes and (op.full_name, dtype) not in KNOWN:
                    calls, wrong = differences(op, dtype)
                    moved += calls
                    if wrong:
                        found[op.full_name, str(dtype)] = wrong
    assert found == {}
    assert moved > 10 * len(operators)


def test_some_operators_are_as_on_the_device() -> None:
    names = random.Random(0).sample(range(len(OPERATORS)), 12)
    assert_same([OPERATORS[at] for at in names])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
def test_every_operator_is_as_on_the_device(number: int) -> None:
    assert_same(OPERATORS[number::PARTS])
