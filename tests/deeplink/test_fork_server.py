"""Runs that are forked from a process with torch: as `python` would have started them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeplink.run.fork_server import Warm

PROGRAM = """
import os, signal, sys
import numpy
print(__name__, __file__, sys.argv, sys.path[0], os.environ["SAID"], os.getsid(0) == os.getpid())
print("random", numpy.random.random(), "torch" in sys.modules)
if sys.argv[1] == "raise":
    raise ValueError("of the program")
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("warm")
    (made / "train.py").write_text(PROGRAM)
    return made


@pytest.fixture(scope="module")
def warm(folder: Path) -> Iterator[Warm]:
    made = Warm.of([sys.executable, str(folder / "train.py")], os.environ)
    assert made is not None
    yield made
    made.close()


def ran(warm: Warm, folder: Path, word: str) -> tuple[int, list[str]]:
    line = [sys.executable, str(folder / "train.py"), word]
    with (folder / "log").open("wb") as out:
        status = warm.start(line, out.fileno(), {**os.environ, "SAID": "this"}).wait(60)
    return status, (folder / "log").read_text().splitlines()


def test_a_run_has_what_python_gives_it(warm: Warm, folder: Path) -> None:
    status, (first, second) = ran(warm, folder, "end")
    file = folder / "train.py"
    assert (status, first) == (3, f"__main__ {file} ['{file}', 'end'] {folder} this True")
    assert second.endswith(" True")  # torch was there already
    assert ran(warm, folder, "end")[1][1] != second  # and other random numbers


def test_its_error_and_its_end_are_its_own(warm: Warm, folder: Path) -> None:
    status, lines = ran(warm, folder, "raise")
    assert (status, lines[-1]) == (1, "ValueError: of the program")
    assert [line for line in lines if "File" in line] == [
        f'  File "{folder / "train.py"}", line 7, in <module>'
    ]
    assert ran(warm, folder, "kill")[0] == -signal.SIGKILL


@pytest.mark.parametrize(
    "line",
    [
        ["torchrun", "train.py"],
        [sys.executable, "-m", "torch.distributed.run", "train.py"],
        [sys.executable, "-c", ""],
    ],
)
def test_what_is_no_program_of_this_python_is_started_as_it_is(line: list[str]) -> None:
    assert Warm.of(line, os.environ) is None
