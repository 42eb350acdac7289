"""Every numeric fault in a transformer and a CNN, in float32 and bfloat16: named, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_whole_grid_is_named_rightly() -> None:
    line = [sys.executable, str(ROOT / "benchmarks" / "bench_diagnose.py")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout
