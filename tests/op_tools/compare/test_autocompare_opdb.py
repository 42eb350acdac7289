"""OpAutoCompare over torch's own database of operators, on the healthy device."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

from op_tools import OpAutoCompare
from op_tools.core import tool_errors
from op_tools.core.call import tensors
from op_tools.tensors import host_transfer
from tests.opinfo.core import load_ops

SAMPLES = 3
TYPES = (torch.float32, torch.bfloat16, torch.int64)
# The device is not the CPU here (see its gaps.toml), and the tool reports it.
KNOWN = {
    ("nn.functional.linear_cross_entropy", "chunked", "bfloat16"),
    ("nn.functional.linear_cross_entropy", "chunked_none", "bfloat16"),
}
# jiterator compiles for CUDA alone
OPERATORS = [op for op in load_ops().values() if not op.name.startswith("jiterator")]
PARTS = 12


def alarms(op: Any, dtype: torch.dtype) -> tuple[int, list[str]]:
    """How many results of an operator's samples were compared, and which were called wrong."""
    differentiable = op.supports_autograd and dtype in op.backward_dtypes
    wants = differentiable and dtype != torch.int64
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, wants), SAMPLES))
    except (RuntimeError, ValueError, NotImplementedError):
        return 0, []  # torch has none for this type
    compared, wrong = 0, []
    for sample in samples:
        with OpAutoCompare() as tool:
            _run(op, (sample.input, tuple(sample.args), sample.kwargs))
        compared += tool.items
        wrong += [f"{f.name} {f.item}: {f.verdict}" for f in tool.failures]
    return compared, wrong


def _run(op: Any, given: Any) -> None:
    first, args, kwargs = host_transfer.mapped(given, _on_device)
    if "device" in kwargs:
        kwargs["device"] = "dipu"
    torch.manual_seed(0)
    try:
        out = op.op(first, *args, **kwargs)
        ends = [t for t in tensors(out) if t.requires_grad and t.is_floating_point()]
        if ends:
            torch.autograd.backward(ends, [torch.randn_like(end) for end in ends])
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        pass  # the operator itself refuses: the coverage of the device is another test's


def _on_device(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().to("dipu").requires_grad_(value.requires_grad)


def _part(number: int) -> list[Any]:
    return OPERATORS[number::PARTS]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_few_operators_are_right(dtype: torch.dtype) -> None:
    names = {"add", "sum", "softmax", "sort", "cumsum", "index_put", "logsumexp", "var", "topk"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {op.name: alarms(op, dtype) for op in OPERATORS if op.name in names}
    assert all(not wrong for _, wrong in found.values()), found
    assert sum(compared for compared, _ in found.values()) > 20


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PARTS))
def test_no_operator_of_the_database_is_reported(number: int) -> None:
    found: dict[tuple[str, str, str], list[str]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in _part(number):
            for dtype in TYPES:
                if dtype in op.dtypes:
                    _, wrong = alarms(op, dtype)
                    key = (op.name, op.variant_test_name, str(dtype).removeprefix("torch."))
                    if wrong:
                        found[key] = wrong
    assert {key: wrong for key, wrong in found.items() if key not in KNOWN} == {}
    assert tool_errors.problems() == []
