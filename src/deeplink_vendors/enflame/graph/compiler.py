# SPDX-License-Identifier: Apache-2.0
"""From topsgraph's source to a module: compiled and run against the builder of the simulation.

The SDK works equally up to the library: g++ checks every name, number and type of the calls; the
function builds a graph, and its recording is the module.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deeplink import native, settings
from deeplink.errors import CompileError
from deeplink.i18n import _

INCLUDE = Path(__file__).with_name("csrc") / "include"
HEAD = '#include "dtu/hlir_builder/hlir_builder.h"\n\n#include <cstdio>\n\n'
# the source's own include is empty by then
PART = 'namespace graph_{0} {{\n#include "graph_{0}.cpp"\n}}\n'
PRINT = '  std::fputs(graph_{0}::build()->GetModuleStr().c_str(), stdout);\n  std::puts("");\n'
WEIGHTS = "// input "
LIMIT = 300  # seconds


def version() -> str:
    """Return the version of the simulation; raise if there is no C++ compiler."""
    if not native.has_compiler():
        raise CompileError(
            _("topsgraph writes C++, and there is no C++ compiler here."),
            _("install g++, or set CXX to one."),
        )
    return "sim of TopsGraph's builder, 2022"


def compile_source(source: bytes) -> bytes:
    """Return the module of a source: its notes of weights, and a line of JSON for each operator."""
    return compile_sources([source])[0]


def compile_sources(sources: Sequence[bytes]) -> list[bytes]:
    """Return the modules of several sources, by one run of the compiler."""
    library = native.build(["hlir_sim"])["hlir_sim"]
    with tempfile.TemporaryDirectory(prefix="topsgraph_") as name:
        folder = Path(name)
        for number, source in enumerate(sources):
            (folder / f"graph_{number}.cpp").write_bytes(source)
        (folder / "main.cpp").write_text(_main(len(sources)), "utf-8")
        command = [settings.CXX.get(), "-std=c++17", "-O0", f"-I{INCLUDE}", "main.cpp"]
        link = [str(library), f"-Wl,-rpath,{library.parent}", "-o", "graph"]
        _run([*command, *link], folder)
        modules = _run(["./graph"], folder).split("\n\n")
    return [
        "\n".join([*_notes(source), module]).encode()
        for source, module in zip(sources, modules, strict=False)
    ]


def _main(count: int) -> str:
    parts = "".join(PART.format(number) for number in range(count))
    prints = "".join(PRINT.format(number) for number in range(count))
    return f"{HEAD}{parts}\nint main() {{\n{prints}}}\n"


def _notes(source: bytes) -> list[str]:
    return [line for line in source.decode().splitlines() if line.startswith(WEIGHTS)]


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        text = done.stderr.strip()[:2000]
        raise CompileError(f"topsgraph (sim): {Path(command[0]).name} failed: {text}")
    return done.stdout
