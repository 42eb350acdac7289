"""One run in English and in Chinese: other words on the screen, equal files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import deeplink as package
from deeplink import cli
from deeplink.commands import help_texts
from deeplink.i18n import recognized, translated

# The sources of this checkout, whatever the working directory.
HERE = {"PYTHONPATH": str(Path(package.__file__).parents[1]), "PYTHONUTF8": "1"}
PROGRAM = """
import torch
torch.manual_seed(0)
weight = torch.randn(24, 24).cuda()
print(float((weight @ weight.t()).sum()) != 0)
"""


def deeplink(folder: Path, locale: str, *line: str, **values: str) -> tuple[str, str]:
    """Standard output and standard error of a command in a locale."""
    left = ("DEEPLINK_LANG", "LANG", "LC_ALL", "LC_MESSAGES")
    given = {name: value for name, value in os.environ.items() if name not in left}
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "deeplink", *line],
        cwd=folder,
        env={**given, **HERE, "LC_ALL": locale, **values},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout, done.stderr


def test_a_comparison_has_chinese_verdicts_and_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    found: dict[str, list[Any]] = {}
    shown = {}
    for locale in ("C.UTF-8", "zh_CN.UTF-8"):
        line = ["run", "-o", locale, "--autocompare", "--level", "aten", "train.py"]
        shown[locale], _ = deeplink(
            tmp_path, locale, *line, DEEPLINK_VENDOR="reference", DIPU_QUIRKS="ignore_strides:mm"
        )
        folder = tmp_path / locale
        files = [*folder.rglob("*.problems.json"), *folder.rglob("op_autocompare_info_*.jsonl")]
        found[locale] = [_plain(file) for file in sorted(files, key=lambda file: file.suffixes)]
    assert "Problem:    aten.mm.default, output forward: " in shown["C.UTF-8"]
    assert "Workaround: deeplink run --fallback aten.mm.default" in shown["C.UTF-8"]
    assert "问题：      aten.mm.default，output forward：" in shown["zh_CN.UTF-8"]
    assert "误差超过舍入所允许的范围" in shown["zh_CN.UTF-8"]
    assert "规避方法：  deeplink run --fallback aten.mm.default" in shown["zh_CN.UTF-8"]
    assert len(found["C.UTF-8"]) == 2
    assert found["C.UTF-8"] == found["zh_CN.UTF-8"]


def _plain(file: Path) -> list[Any]:
    """The content of a file of results, without the folder of the saved call."""
    text = file.read_text("utf-8")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return [{**each, "next": ""} for each in json.loads(text).values()]


def test_the_doctor_writes_the_same_json_in_both_languages(tmp_path: Path) -> None:
    line = ["doctor", "--vendor", "reference", "--no-self-test", "--json", "found.json"]
    english, _ = deeplink(tmp_path / "a", "C", *line)
    chinese, _ = deeplink(tmp_path / "b", "zh_CN.UTF-8", *line)
    assert "No problem; device not tested" in english
    assert "没有问题；未测试设备" in chinese
    assert (tmp_path / "a/found.json").read_text() == (tmp_path / "b/found.json").read_text()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_error_is_in_the_language_that_is_set(tmp_path: Path, language: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deeplink", "run", "nosuch.py"],
        cwd=tmp_path,
        env={**os.environ, **HERE, "DEEPLINK_LANG": language},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    expected = {"en": "no script 'nosuch.py'.\nHint: ", "zh": "没有脚本 'nosuch.py'。\n提示："}
    assert done.returncode == 2
    assert done.stderr.startswith(expected[language])


def test_texts_of_result_files_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPLINK_LANG", "zh")
    text = "Cause: aten.mm.default. Moving only this operator to the CPU fixes the loss"
    text += " (12 operators tested in 5 runs)."
    shown = "原因：aten.mm.default。只把这个算子移到 CPU，即可使损失恢复正确"
    assert translated(recognized(text)) == shown + "（5 次运行测试了 12 个算子）。"
    assert translated(recognized("words of a program")) == "words of a program"
    assert recognized(text) == text


@pytest.mark.parametrize("line", [[], ["run"], ["bisect"], ["cache"], ["one-iter", "record"]])
def test_help_is_chinese_line_for_line(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = {}
    for language in ("en", "zh"):
        monkeypatch.setenv("DEEPLINK_LANG", language)
        assert cli.status([*line, "--help"]) == 0
        shown[language] = capsys.readouterr().out
    assert "用法：deeplink" in shown["zh"]
    assert "选项:" in shown["zh"] and "Options" not in shown["zh"]
    names = [re.findall(r"^  (-\S+(?: -\S+)?)", text, re.MULTILINE) for text in shown.values()]
    assert names[0] == names[1] != []
    commands = [
        re.findall(r"^ +(deeplink \S+.*?)(?:  .*)?$", t, re.MULTILINE) for t in shown.values()
    ]
    assert commands[0] == commands[1]
    assert max(map(cell_len, shown["zh"].splitlines())) <= 100


def test_help_of_all_commands_has_no_english_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DEEPLINK_LANG", "zh")
    for _, name, _ in cli.COMMANDS:
        assert cli.status([name, "--help"]) == 0
        for line in capsys.readouterr().out.splitlines():
            text = re.sub(r"deeplink .*?(  |$)|curl .*|`[^`]*`", "", line)
            assert not re.search(r"[a-z]+ [a-z]+ [a-z]+ [a-z]+", text), line


def test_chinese_help_wraps_by_columns() -> None:
    text = "只包括这些训练步，例如 3,10-20,100-。（OP_TOOLS_STEPS）"
    lines = ["只包括这些训练步，例", "如 3,10-20,100-。", "（OP_TOOLS_STEPS）"]
    assert help_texts.wrapped(text, 20) == lines
    assert help_texts.wrapped("", 20) == [""]
