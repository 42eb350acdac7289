"""Aids at the operators: forced fallback, the dump of calls, the comparison with the CPU."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deeplink.errors import NoKernelError
from diopi import implementation
from tests.torch_dipu.interpreter import output_of, run_python
from torch_dipu import _C, op_patterns, routes
from torch_dipu.op_patterns import UnknownOperatorError

FORCE, DUMP = "DIPU_FORCE_FALLBACK_OPS_LIST", "DIPU_DUMP_OP_ARGS"
COMPARE = "DIPU_AUTOCOMPARE_OPS_LIST"
LINE = r"numel:4, sizes:\[2, 2\], stride:\[2, 1\], is_view:0, TensorOptions\(dtype=float, device={}"


@pytest.fixture(autouse=True)
def aids_off() -> Iterator[None]:
    """Switch off after each test what it switched on."""
    yield
    for name in (FORCE, DUMP, COMPARE):
        os.environ.pop(name, None)
    routes.unbind()


def counted(overload: str) -> int:
    return torch.dipu.operator_calls().get(f"aten::{overload}", {}).get("cpu", 0)


def square() -> Tensor:
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="dipu")


# Forced fallback.


def test_a_forced_operator_runs_on_the_cpu_and_is_counted() -> None:
    x = square()
    os.environ[FORCE] = "add.out,conv2d"
    before = counted("add.Tensor")
    assert (x + x).tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert counted("add.Tensor") == before + 1
    picture, weight = torch.ones(1, 1, 3, 3, device="dipu"), torch.ones(1, 1, 2, 2, device="dipu")
    both = ("convolution", "convolution_overrideable")  # the first where kernels were bound once
    before = sum(map(counted, both))
    assert torch.conv2d(picture, weight).tolist() == [[[[4.0, 4.0], [4.0, 4.0]]]]
    assert sum(map(counted, both)) == before + 1


def test_a_forced_operator_works_on_copies() -> None:
    library = torch.library.Library("aids_test", "FRAGMENT")
    library.define("address(Tensor x) -> int")
    library.impl("address", lambda x: x.data_ptr(), "CPU")
    x = square()
    host = torch.dipu.host_view(x)
    assert host is not None
    assert torch.ops.aids_test.address(x) == host.data_ptr()
    _C.set_forced(["aids_test::address"], op_patterns.ALWAYS)
    assert torch.ops.aids_test.address(x) != host.data_ptr()


def test_scalar_overloads_are_those_with_a_number() -> None:
    x = square()
    os.environ[FORCE] = ".*.Scalar"
    before = counted("mul.Tensor"), counted("mul_.Tensor")
    _ = x * x, x * 3
    x.mul_(x)
    x.mul_(3)
    assert (counted("mul.Tensor"), counted("mul_.Tensor")) == (before[0] + 1, before[1] + 1)


def test_everything_can_be_forced() -> None:
    os.environ[FORCE] = ".*"
    weight = square().requires_grad_()
    (square() @ weight).relu().sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[4.0, 4.0], [6.0, 6.0]]
    assert len(op_patterns.matching([".*"])) > 1000


@pytest.mark.parametrize(
    "entry",
    [
        "mm",
        "mm.out",
        "aten.mm.default",
        "aten::mm",
        "aten.mm",
        "torch.mm",
        "torch.Tensor.mm",
        "diopiMm",
    ],
)
def test_every_spelling_of_an_operator_means_it(entry: str) -> None:
    overloads = set(
        op_patterns.matching([entry])
    )  # others are in it once they were called, as mm.dtype
    assert overloads >= {"aten::mm", "aten::mm.out"}
    assert {overload.partition(".")[0] for overload in overloads} == {"aten::mm"}


def test_forcing_is_said_and_a_wrong_name_does_not_end_the_program(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "torch_dipu"):
        os.environ[FORCE] = "relu"
        os.environ[FORCE] = "rleu"
    assert "forced to the CPU, on copies: relu" in caplog.text
    assert "'rleu' matches no operator of the device" in caplog.text
    assert "did you mean relu" in caplog.text


def test_a_pattern_that_is_no_expression_is_refused() -> None:
    with pytest.raises(UnknownOperatorError, match=r"'add\(' is neither an operator nor"):
        op_patterns.matching(["add("])


# The dump.


def test_the_dump_follows_the_variable_while_the_program_runs(capsys: Any) -> None:
    x = square()
    os.environ[DUMP] = "1"
    _ = x + x
    os.environ[DUMP] = "0"
    _ = x / 3
    assert re.fullmatch(r"\[dipu_add_out:\d+\]:add\.out  diopiAdd\n", capsys.readouterr().out)


def test_the_second_level_shows_arguments_and_a_number_by_its_scalar_name(capsys: Any) -> None:
    x = square()
    os.environ[DUMP] = "2"
    _ = x + 3
    os.environ[DUMP] = "0"
    lines = capsys.readouterr().out.splitlines()
    tensor = LINE.format("dipu:0") + r", .*, data_ptr:0x[0-9a-f]+"
    for line, expected in zip(
        lines,
        (
            r"\[dipu_add_out:\d+\]:add\.out  diopiAdd",
            r"\[dipu_add_scalar_out:\d+\]:add\.Scalar_out  diopiAddScalar",
            rf"\tadd\.Scalar_out: self:{tensor}",
            r"\tadd\.Scalar_out: other:3",
            r"\tadd\.Scalar_out: alpha:1",
            rf"\tadd\.Scalar_out: out:{tensor}",
            "",
        ),
        strict=True,
    ):
        assert re.fullmatch(expected, line), line


def test_the_third_level_shows_values_before_and_after(capsys: Any) -> None:
    x = square()
    os.environ[DUMP] = "3"
    x.mul_(10)
    os.environ[DUMP] = "0"
    text = capsys.readouterr().out
    assert " 1  2\n 3  4\n[ dipuFloatType{2,2} ]" in text
    assert " 10  20\n 30  40\n[ dipuFloatType{2,2} ]" in text


def test_the_dump_names_the_function_that_runs_where_kernels_are_bound(capsys: Any) -> None:
    def add(input: Tensor, other: Tensor, alpha: float = 1) -> Tensor:
        if input.dtype != torch.float32:
            raise NoKernelError("float32 only")
        return input.clone()

    x = square()
    routes.bind(implementation.of({"add": add}, "mine"))
    os.environ[DUMP] = "1"
    _ = x + x, x.tanh(), x.double() + x.double()
    os.environ[DUMP] = "0"
    lines = [re.sub(r":\d+\]", "]", line) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "copy" not in line and "clone" not in line] == [
        "[dipu_add_out]:add.out  diopiAdd",
        "[dipu_tanh_out]:tanh.out",
        "[dipu_add_out]:add.out  diopiAdd",
        "[dipu_add_out]: run by the CPU",
    ]


def test_the_variable_counts_from_the_start_and_not_after_the_end() -> None:
    source = """
