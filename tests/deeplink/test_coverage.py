"""Reading a program before it is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deeplink.cli import app
from deeplink.coverage import scan
from deeplink.errors import DeeplinkError

PROGRAM = """
import torch
import torch.cuda.nvtx as nvtx
from torch import cuda
from torch.cuda.amp import GradScaler
torch.cuda.manual_seed_all(1)
cuda.synchronize()
cuda.synchronize()
nvtx.range_push("x")
torch.cuda.jiterator._create_jit_fn("")
other.cuda.is_available()
torch.cuda.no_such_name()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_names_are_found_by_attribute_alias_and_import(program: Path) -> None:
    uses = {use.name: use for use in scan(program)}
    assert sorted(uses) == [
        "amp.GradScaler",
        "jiterator._create_jit_fn",
        "manual_seed_all",
        "no_such_name",
        "nvtx.range_push",
        "synchronize",
    ]
    assert uses["synchronize"].lines == (7, 8)
    assert uses["synchronize"].served
    assert not uses["jiterator._create_jit_fn"].served
    assert uses["no_such_name"].rule == ""


def test_the_command_lists_what_is_not_served_and_fails(program: Path) -> None:
    result = CliRunner().invoke(app, ["coverage", str(program)])
    assert result.exit_code == 1
    assert "4 of 6 names are served; 2 are not" in result.output
    assert "jiterator._create_jit_fn" in result.output
    assert "manual_seed_all" not in result.output


def test_a_program_that_is_all_served_passes(tmp_path: Path) -> None:
    path = tmp_path / "fine.py"
    path.write_text("import torch\ntorch.cuda.empty_cache()\n")
    result = CliRunner().invoke(app, ["coverage", str(path)])
    assert result.exit_code == 0
    assert "1 of 1 names are served; 0 are not" in result.output


def test_bad_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeeplinkError, match="no file or folder"):
        scan(tmp_path / "missing.py")
    broken = tmp_path / "broken.py"
    broken.write_text("def (")
    with pytest.raises(DeeplinkError, match=r"cannot read .*broken\.py as Python"):
        scan(broken)
