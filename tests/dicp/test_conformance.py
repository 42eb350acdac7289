"""`python -m dicp.conformance`: operators and models of a vendor's backend, by one command."""

import json
from pathlib import Path

import pytest

from dicp.conformance.__main__ import main

HERE = "tests.dicp.toy_backends"
STATIC_INI = """
[pytest]
testpaths = ../../op
python_files =
    test_add.py
    test_mul.py
"""


def rows(backend: str, tmp_path: Path, *arguments: str) -> tuple[int, list[dict[str, str]]]:
    """The exit status of the command and its rows."""
    file = tmp_path / "found.json"
    status = main(["--backend", f"{HERE}:{backend}", "--json", str(file), *arguments])
    return status, json.loads(file.read_text("utf-8"))


def test_every_operator_is_tried_with_fixed_sizes_and_with_sizes_that_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = rows("right", tmp_path, "--ops")
    assert status == 0
    assert [(row["name"], row["sizes"], row["status"]) for row in found] == [
        (f"aten.{name}", sizes, "right")
        for name in ("add.Tensor", "mul.Tensor", "relu.default")
        for sizes in ("static", "dynamic")
    ]
    assert "ops: 6 right, 0 wrong, 0 eager, 0 not tried" in capsys.readouterr().out


def test_a_wrong_conversion_is_in_the_table_and_in_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = rows("wrong", tmp_path, "--ops", "relu", "add.Tensor", "--dynamic", "false")
    assert status == 1
    assert {row["name"]: row["status"] for row in found} == {
        "aten.add.Tensor": "right",
        "aten.relu.default": "wrong",
    }
    printed = capsys.readouterr().out
    assert "aten.relu.default" in printed and "values" in printed
    assert "aten.add.Tensor" not in printed  # what is right is only counted


def test_an_operator_that_is_named_and_stays_eager_fails(tmp_path: Path) -> None:
    status, found = rows("right", tmp_path, "--ops", "tanh", "--dynamic", "false")
    assert (status, found[0]["status"], found[0]["text"]) == (1, "eager", "no conversion")


def test_a_backend_for_fixed_sizes_is_tried_at_two_of_them(tmp_path: Path) -> None:
    status, found = rows("without_symbols", tmp_path, "--ops", "--dynamic", "true")
    assert (status, [row["status"] for row in found]) == (0, ["right"])


def test_models_are_compiled_and_judged(tmp_path: Path) -> None:
    status, found = rows("right", tmp_path, "--models", "mlp", "--dynamic", "false")
    assert status == 0
    assert (found[0]["kind"], found[0]["status"]) == ("model", "right")
    assert found[0]["cases"].endswith("compiled")


def test_the_documents_ini_names_the_cases(tmp_path: Path) -> None:
    cases = tmp_path / "static.ini"
    cases.write_text(STATIC_INI)
    status, found = rows("right", tmp_path, "--cases", str(cases), "--dynamic", "false")
    assert status == 0
    assert [row["name"] for row in found] == ["aten.add.Tensor", "aten.mul.Tensor"]


def test_a_toml_names_operators_models_and_types(tmp_path: Path) -> None:
    cases = tmp_path / "cases.toml"
    cases.write_text('ops = ["relu"]\nmodels = ["mlp"]\ndtypes = ["bfloat16"]\n')
    status, found = rows("right", tmp_path, "--cases", str(cases), "--dynamic", "false")
    assert status == 0
    assert [(row["name"], row["dtype"]) for row in found] == [
        ("aten.relu.default", "bfloat16"),
        ("mlp", "bfloat16"),
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ops", "sofmax"], "no operator 'sofmax' in torch.ops.aten.\nHint: did you mean"),
        (["--models", "lama"], "no model 'lama'; there are: plain llama"),
        (["--cases", "nowhere.ini"], "cannot read cases from nowhere.ini"),
    ],
)
def test_a_misspelt_name_is_reported(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--backend", f"{HERE}:right", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_tensors_lie_on_the_backend_s_own_device(tmp_path: Path) -> None:
    status, found = rows("on_device", tmp_path, "--ops", "--dynamic", "false")
    assert (status, found[0]["status"]) == (0, "right")