import torch, torch_dipu
x = torch.ones(2, device="dipu", requires_grad=True)
x.sum().backward()
print("end")
"""
    lines = output_of(source, DIPU_DUMP_OP_ARGS="1").splitlines()
    assert any(":sum." in line for line in lines)
    assert lines[-1] == "end"


# The comparison.


def test_the_comparison_prints_both_sides_of_each_result_and_the_inputs(capsys: Any) -> None:
    x = square()
    os.environ[COMPARE] = "add"
    _ = x + x, x * x
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["", "dipu_add_out_autocompare", "autocompare:    add.out out:"]
    assert re.match(r"\t" + LINE.format("cpu"), lines[3])
    assert re.match(r"\t" + LINE.format("dipu:0"), lines[4])
    assert lines[5:] == [
        "\tallclose",
        "autocompare:    add.out self: allclose",
        "autocompare:    add.out other: allclose",
    ]


def test_a_number_among_the_inputs_has_a_line_of_its_own(capsys: Any) -> None:
    x = square()
    os.environ[COMPARE] = "add"
    _ = x + 3
    assert capsys.readouterr().out.splitlines()[5:] == [
        "\tallclose",
        "autocompare:    add.out self: allclose",
        "autocompare:    add.out other: allclose",
    ]


def _train(optimizer: type[torch.optim.Optimizer], **options: Any) -> None:
    layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    net = torch.nn.Sequential(*layers).to("dipu")
    steps = optimizer(net.parameters(), lr=0.1, **options)
    for _ in range(2):
        steps.zero_grad()
        net(torch.randn(6, 4).to("dipu")).square().mean().backward()
        steps.step()


WRITERS: dict[str, Callable[[], object]] = {
    "momentum": lambda: _train(torch.optim.SGD, momentum=0.9, foreach=False),
    "foreach": lambda: _train(torch.optim.AdamW, foreach=True),
    "fused": lambda: _train(torch.optim.AdamW, fused=True),
    "an input as out=": lambda: [torch.add(a, a, out=a) for a in [square()]],
    "a view of the input": lambda: [a[1:].add_(a[:1]) for a in [square()]],
}


@pytest.mark.parametrize("name", WRITERS)
def test_inputs_that_an_operator_writes_on_the_cpu_are_not_reported(name: str, capsys: Any) -> None:
    os.environ[COMPARE] = ".*"
    WRITERS[name]()
    printed = capsys.readouterr().out
    assert "allclose" in printed
    assert "not_allclose" not in printed


def test_running_statistics_that_a_kernel_does_not_write_are_reported(capsys: Any) -> None:
    def batch_norm(
        input: Tensor,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Any:
        host = input.cpu(), running_mean.cpu(), running_var.cpu()
        found = torch.native_batch_norm(host[0], None, None, *host[1:], training, momentum, eps)
        return tuple(result.to("dipu") for result in found)

    x, mean, var = torch.randn(6, 3).to("dipu"), *torch.ones(2, 3).to("dipu").unbind()
    routes.bind(implementation.of({"batch_norm": batch_norm}, "mine"))
    os.environ[COMPARE] = "native_batch_norm"
    torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)
    printed = capsys.readouterr().out
    assert re.search(r"running_mean: not_allclose", printed)
    assert re.search(r"out0:\n.*\n.*\n\tallclose", printed)


def test_the_comparison_finds_a_wrong_kernel_in_the_backward_pass(capsys: Any) -> None:
    x = torch.randn(8, 64, device="dipu")
    weight = torch.randn(64, 8, device="dipu", requires_grad=True)
    os.environ[COMPARE] = "mm"
    with torch.dipu.quirk("bf16_accumulate", "mm"):
        (x @ weight).sum().backward()
    text = capsys.readouterr().out
    assert text.count("dipu_mm_out_autocompare") == 2  # forward, and the weight's gradient
    assert text.count("\tnot_allclose: ") == 2
    assert "differ by more than rounding allows" in text


def test_the_comparison_finds_a_kernel_that_writes_its_input(capsys: Any) -> None:
    def exp(input: Tensor) -> Tensor:
        host = torch.dipu.host_view(input)
        assert host is not None
        result = host.exp().to("dipu")
        host.zero_()
        return result

    x = square()
    routes.bind(implementation.of({"exp": exp}, "mine"))
    os.environ[COMPARE] = "exp"
    x.exp()
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == "\tallclose"
    assert lines[6].startswith("autocompare:    exp.out self: not_allclose")


def test_among_equal_values_any_choice_is_right(capsys: Any) -> None:
    def last(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        assert dim == 0
        return torch.tensor(2, device="dipu")

    x = torch.tensor([1.0, 5.0, 5.0], device="dipu")
    routes.bind(implementation.of({"argmax": last}, "mine"))
    os.environ[COMPARE] = "argmax"
    assert x.argmax(0).item() == 2  # the CPU chooses 1
    x.sub_(torch.tensor([0.0, 0.0, 1.0], device="dipu")).argmax(0)
    verdicts = re.findall(r"^\t((?:not_)?allclose)", capsys.readouterr().out, re.MULTILINE)
    assert verdicts == ["allclose", "not_allclose"]


def test_random_operators_are_not_compared(capsys: Any) -> None:
    os.environ[COMPARE] = ".*"
    torch.empty(4, device="dipu").normal_()
    assert capsys.readouterr().out == ""


# Settings of the vendor's kernels.


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DIPU_WITH_DIOPI_LIBRARY", "maybe", "DIPU_WITH_DIOPI_LIBRARY='maybe' is not allowed"),
        ("DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "rleu", "'rleu' matches no operator of the device"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_without_kernels_too(
    name: str, value: str, message: str
) -> None:
    done = run_python("import torch_dipu", **{name: value})
    assert done.returncode != 0
    assert message in done.stderr


def test_the_variable_that_chose_a_device_when_dipu_was_built_is_answered() -> None:
    done = run_python("import torch_dipu", DIPU_DEVICE="camb")
    assert done.returncode == 0
    assert "DIPU_DEVICE is set, but nothing reads it" in done.stderr
    assert "Hint: set DEEPLINK_VENDOR" in done.stderr


# CUDA's names.


@pytest.mark.parametrize(
    ("wanted", "expected"), [("True", "cuda"), ("", "cuda"), ("false", "none")]
)
def test_cuda_is_mocked_on_request(wanted: str, expected: str) -> None:
    source = """
import torch, torch_dipu
try:
    print(torch.ones(2).cuda().device.type)
except (AssertionError, RuntimeError):  # not compiled with CUDA, or no driver of it
    print("none")
print(torch_dipu.dipu.device.__dipu__)
"""
    printed = output_of(source, DIPU_MOCK_CUDA=wanted, DITORCH_QUIET="1")
    assert printed.split() == [expected, "dipu"]


def test_the_names_of_cuda_come_with_the_first_call_of_cuda() -> None:
    source = """
import torch, torch_dipu
x = torch.ones(2, device="dipu")
print(x.device.type, x.is_cuda, torch.cuda.is_available())
net = torch.nn.Linear(2, 1).cuda()
print(net.weight.device.type, x.is_cuda, torch.cuda.is_available(), net(x).is_cuda)
"""
    printed = output_of(source, DIPU_MOCK_CUDA="", DITORCH_QUIET="1", DEEPLINK_VENDOR="cpu")
    assert printed.splitlines() == ["dipu False False", "cuda True True True"]
