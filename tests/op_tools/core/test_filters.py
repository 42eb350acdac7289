"""Lists of operators and selections: what they let through, what they say when they are wrong."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest
import torch
from torch.overrides import get_overridable_functions

import op_tools
from deeplink import settings
from deeplink.errors import SettingError
from deeplink.settings import split_list
from op_tools.core import call, op_names
from op_tools.core.filters import Names, Selection, Steps
from op_tools.core.options import options_for
from tests import warm
from tests.op_tools.core.test_engine import Watcher, vector


@pytest.mark.parametrize(
    ("entries", "name", "found"),
    [
        ("torch.add", "torch.add", True),
        ("torch.add", "torch.addmm", False),
        ("torch.add, torch.mul", "torch.mul", True),  # a blank after the comma
        ("torch.(add|mul)", "torch.mul", True),  # a group
        ("torch.Tensor.add.?", "torch.Tensor.add_", True),
        ("torch.Tensor.add", "torch.nn.functional.torch.Tensor.add", False),
        ("torch.norm", "torch.functional.norm", True),  # by the name that users know
        ("aten.add", "aten.add.Tensor", True),
        ("torch.ad{1,2}", "torch.add", True),  # a comma inside a pattern
        (".*", "torch.add", True),
        ("", "torch.add", False),
    ],
)
def test_a_list_has_full_names_or_patterns(entries: str, name: str, found: bool) -> None:
    assert (name in Names(split_list(entries))) is found


def test_a_bad_pattern_is_reported_at_the_start() -> None:
    with pytest.raises(SettingError, match=r"'\*add' is no name .* nothing to repeat"):
        Watcher(ops="*add").start()


def test_the_environment_is_read_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Watcher()
    monkeypatch.setenv("OP_OBSERVE_LIST", "torch.sin")
    with tool:
        torch.sin(vector())
        torch.cos(vector())
    assert tool.names == ["torch.sin"]
    monkeypatch.setenv("OP_OBSERVE_LIST", "")
    with tool:
        torch.sin(vector())
    assert tool.names == []
    monkeypatch.setenv("OP_OBSERVE_LIST", ".*")
    monkeypatch.setenv("OP_OBSERVE_DISABLE_LIST", "torch.sin,torch.tensor")
    with tool:
        a = vector()
        torch.sin(a)
        torch.cos(a)
    assert tool.names == ["torch.cos"]


def test_arguments_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = vector()
    file = tmp_path / "tools.toml"
    file.write_text('[all]\nevery = 2\n[observe]\nops = ["torch.sin", "torch.cos"]\n')
    monkeypatch.setenv("OP_TOOLS_CONFIG", str(file))
    with Watcher() as seen:
        for _ in range(4):
            torch.sin(a)
            torch.tan(a)
    assert seen.names == ["torch.sin"] * 2
    monkeypatch.setenv("OP_OBSERVE_LIST", "torch.tan")
    with Watcher() as seen:
        torch.sin(a)
        torch.tan(a)
    assert seen.names == ["torch.tan"]
    with Watcher(ops=["torch.exp"]) as seen:
        torch.tan(a)
        torch.exp(a)
    assert seen.names == ["torch.exp"]


def test_a_section_of_a_tool_goes_before_that_of_all_tools(tmp_path: Path) -> None:
    a = vector()
    file = tmp_path / "tools.toml"
    file.write_text("[tools]\nevery = 4\n[observe]\nevery = 2\n")
    with Watcher(config=str(file)) as seen:
        for _ in range(4):
            torch.sin(a)
    assert seen.names == ["torch.sin"] * 2


def test_options_of_one_tool_are_read_from_the_file_behind_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tools.toml"
    file.write_text('[time_measure]\nmode = "sync"\n[autocompare]\nsample = 3\nmode = "sample"\n')
    assert options_for("TIME_MEASURE", config=str(file)).more == {"mode": "sync"}
    assert options_for("AUTOCOMPARE", config=str(file)).more == {"mode": "sample", "sample": 3}
    monkeypatch.setenv("OP_TIME_MEASURE_MODE", "events")
    assert options_for("TIME_MEASURE", config=str(file)).more == {"mode": "events"}
    monkeypatch.setenv("DEEPLINK_CONFIG", str(file))
    assert settings.OP_AUTOCOMPARE_MODE.get() == "sample"
    assert options_for("AUTOCOMPARE").more == {"sample": 3}


@pytest.mark.parametrize(
    ("settings_of_run", "first"),
    [
        ({}, 2),
        ({"OP_CAPTURE_FIRST": "3"}, 3),
        ({"OP_CAPTURE_FIRST": "3", "OP_TOOLS_FIRST": "4"}, 4),
    ],
)
def test_how_many_calls_of_a_signature_are_captured(
    settings_of_run: dict[str, str],
    first: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "tools.toml"
    file.write_text("[capture]\nfirst = 2\n[tools]\nfirst = 1\n")
    for name, value in settings_of_run.items():
        monkeypatch.setenv(name, value)
    assert options_for("CAPTURE", config=str(file)).select.first == first


def test_tolerances_in_the_file_of_one_tool_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text("[autocompare]\ntolerance.float16 = [1e-3, 1e-3]\n")
    with pytest.raises(SettingError, match=r"tolerance\.float16 is not read from the file of"):
        options_for("AUTOCOMPARE", config=str(file))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[captur]\n", "no section \\[captur\\].*\n.*did you mean 'capture'"),
        ("[observe\n", "is not TOML"),
    ],
)
def test_a_bad_file_is_reported_at_the_start(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "tools.toml"
    file.write_text(text)
    with pytest.raises(SettingError, match=message):
        Watcher(config=str(file)).start()


def test_a_selection_by_step_module_line_first_and_every() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)).to("dipu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = vector().reshape(1, 2)
    linear = "torch.nn.functional.linear"
    tools = {
        "steps": Watcher(ops=linear, select=Selection(steps=Steps.parse("1,3-"))),
        "modules": Watcher(ops=linear, select=Selection(modules=["1"])),
        "first": Watcher(ops=linear, select=Selection(first=3)),
        "every": Watcher(ops=linear, select=Selection(every=4)),
        "sites": Watcher(ops=linear, select=Selection(sites=["test_filters.py:*"])),
        "nowhere": Watcher(ops=linear, select=Selection(sites=["train.py:*"])),
        "ranks": Watcher(ops=linear, select=Selection(ranks=[1])),
    }
    for tool in tools.values():
        tool.start()
    for _ in range(5):
        model(x).sum().backward()
        optimizer.step()
    for tool in tools.values():
        tool.stop()
    counts = {name: len(tool.calls) for name, tool in tools.items()}
    assert counts == {
        "steps": 6,
        "modules": 5,
        "first": 6,  # of the two layers only one has an input that wants a gradient
        "every": 3,
        "sites": 10,
        "nowhere": 0,
        "ranks": 0,
    }


@pytest.mark.parametrize("text", ["x", "3-x", "-2"])
def test_a_bad_range_of_steps_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a number nor a range"):
        Steps.parse(text)


def test_an_empty_range_of_steps_in_a_file_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tools.toml"
    file.write_text('[all]\nsteps = "5-3"\n')
    with pytest.raises(
        SettingError, match=r"tools\.steps='5-3' is not allowed: the range '5-3' is empty"
    ):
        op_tools.OpFallback(config=str(file)).start()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ops": ""}, "OP_FALLBACK_LIST is empty"),
        ({"ops": "torch.tan"}, "No operator that was called is in the list torch.tan"),
        ({"devices": ["xpu"]}, "Calls were made on dipu; the tool watches xpu. Hint: OP_TOOLS_DEV"),
        ({"select": Selection(steps=Steps.parse("7"))}, "because the selection left them out"),
        ({"condition": lambda *a, **k: False}, "left out: 2 because the condition was false"),
    ],
)
def test_nothing_seen_says_why(
    options: dict[str, object], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with op_tools.OpFallback(**options):  # type: ignore[arg-type]
        torch.sin(vector())
    assert reason in capsys.readouterr().out


def test_a_tools_errors_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    def condition(x: torch.Tensor) -> bool:
        raise ValueError("no such column")

    for times in (2, 0, 1):
        with op_tools.OpFallback(ops="torch.sin", condition=condition):
            for _ in range(times):
                torch.sin(vector())
        output = capsys.readouterr().out
        told = {0: "", 1: "once on torch.sin", 2: "2 times on torch.sin"}[times]
        assert told in output and ("no such column" in output) is bool(times)


def test_entries_that_never_matched_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with op_tools.OpFallback(ops="torch.sin,torch.tan"):
        torch.sin(vector())
    assert "never matched: torch.tan" in capsys.readouterr().out


@pytest.mark.parametrize("space", ["torch", "torch.Tensor", "torch.nn.functional", "torch.linalg"])
def test_every_function_that_torch_offers_is_met_by_the_name_it_is_offered_under(
    space: str,
) -> None:
    place = functools.reduce(getattr, space.split(".")[1:], torch)
    offered = get_overridable_functions()[place]
    words = [w for w in dir(place) if not w.startswith("_") and getattr(place, w) in offered]
    assert len(words) > 30
    shown = {word: op_names.name_of(getattr(place, word)) for word in words}
    assert not [w for w, name in shown.items() if name not in Names((f"{space}.{w}",))]


def test_mm_is_not_called_by_the_name_of_a_sparse_product() -> None:
    assert op_names.name_of(torch.mm) == "torch.mm"


def test_a_devices_own_name_is_watched_where_it_is_called_cuda() -> None:
    program = """
import torch, ditorch, op_tools
with op_tools.OpFallback(devices=["dipu"]) as tool:
    torch.sin(torch.ones(2, device="cuda"))
assert tool.hits["torch.sin"] == 1
"""
    done = warm.run(["-c", program], os.environ, warn="ignore")
    assert done.returncode == 0, done.stderr


def test_a_package_whose_name_begins_like_ours_belongs_to_the_program() -> None:
    site = Path(torch.__file__).parents[1]
    ours = Path(call.__file__).parents[2]
    assert call.is_programs(f"{site}/torchvision/models/resnet.py")
    assert call.is_programs(f"{ours}/deeplink_examples/train.py")
    assert not call.is_programs(f"{site}/torch/nn/modules/linear.py")
    assert not call.is_programs(f"{ours}/deeplink/vendor.py")
