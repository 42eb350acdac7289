"""A fresh interpreter for what a process can do only once, or only die of."""

from __future__ import annotations

import os
import subprocess

from tests import warm


def run_python(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs source text in a new process, with extra environment variables as keywords."""
    return warm.run(
        ["-c", source], {**os.environ, "OMP_NUM_THREADS": "1", **environment}, timeout=300
    )


def output_of(source: str, **environment: str) -> str:
    """Return the output of a source, which must exit with 0."""
    done = run_python(source, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
