"""The form of a verdict."""

import json
import sys
from pathlib import Path

import pytest
import torch

import op_tools
from op_tools import OpAutoCompare
from op_tools.core.problem import Problem, program_in, run_command


def test_fields_stand_below_each_other_and_empty_ones_are_left_out() -> None:
    problem = Problem("mm is wrong.", "train.py:57", ("one", "two"), next="replay it")
    assert problem.lines() == [
        "Problem:    mm is wrong.",
        "Where:      train.py:57",
        "Evidence:   one",
        "            two",
        "Next:       replay it",
    ]


def test_a_verdict_has_a_key_for_each_field_in_a_file() -> None:
    assert Problem("wrong").as_dict() == {
        "problem": "wrong",
        "where": "",
        "evidence": [],
        "workaround": "",
        "next": "",
    }


def test_the_command_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "train.py"), "--lr", "1e-3", "a b"])
    assert run_command("fallback", "mm") == "deeplink run --fallback mm train.py --lr 1e-3 'a b'"


def test_a_program_that_is_no_script_is_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert run_command("capture", "mm", steps="3") == (
        "deeplink run --capture --ops mm --steps 3 train.py"
    )


def test_in_a_notebook_the_command_is_a_with_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/lib/ipykernel_launcher.py", "-f", "kernel.json"])
    monkeypatch.setattr(sys.modules["__main__"], "get_ipython", lambda: None, raising=False)
    assert run_command("fallback", "aten.mm.default") == (
        "with op_tools.OpFallback('aten.mm.default'):"
    )
    line = run_command("fallback", ".*", modules="a,b.c")
    select = "select=op_tools.Selection(modules=['a', 'b.c'])"
    assert line == f"with op_tools.OpFallback('.*', {select}):"
    line = run_command("capture", "aten.mm.default", steps="3")
    expression = line.removeprefix("with ").removesuffix(":")
    with eval(expression, {"op_tools": op_tools}) as tool:
        assert 3 in tool.started.options.select.steps
        assert 4 not in tool.started.options.select.steps


def test_a_wrong_operator_is_explained_with_what_its_wrong_calls_have_in_common(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, w = torch.randn(8, 16).to("dipu"), torch.randn(16, 16).to("dipu")
    with torch.dipu.quirk("ignore_strides", "mm"), OpAutoCompare(level="aten"):
        for _ in range(3):
            torch.mm(x, w)
            torch.mm(x, w.t())
    printed = capsys.readouterr().out
    assert "Problem:    aten.mm.default, output forward: " in printed
    assert "test_problem.py" in printed
    assert (
        "Evidence:   All 2 wrong calls have argument 1 that is transposed (not contiguous); "
        "none of the 2 correct calls does."
    ) in printed
    assert "Workaround: deeplink run --fallback aten.mm.default " in printed
    (file,) = Path("op_tools_results/op_autocompare_result").glob("*.problems.json")
    (problem,) = json.loads(file.read_text("utf-8")).values()
    assert problem["evidence"][0].startswith("All 2 wrong calls have argument 1")


def test_the_launcher_of_a_notebook_is_no_program() -> None:
    assert program_in("/lib/ipykernel_launcher.py -f kernel.json") == "train.py"
    assert program_in("deeplink run --time a.py --lr 1") == "a.py --lr 1"
