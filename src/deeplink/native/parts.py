# SPDX-License-Identifier: Apache-2.0
"""The native parts by name: their C++ sources and the file names of their libraries.

Imports only the standard library, because CMake runs this file while a wheel is built: at that
time nothing that deeplink depends on is installed, except torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parent  # the folder of CMakeLists.txt
ROOT = PROJECT.parents[1]  # the folder of all packages: `src`, or site-packages
SOURCES = {".c", ".cpp", ".h"}


class MissingError(Exception):
    """A prerequisite of a build is not installed: the message,
    and a hint with the command to type.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Part:
    """A shared library. CMakeLists.txt lists its units; all C and C++ in `folders` is hashed."""

    name: str
    folders: tuple[str, ...]
    torch: bool = True  # an extension module of torch, or a library independent of torch

    def hash(self) -> str:
        """Hash the sources and the build configuration."""
        digest = hashlib.sha256((PROJECT / "CMakeLists.txt").read_bytes())
        for file in self.sources():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()[:12]

    def sources(self) -> list[Path]:
        """List every C and C++ file, in a fixed order."""
        found = (file for folder in self.folders for file in sorted((ROOT / folder).rglob("*")))
        return [file for file in found if file.suffix in SOURCES]

    def file_name(self) -> str:
        """Name the library for the current sources and the installed torch."""
        return f"{self.name}-{self.tag()}-{self.hash()}.so"

    def tag(self) -> str:
        """Return what the library is bound to: torch's minor version, Python and the machine."""
        if not self.torch:
            return sysconfig.get_platform()
        return f"torch{torch_minor()}-{sysconfig.get_config_var('SOABI')}"


_ALL = (
    Part("torch_dipu", ("torch_dipu/csrc", "diopi/include")),
    Part(
        "dipu_reference",
        ("deeplink_vendors/reference", "torch_dipu/csrc/include", "diopi/include"),
        torch=False,
    ),
    Part("ditorch", ("ditorch/csrc",)),
    Part("op_tools", ("op_tools/csrc",)),
    Part("dlinfer", ("dlinfer/csrc",)),
    Part("deeplink_vendors.cpu.fused", ("deeplink_vendors/cpu/fused/csrc",)),
    Part("hlir_sim", ("deeplink_vendors/enflame/graph/csrc",), torch=False),
)
PARTS = {part.name: part for part in _ALL}
GROUPS = {
    # the parts that a training on the reference device uses
    "core": ("torch_dipu", "dipu_reference", "ditorch", "op_tools"),
    # the parts in a wheel; hlir_sim is useful only where a compiler is installed
    "all": tuple(name for name in PARTS if name != "hlir_sim"),
    "none": (),
}


def names(wanted: Sequence[str]) -> tuple[str, ...]:
    """Expand names of parts and groups to names of parts."""
    unknown = [name for name in wanted if name not in PARTS and name not in GROUPS]
    if unknown:
        raise MissingError(
            f"no native part is named {unknown[0]!r}; "
            f"parts: {', '.join(PARTS)}; groups: {', '.join(GROUPS)}.",
            "name one of these.",
        )
    return tuple(dict.fromkeys(part for name in wanted for part in GROUPS.get(name, (name,))))


@cache
def torch_folder() -> Path:
    """Return the folder of the installed torch without importing torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise MissingError(
            "deeplink's C++ is compiled against torch, and this Python has no torch: "
            f"{sys.executable}.",
            "install torch first, then deeplink without build isolation (an isolated build does "
            "not see torch): pip install torch==2.13.0 scikit-build-core cmake ninja && pip "
            "install --no-build-isolation .",
        )
    return Path(spec.origin).parent


@cache
def torch_version() -> str:
    """Return the version of the installed torch."""
    text = (torch_folder() / "version.py").read_text("utf-8")
    found = re.search(r"^__version__ = ['\"](.+?)['\"]", text, re.MULTILINE)
    if found is None:
        raise MissingError(f"{torch_folder()}/version.py names no version.", "reinstall torch.")
    return found[1]


def torch_minor() -> str:
    """Return torch's minor version, whose releases share their ABI; a pre-release in full."""
    version = torch_version().split("+")[0]
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\.post\d+)?", version)
    return release[1] if release else torch_version()


def _environment() -> str:
    """Generate what CMakeLists.txt includes: paths of torch and Python, and library file names."""
    torch, python = torch_folder(), Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise MissingError(
            f"the headers of this Python are not installed: there is no {python}/Python.h.",
            "Debian and Ubuntu: apt-get install python3-dev.",
        )
    include = torch / "include"
    folders = (include, include / "torch" / "csrc" / "api" / "include", include / "kineto", python)
    values = {
        "DEEPLINK_ROOT": ROOT.as_posix(),
        "TORCH_INCLUDE": ";".join(folder.as_posix() for folder in folders),
        "TORCH_LIB": (torch / "lib").as_posix(),
        **{f"FILE_{part.name}": part.file_name() for part in PARTS.values()},
        **{f"GROUP_{name}": ";".join(parts) for name, parts in GROUPS.items()},
    }
    return "".join(f'set({name} "{value}")\n' for name, value in values.items())


def main() -> int:
    """Print the environment of a build as CMake code."""
    try:
        sys.stdout.write(_environment())
    except MissingError as error:
        sys.stderr.write(f"{error}\nHint: {error.hint}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
