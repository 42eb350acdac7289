"""The wheel in an empty environment without a compiler: `pytest -m slow` with a package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch

from deeplink import native

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOOLS = ("c++", "cc", "clang", "cmake", "g++", "gcc", "ninja")


@dataclass(frozen=True)
class Place:
    """An environment that has the wheel, torch and the dependencies; and the folder to work in."""

    python: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """No tool of a compiler on PATH, no setting of ours, empty caches and an empty home."""
        kept = {k: v for k, v in os.environ.items() if k in ("LANG", "TMPDIR")}
        return {**kept, "PATH": str(self.python.parent), "HOME": str(self.folder)}

    def run(self, *line: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in the folder."""
        program = str(self.python.with_name(line[0]))
        return subprocess.run(
            [program, *line[1:]],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


def pip(python: str | Path, *line: str | Path) -> None:
    """Run pip; skip where it does not get a package."""
    command = [python, "-m", "pip", "--disable-pip-version-check", *line]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "No matching distribution found" in done.stderr:
        pytest.skip(f"pip has no index: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr


def requirements() -> list[str]:
    """Return the wheel's dependencies, with the torch of this process."""
    plain = [text for text in requires("deeplink") or () if "extra ==" not in text]
    return [f"torch=={torch.__version__}", *(t for t in plain if not t.startswith("torch"))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = ("wheel", "--no-build-isolation", "--no-deps", "-q", "-w", folder, ROOT)
    pip(sys.executable, *wheel)
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment/bin/python"
    pip(python, "install", "-q", *requirements())
    pip(python, "install", "-q", "--no-deps", *folder.glob("deeplink-*.whl"))
    (folder / "work").mkdir()
    made = Place(python, folder / "work")
    assert [tool for tool in TOOLS if shutil.which(tool, path=made.environment["PATH"])] == []
    return made


def output_of(done: subprocess.CompletedProcess[str], status: int = 0) -> str:
    """Return a command's output; raise unless its status is the expected one."""
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_doctor_has_no_problem(place: Place) -> None:
    text = output_of(place.run("deeplink", "doctor"))
    assert text.startswith("All checks passed: reference device"), text


def test_the_demo_runs_from_another_folder(place: Place) -> None:
    text = output_of(place.run("deeplink", "demo"))
    assert "largest difference from the CPU 0.0e+00 (within 0.001)" in text
    assert "\nfixed\n" in text
    assert (place.folder / "op_tools_results/demo/report.html").is_file()


def test_an_example_is_compared_with_the_cpu(place: Place) -> None:
    folder = place.run("python", "-m", "deeplink.native", "--examples").stdout.strip()
    assert Path(folder).is_relative_to(place.python.parents[1])
    line: Sequence[str] = ("--autocompare", f"{folder}/train_cuda_style.py", "--steps", "2")
    text = output_of(place.run("deeplink", "run", *line))
    assert ", 0 wrong" in text


def test_no_native_part_was_built(place: Place) -> None:
    """Every part of the group "all" is found in the installed package, and the cache is empty."""
    source = "from deeplink import native; print(*native.build(['all']).values(), sep='\\n')"
    found = output_of(place.run("python", "-c", source)).splitlines()
    assert len(found) == len(native.parts.names(["all"]))
    assert {Path(path).parent.name for path in found} == {"prebuilt"}
    assert list(place.folder.rglob("*.so")) == []
