"""Names of operators: every spelling means the same operator, and a misspelt one is refused."""

from __future__ import annotations

import sys

import pytest
import torch

import op_tools
from deeplink.errors import SettingError
from op_tools.core import op_names, spelling
from op_tools.core.options import options_for
from op_tools.diagnosis.bisect import launch


@pytest.mark.parametrize(
    ("entry", "name", "level"),
    [
        ("torch.nn.functional.linear", "torch.nn.functional.linear", "api"),
        ("linear", "torch.nn.functional.linear", "api"),
        ("torch.conv2d", "torch.nn.functional.conv2d", "api"),
        ("mm", "torch.Tensor.mm", "api"),
        ("aten.mm.default", "aten.mm.default", "aten"),
        ("aten.mm", "aten.mm.default", "aten"),
        ("aten::mm", "aten.mm.out", "aten"),
        ("aten::mm.out", "aten.mm.out", "aten"),
        ("torch.ops.aten.mm.default", "aten.mm.default", "aten"),
        ("mm.out", "aten.mm.out", "aten"),
        ("mm.out", "aten.mm.default", "aten"),
        ("diopiMm", "aten.mm.default", "aten"),
        ("diopiAddInp", "aten.add.Tensor", "aten"),
        ("diopiSoftmaxBackward", "aten._softmax_backward_data.default", "aten"),
        ("diopiConvolution2d", "aten.convolution.default", "aten"),
        ("diopiLayerNormBackward", "aten.native_layer_norm_backward.default", "aten"),
        ("_softmax", "aten._softmax.default", "aten"),
        ("aten.mm.*", "aten.mm.default", "aten"),
        ("torch.Tensor.add.*", "torch.Tensor.add_", "api"),
    ],
)
def test_a_spelling_names_its_operator_and_its_level(entry: str, name: str, level: str) -> None:
    spelling.check("here", [entry])
    assert spelling.read(entry).matches(name)
    assert options_for("FALLBACK", ops=entry).level == level


@pytest.mark.parametrize(
    ("entry", "near"),
    [
        ("torch.liner", "torch.nn.functional.linear"),
        ("torch.linear", "torch.nn.functional.linear"),
        ("F.linear", "torch.nn.functional.linear"),
        ("liner", "torch.nn.functional.linear"),
        ("torch.Tensor.ad", "torch.Tensor.add"),
        ("aten.mmm.default", "aten.mm"),
        ("aten.mm.defaut", "aten.mm"),
        ("mm.oot", "aten.mm"),
        ("diopiMmm", "aten.mm"),
    ],
)
def test_a_name_of_no_operator_is_refused_with_the_nearest(entry: str, near: str) -> None:
    with pytest.raises(SettingError, match="OP_FALLBACK_LIST: no operator is named") as caught:
        op_tools.OpFallback(ops=entry).start()
    assert f"did you mean '{near}'" in caught.value.hint
    assert op_names.suggestions(entry)[0] == near


def test_a_pattern_of_torch_that_matches_nothing_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'torch\.Tensor\.adddd\.\*' matches no operator"):
        op_tools.OpTimeMeasure(ops="torch.Tensor.adddd.*").start()


def test_a_name_that_the_program_may_register_is_allowed() -> None:
    spelling.check("here", ["mylib.attention.default", "mylib::attention", "torch_npu.*"])


def test_functions_and_kernels_in_one_list_are_refused() -> None:
    with pytest.raises(SettingError, match=r"'torch\.add' is a function and 'aten\.mm' is a"):
        op_tools.OpFallback(ops="aten.mm,torch.add").start()


def test_a_function_at_the_level_of_kernels_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'torch\.add' is a function, and the level aten"):
        op_tools.OpFallback(ops="torch.add", level="aten").start()
    assert options_for("FALLBACK", ops="mm", level="aten").ops == ("aten.mm",)


def test_a_word_alone_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with op_tools.OpFallback(ops="mm"):
        torch.mm(torch.ones(2, 2, device="dipu"), torch.ones(2, 2, device="dipu"))
    said = capsys.readouterr().err
    assert "OpFallback: mm means torch.Tensor.mm, torch.mm; for its kernel inside other" in said


@pytest.mark.parametrize("entry", ["aten.mm.default", "aten.mm", "aten::mm", "mm.out", "diopiMm"])
def test_a_kernel_is_moved_inside_other_operators_without_naming_its_level(entry: str) -> None:
    x, weight = torch.randn(5, 4), torch.randn(3, 4)
    moved = x.to("dipu"), weight.to("dipu")
    with torch.dipu.quirk("ignore_strides", "mm"), op_tools.OpFallback(ops=entry):
        found = torch.nn.functional.linear(*moved)  # mm of a transposed weight
    torch.testing.assert_close(found.cpu(), torch.nn.functional.linear(x, weight))


def test_a_word_with_overloads_of_torchscript_alone_is_explained() -> None:
    (line,) = spelling.explained(["add"])  # add.t is no operator of the dispatcher
    assert line.startswith("add means torch.Tensor.add") and line.endswith("write aten.add")


def test_a_function_that_is_not_called_leads_to_its_kernel(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layer = torch.nn.Linear(4, 3).to("dipu")
    with op_tools.OpFallback(ops="torch.mm"):
        layer(torch.ones(5, 4, device="dipu"))
    said = capsys.readouterr().out
    assert "nothing was seen. No operator that was called is in the list torch.mm." in said
    assert "Hint: aten.mm names the kernel inside other operators." in said


def test_the_line_with_tools_starts_the_program_as_it_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix = ["--fallback", "aten.mm.default"]
    cuda = [sys.executable, "-m", "deeplink", "run", "train.py", "--lr", "1"]
    monkeypatch.delenv("DITORCH", raising=False)
    assert launch.with_tools(cuda, fix) == (
        "deeplink run --fallback aten.mm.default train.py --lr 1"
    )
    assert launch.with_tools([sys.executable, "-m", "my.training"], fix) == (
        "python -m op_tools run --fallback aten.mm.default -m my.training"
    )
    assert launch.with_tools(["./train.sh"], fix) == ""
    monkeypatch.setenv("DITORCH", "1")
    assert launch.with_tools([sys.executable, "-u", "-m", "my.training"], fix) == (
        "deeplink run --fallback aten.mm.default -m my.training"
    )
