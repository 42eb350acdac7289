"""Running a program in a process of its own, and comparing the numbers it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "DITORCH_QUIET": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # some virtual machines announce AMX and die by SIGILL in the CPU's own bfloat16 products
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
}


def output_of(*arguments: str, **environment: str) -> str:
    """Return the output of `python arguments…`, which must exit with 0."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        env={"DEEPLINK_VENDOR": "reference", **os.environ, **ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def result_of(*arguments: str, **environment: str) -> dict[str, Any]:
    """The numbers of the last line that the program prints, which is JSON."""
    result = json.loads(output_of(*arguments, **environment).strip().splitlines()[-1])
    assert isinstance(result, dict)
    return result


def need(*packages: str, folder: Path, before: str = "sys", install: str = "") -> None:
    """Skip where a package cannot be imported, with the command that installs it.

    `before` is a module of the folder that makes it importable.
    """
    for package in packages:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", f"import {before}, {package}"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it ended"])[-1]
            hint = install or "pip install " + " ".join(packages).replace("_", "-")
            pytest.skip(f"{package} cannot be imported ({reason}); {hint}")


def assert_near(found: Any, wanted: Any, tolerance: float, where: str = "") -> None:
    """Every number within the tolerance of its counterpart, relative to it where it is above 1."""
    if isinstance(wanted, Mapping):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            assert_near(found[key], wanted[key], tolerance, f"{where}.{key}")
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        assert len(found) == len(wanted), where
        for index, pair in enumerate(zip(found, wanted, strict=True)):
            assert_near(*pair, tolerance, f"{where}[{index}]")
    elif isinstance(wanted, float):
        assert abs(found - wanted) <= tolerance * max(1.0, abs(wanted)), (where, found, wanted)
    else:
        assert found == wanted, (where, found, wanted)
