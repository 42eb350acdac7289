"""Small C libraries for tests: compiled against the interface's headers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from diopi import cabi

COMPILER = shutil.which("gcc") or shutil.which("cc") or ""
IMPLEMENTED = "#define DIOPI_IMPLEMENTATION\n#include <diopi.h>\n"


def library(folder: Path, source: str, *flags: str, name: str = "libdiopi_impl.so") -> Path:
    """The library of one C file; warnings are errors."""
    if not COMPILER:
        pytest.skip("no C compiler")
    unit, path = folder / "unit.c", folder / name
    unit.write_text(source)
    command = [COMPILER, "-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    done = subprocess.run(
        [*command, *flags, f"-I{cabi.include()}", str(unit), "-o", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path
