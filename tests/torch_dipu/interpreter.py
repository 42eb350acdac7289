"""A fresh interpreter for what a process can do only once, or only die of."""

from __future__ import annotations

import os
import subprocess
import sys


def run_python(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs source text in a new process, with extra environment variables as keywords."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def output_of(source: str, **environment: str) -> str:
    """What the source prints; it must end well."""
    done = run_python(source, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
