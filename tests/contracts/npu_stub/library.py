"""The stub of Ascend's driver: driver.c and, for the rest, functions that refuse by their name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

DRIVER = Path(__file__).with_name("driver.c")
NAME = r"((?:acl|Hccl|Msprof|rt[A-Z])\w+)"  # how the driver's functions are called
# what torch_npu's libraries are linked to: here all of them are one
LIBRARIES = (
    "libascendcl.so",
    "libacl_op_compiler.so",
    "libacl_tdt_channel.so",
    "libge_runner.so",
    "libgraph.so",
    "libhccl.so",
)


def build(package: Path, folder: Path) -> None:
    """Compiles into `folder` what the unpacked torch_npu in `package` is linked to."""
    missing = folder / "missing.c"
    missing.write_text(_refusing(needed(package) - written()), "utf-8")
    first, *others = (folder / name for name in LIBRARIES)
    command = ["gcc", "-shared", "-fPIC", "-w", "-O1", "-o"]
    subprocess.run([*command, first, DRIVER, missing], check=True)
    for library in others:
        library.symlink_to(first.name)


def needed(package: Path) -> set[str]:
    """The driver's functions that the libraries of the package import and do not define."""
    libraries = [*package.glob("lib/lib[nt]*.so"), *package.glob("_C*.so")]
    return _symbols(libraries, "--undefined-only") - _symbols(libraries, "--defined-only")


def written() -> set[str]:
    """The functions of driver.c."""
    return set(re.findall(rf"^\w.*?\b{NAME}\(", DRIVER.read_text("utf-8"), re.MULTILINE))


def _refusing(names: set[str]) -> str:
    lines = [f'int {name}(void) {{ return npu_stub_missing("{name}"); }}' for name in sorted(names)]
    return "\n".join(["int npu_stub_missing(const char*);", *lines, ""])


def _symbols(libraries: list[Path], which: str) -> set[str]:
    command = ["nm", "-D", which, *map(str, libraries)]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(rf" {NAME}$", table, re.MULTILINE))
