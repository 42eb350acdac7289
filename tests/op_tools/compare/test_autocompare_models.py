"""OpAutoCompare on models: no reports on a correct device, the faulty operator on a faulty one."""

from __future__ import annotations

import functools

import pytest
import torch

from op_tools import OpAutoCompare
from op_tools.compare.rerun import Rerun
from op_tools.core import tool_errors
from tests.op_tools.compared_models import CASES, LARGE, Case, train

TYPES: dict[str, tuple[torch.dtype, torch.dtype | None]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "amp bfloat16": (torch.float32, torch.bfloat16),
    "amp float16": (torch.float32, torch.float16),
}
SGD = functools.partial(torch.optim.SGD, momentum=0.9)


def accused(
    case: Case, types: str, level: str, steps: int = 1, seed: int = 0, bitwise: bool = True
) -> tuple[int, str]:
    """How many results were compared, and which are reported as wrong."""
    dtype, autocast = TYPES[types]
    # AdamW's epsilon is nothing in float16
    optimizer = SGD if dtype == torch.float16 else torch.optim.AdamW
    with OpAutoCompare(level=level, bitwise=bitwise) as tool:  # type: ignore[arg-type]
        train(case, "dipu", dtype, autocast, steps, seed, optimizer)
    assert tool_errors.problems() == []
    return tool.items, "\n".join(f"{f.name} {f.item}: {f.verdict}" for f in tool.failures)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("level", ("api", "aten", "module"))
@pytest.mark.parametrize("name", ("transformer", "convnet"))
def test_a_healthy_model_is_right(name: str, types: str, level: str) -> None:
    compared, wrong = accused(CASES[name], types, level)
    assert compared > 50
    assert wrong == ""


@pytest.mark.parametrize("types", ("float32", "bfloat16", "amp bfloat16"))
@pytest.mark.parametrize("name", ("transformer", "convnet"))
def test_float64_reports_nothing_either(name: str, types: str) -> None:
    compared, wrong = accused(CASES[name], types, "api", bitwise=False)
    assert compared > 50
    assert wrong == ""


@pytest.mark.parametrize("types", ("float32", "amp bfloat16"))
def test_the_envelope_alone_reports_nothing(types: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rerun, "plain_run", lambda self, grad: None)
    _, wrong = accused(CASES["convnet"], types, "aten", bitwise=False)
    assert wrong == ""


def test_where_the_cpu_itself_is_inexact_the_envelope_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Rerun, "plain_run", lambda self, grad: None)
    _, wrong = accused(CASES["convnet"], "bfloat16", "aten", bitwise=False)
    assert {line.split(" ")[0] for line in wrong.splitlines()} == {"aten.native_batch_norm.default"}


@pytest.mark.parametrize("types", ("float32", "bfloat16"))
@pytest.mark.parametrize("level", ("api", "aten"))
def test_a_healthy_recurrent_model_is_right(types: str, level: str) -> None:
    compared, wrong = accused(CASES["recurrent"], types, level)
    assert compared > 50
    assert wrong == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("level", ("api", "aten", "module"))
@pytest.mark.parametrize("name", LARGE)
def test_a_healthy_large_model_is_right(name: str, types: str, level: str, seed: int) -> None:
    _, wrong = accused(LARGE[name], types, level, steps=2, seed=seed)
    assert wrong == ""


@pytest.mark.parametrize("background", (False, True))
def test_losses_are_the_same_to_the_last_bit(background: bool) -> None:
    plain = train(CASES["transformer"], "dipu", steps=3)
    with OpAutoCompare(background=background):
        seen = train(CASES["transformer"], "dipu", steps=3)
    assert plain == seen


# With a fault, the operator that has it and no other. (quirk, operators, parameters) -> names.

