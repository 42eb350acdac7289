"""With OP_TOOLS_VERBOSE the tools print as their documents show it: lines, columns and numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import op_tools
from op_tools import run_op_from_data

CALLS = (
    "| name | shape | stride | numel | dtype | device | requires_grad | layout | data_ptr | value |"
)
CAPTURES = (
    "| name | device | dtype | numel | shape | stride | requires_grad | layout | data_ptr | value |"
)
VERDICTS = "| name | allclose | max_abs_diff | max_relative_diff | atol | rtol | error_info |"
BLANK = ["", "", ""]
Lines = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def verbose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """What was printed: a number of spaces in a table as one, and no rules of tables."""

    def read() -> list[str]:
        found = capsys.readouterr().out.splitlines()
        shown = [line for line in found if not line.startswith("+-")]
        return [re.sub(" +", " ", line) if line[:1] == "|" else line for line in shown]

    return read


def without_values(header: str) -> str:
    return header.removesuffix(" value |")


def block(lines: list[str], first: str) -> list[str]:
    """The lines from one that begins with a text to the next empty line."""
    begin = next(at for at, line in enumerate(lines) if line.startswith(first))
    return lines[begin : lines.index("", begin)]


def names(lines: list[str]) -> list[str]:
    return [line.split(" | ")[0].strip("| ") for line in lines]


def bfloat16(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16().to("dipu")


# OpAutoCompare.


def test_autocompare_shows_both_sides_and_a_verdict_on_each_argument(lines: Lines) -> None:
    x = bfloat16(2, 6)
    with op_tools.OpAutoCompare():
        x.reshape((3, 4))
    said = lines()
    assert said[:4] == ["apply OpAutoCompareHook on torch.Tensor.reshape", *BLANK]
    shown = block(said, "torch.Tensor.reshape forward_id")
    header = r"torch.Tensor.reshape forward_id: \d+    cpu_dtype_cast_info\(from:to\): "
    assert re.fullmatch(header + r"{torch.bfloat16: torch.float64}", shown[0])
    assert re.fullmatch(r"\S+\.py:\d+ test_\w+: x.reshape\(\(3, 4\)\)", shown[1])
    assert shown[2] == CALLS
    name, values = "torch.Tensor.reshape", ("[0]", " [1][0]", " [1][1]")
    ours = [*(f"{name} inputs{at}" for at in values), f"{name} outputs"]
    theirs = [*(f"{name} inputs(cpu){at}" for at in values), f"{name} outputs(cpu)"]
    assert names(shown[3:11]) == ours + theirs
    assert shown[11] == VERDICTS
    none, types = "0.000000000 | 0.000000000", "Inconsistent dtypes: torch.bfloat16 torch.float64"
    assert shown[12:] == [
        f"| {name} input[0] | True | {none} | {none} | {types} |",
        f"| {name} input[1] | True | {none} | 0.000001000 | 0.000001000 | |",
        f"| {name} input[2] | True | {none} | 0.000001000 | 0.000001000 | |",
        f"| {name} output | True | {none} | {none} | {types} |",
    ]
    after = said.index(shown[-1]) + 1
    assert said[after : after + 3] == BLANK


def test_autocompare_pads_names_to_thirty_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with op_tools.OpAutoCompare():
        bfloat16(2) * 2
    assert f"\n| {'torch.Tensor.mul output':30} |   True   |" in capsys.readouterr().out


def test_autocompare_names_no_cast_where_there_is_none(lines: Lines) -> None:
    whole = torch.tensor([4096, 8192]).to("dipu")
    with op_tools.OpAutoCompare():
        whole.tolist()
    shown = block(lines(), "torch.Tensor.tolist forward_id")
    assert re.fullmatch(r"torch.Tensor.tolist forward_id: \d+", shown[0])
    zero = "0.000000000 | 0.000000000"
    assert (
        f"| torch.Tensor.tolist output[1] | True | {zero} | 0.000001000 | 0.000001000 | |" in shown
    )


def test_autocompare_leaves_out_the_column_of_values_where_there_are_none(lines: Lines) -> None:
    x = bfloat16(2)
    with op_tools.OpAutoCompare():
        torch.add(x, x)
    assert without_values(CALLS) in block(lines(), "torch.add forward_id")


def test_autocompare_shows_gradients_also_those_that_are_none(lines: Lines) -> None:
    x, scale = bfloat16(3).requires_grad_(), bfloat16(3)
    with op_tools.OpAutoCompare(ops="torch.mul"):
        torch.mul(x, scale).backward(bfloat16(3))
    said = lines()
    shown = block(said[said.index(VERDICTS) + 4 :], "torch.mul forward_id")
    assert shown[2] == CALLS
    assert names(shown[3:8]) == [
        "torch.mul grad_output(cpu)",
        *("torch.mul grad_inputs[0]", "torch.mul grad_inputs[1]"),
        *("torch.mul grad_inputs(cpu)[0]", "torch.mul grad_inputs(cpu)[1]"),
    ]
    assert re.search(r"\| dipu:0 \| False \| torch.strided \| \d+ \| \|$", shown[4])
    assert shown[5].endswith("| None |")
    zero = "0.000000000 | 0.000000000"
    assert f"| torch.mul grad[1] | True | {zero} | {zero} | |" in shown


def test_autocompare_ends_with_a_table_of_all(lines: Lines) -> None:
    x = bfloat16(2)
    with op_tools.OpAutoCompare():
        x * 2
    said = lines()
    header = said.index("| forward_id " + VERDICTS)
    assert re.match(r"\| \d+ \| torch.Tensor.mul input\[0\] \| True \|", said[header + 1])
    assert re.match(r"\| \d+ \| torch.Tensor.mul input\[1\] \| True \|", said[header + 2])


def test_autocompare_shows_numbers_with_nine_decimals(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_AUTOCOMPARE_STANDARD", "allclose")
    x = torch.randn(64, 64).to("dipu")
    with op_tools.OpAutoCompare():
        torch.mean(x)
    shown = next(line for line in lines() if line.startswith("| torch.mean output | True"))
    number = r"\d+\.\d{9}"
    tolerance = r"0\.000010000 \| 0\.000010000"
    assert re.match(rf"\| torch.mean output \| True \| {number} \| {number} \| {tolerance}", shown)


def test_autocompare_saves_a_failed_call_after_its_tables(lines: Lines) -> None:
    x = torch.randn(4, 4).to("dipu")
    with torch.dipu.quirk("nan", "exp"), op_tools.OpAutoCompare():
        torch.exp(x)
    said = lines()
    saved = [at for at, line in enumerate(said) if line.endswith(".pth saved")]
    assert [said[at].split("/")[-2:] for at in saved] == [
        *(["device", "input.pth saved"], ["device", "output.pth saved"]),
        *(["cpu", "input.pth saved"], ["cpu", "output.pth saved"]),
    ]
    assert said[saved[0] - 3 : saved[0]] == BLANK and said[saved[0] - 4].startswith("| torch.exp")


# apply and skip.


def test_apply_is_printed_for_each_call(lines: Lines) -> None:
    x = bfloat16(2)
    with op_tools.OpCapture():
        x + 1
        x + 2
    assert lines().count("apply OpCaptureHook on torch.Tensor.add") == 2


def test_skip_is_printed_for_each_call_that_the_lists_leave_out(lines: Lines) -> None:
    x = bfloat16(2)
    with op_tools.OpFallback(ops="torch.nn.functional.linear"):
        x + 1
        x + 1
        assert x.shape == (2,) and x.numel() == 2
    said = [line for line in lines() if line.startswith("skip")]
    assert said.count("skip OpFallbackHook on torch.Tensor.add") == 2
    assert said.count("skip OpFallbackHook on torch.Tensor.shape.__get__") == 1
    assert said.count("skip OpFallbackHook on torch.Tensor.numel") == 1


# The other tools.


def test_capture_has_the_order_of_its_columns_and_shows_a_size_as_one_value(lines: Lines) -> None:
    x = bfloat16(1)
    with op_tools.OpCapture():
        x.expand(torch.Size([4]))
    said = lines()
    assert said[0] == "apply OpCaptureHook on torch.Tensor.expand"
    assert CAPTURES in said
    assert any(line.endswith("| torch.Size([4]) |") for line in said)


def test_time_measure_shows_the_line_the_arguments_and_the_time(lines: Lines) -> None:
    x = bfloat16(2).requires_grad_()
    with op_tools.OpTimeMeasure(ops="torch.exp"):
        torch.exp(x).sum().backward()
    said = lines()
    at = said.index("apply OpTimeMeasureHook on torch.exp")
    assert said[at + 1 : at + 4] == BLANK
    assert re.fullmatch(r"\S+\.py:\d+ test_\w+: torch.exp\(x\).*", said[at + 4])
    assert said[at + 5] == without_values(CALLS)
    assert names(said[at + 6 : at + 8]) == ["torch.exp inputs", "torch.exp outputs"]
    assert said[at + 8] == "| name | forward_id | forward_elasped | unit |"
    assert re.fullmatch(r"\| torch.exp \| \d+ \| \d+\.\d{8} \| ms \|", said[at + 9])
    gradients = next(
        at for at, line in enumerate(said) if line.startswith("| torch.exp grad_outputs [0][0] |")
    )
    assert said[gradients - 1] == without_values(CALLS)
    assert said[gradients + 2] == "| name | forward_id | backward_elasped | unit |"


def test_fallback_shows_both_sides(lines: Lines) -> None:
    x = bfloat16(2)
    with op_tools.OpFallback(ops="torch.add"):
        torch.add(x, x)
    said = lines()
    assert said[:4] == ["apply OpFallbackHook on torch.add", *BLANK]
    assert re.fullmatch(r"torch.add    forward_id: \d+", said[4])
    assert said[6] == without_values(CALLS)
    assert names(said[7:13]) == [
        *("torch.add input(device)[0]", "torch.add input(device)[1]"),
        *("torch.add input(cpu)[0]", "torch.add input(cpu)[1]"),
        *("torch.add output(device)", "torch.add output(cpu)"),
    ]


def test_dtype_cast_shows_a_table_alone(lines: Lines) -> None:
    x = bfloat16(2)
    with op_tools.OpDtypeCast(ops="torch.nn.functional.silu"):
        functional.silu(x)
    said = lines()
    assert said[:2] == [
        "apply OpDtypeCastHook on torch.nn.functional.silu",
        "| name | target | action | config |",
    ]


# run_op_from_data.


@contextmanager
def arguments(*words: str) -> Iterator[None]:
    before, sys.argv = sys.argv, ["run_op_from_data", *words]
    try:
        yield
    finally:
        sys.argv = before


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    x = torch.randn(4, 4).to("dipu").requires_grad_()
    with op_tools.OpCapture(ops="torch.exp"):
        torch.exp(x).sum().backward()
    capsys.readouterr()
    (folder,) = Path("op_tools_results/op_capture_results/torch.exp").glob("*/*/*")
    return str(folder)


def test_the_offline_comparison(captured: str, lines: Lines) -> None:
    words = (captured, "--acc_check", "--run_times", "1")
    with arguments(*words), pytest.raises(SystemExit):
        run_op_from_data.main()
    said = lines()
    assert re.fullmatch(r"ditorch\.framework: torch_dipu:\S+", said[0])
    assert said[1:5] == [captured, *BLANK]
    header = (
        "torch.exp forward_id: 1    cpu_dtype_cast_info(from:to): {torch.float32: torch.float64}"
    )
    assert said[5] == header and said.count(header) == 2
    assert said[7] == without_values(CALLS)
    parts = [line for line in said if re.match(r"\| torch.exp \w+ \| True", line)]
    assert names(parts) == ["torch.exp input", "torch.exp output", "torch.exp grad"]


def test_the_offline_times(captured: str, lines: Lines) -> None:
    words = (captured, "--sync_time_measure", "--run_times", "2")
    with arguments(*words), pytest.raises(SystemExit):
        run_op_from_data.main()
    said = lines()
    assert said[1:5] == [captured, *BLANK]
    assert said[6] == without_values(CALLS)
    for column in ("forward_elasped", "backward_elasped"):
        assert said.count(f"| name | forward_id | {column} | unit |") == 2
    assert "| name | forward_id | forward_elasped | backward_elasped | unit |" in said
    assert any(re.match(r"Timings written to \S+\.csv", line) for line in said)