LINEAR, MATMUL = "torch.nn.functional.linear", "torch.Tensor.matmul"
NORMS = {
    "transformer": "torch.nn.functional.layer_norm",
    "convnet": "torch.nn.functional.batch_norm",
}
FAULTS: list[tuple[str, str, str | None, dict[str, float], dict[str, set[str]]]] = [
    (
        *("transformer", "bf16_accumulate", "addmm", {}),
        {"api": {LINEAR}, "aten": {"aten.addmm.default"}},
    ),
    (*("transformer", "bf16_accumulate", "mm", {}), {"api": {LINEAR}, "aten": {"aten.mm.default"}}),
    (
        *("transformer", "bf16_accumulate", "bmm", {}),
        {"api": {MATMUL}, "aten": {"aten.bmm.default"}},
    ),
    (
        *("transformer", "bf16_accumulate", "sum", {}),
        {"api": {LINEAR, "torch.Tensor.add"}, "aten": {"aten.sum.dim_IntList"}},
    ),
    (*("transformer", "ignore_strides", "mm", {}), {"api": {LINEAR}, "aten": {"aten.mm.default"}}),
    (*("convnet", "ignore_strides", None, {}), {"api": {LINEAR}, "aten": {"aten.mm.default"}}),
    (
        *("transformer", "wrong_epsilon", None, {}),
        {"api": {NORMS["transformer"]}, "aten": {"aten.native_layer_norm.default"}},
    ),
    (
        *("convnet", "wrong_epsilon", None, {}),
        {"api": {NORMS["convnet"]}, "aten": {"aten.native_batch_norm.default"}},
    ),
    (
        *("transformer", "nan", "_softmax", {"call": 2}),
        {"api": {"torch.Tensor.softmax"}, "aten": {"aten._softmax.default"}},
    ),
    (
        *("transformer", "nan", "gelu_backward", {}),
        {"api": {"torch.nn.functional.gelu"}, "aten": {"aten.gelu_backward.default"}},
    ),
    (
        *("convnet", "nan", "convolution_overrideable|convolution|_convolution", {}),
        {"api": {"torch.nn.functional.conv2d"}, "aten": {"aten.convolution.default"}},
    ),
    (
        *("transformer", "bit_flip", "native_layer_norm", {"p": 1.0}),
        {"api": {NORMS["transformer"]}, "aten": {"aten.native_layer_norm.default"}},
    ),
    (
        *("transformer", "bit_flip", "mul", {"p": 1.0}),
        {"api": {"torch._foreach_mul_"}, "aten": {"aten._foreach_mul_.Scalar"}},
    ),
]


@pytest.mark.parametrize("level", ("api", "aten"))
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f[0]} {f[1]} {f[2]}")
def test_the_faulty_operator_is_named_and_no_other(
    fault: tuple[str, str, str | None, dict[str, float], dict[str, set[str]]], level: str
) -> None:
    model, quirk, operators, parameters, guilty = fault
    with (
        torch.dipu.quirk(quirk, operators, **parameters),
        OpAutoCompare(level=level) as tool,  # type: ignore[arg-type]
    ):
        train(CASES[model], "dipu", steps=1)
    assert {failure.name for failure in tool.failures} == guilty[level]


@pytest.mark.parametrize(
    ("model", "quirk", "operators", "guilty"),
    [
        ("transformer", "bf16_accumulate", "addmm", LINEAR),
        ("transformer", "wrong_epsilon", None, NORMS["transformer"]),
        ("convnet", "wrong_epsilon", None, NORMS["convnet"]),
        ("transformer", "ignore_strides", "mm", LINEAR),
        ("transformer", "nan", "_softmax", "torch.Tensor.softmax"),
    ],
)
def test_the_faulty_operator_is_named_in_bfloat16(
    model: str, quirk: str, operators: str | None, guilty: str
) -> None:
    with torch.dipu.quirk(quirk, operators), OpAutoCompare() as tool:
        train(CASES[model], "dipu", torch.bfloat16, steps=1)
    assert {failure.name for failure in tool.failures} == {guilty}


@pytest.mark.parametrize(("quirk", "parameters"), [("latency", {"ms": 0.05}), ("late_copy", {})])
def test_what_is_late_is_not_wrong(quirk: str, parameters: dict[str, float]) -> None:
    with torch.dipu.quirk(quirk, **parameters), OpAutoCompare() as tool:
        train(CASES["convnet"], "dipu", steps=1)
        there, here = torch.ones(2, device="dipu"), torch.zeros(2).pin_memory()
        here.copy_(there, non_blocking=True)
        there.to("cpu", non_blocking=True)
    assert tool.failures == []


def test_a_device_without_float64_can_be_compared() -> None:
    with torch.dipu.quirk("no_float64"), OpAutoCompare() as tool:
        train(CASES["convnet"], "dipu", steps=1)
    assert tool.failures == []
    assert tool_errors.problems() == []
