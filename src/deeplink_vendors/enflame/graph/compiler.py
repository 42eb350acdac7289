"""From topsgraph's source to a module: compiled and run against the builder of the simulation.

The SDK's way is the same up to the library: g++ checks every name, number and type of the calls;
the function builds a graph, and what it recorded is the module.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from deeplink import settings
from deeplink.errors import CompileError
from deeplink.native import Library, has_compiler

CSRC = Path(__file__).with_name("csrc")
INCLUDE = CSRC / "include"
BUILDER = Library("hlir_sim", (CSRC / "hlir_sim.cpp",), (CSRC, INCLUDE), torch=False)
MAIN = """#include "graph.cpp"

#include <cstdio>

int main() { std::fputs(build()->GetModuleStr().c_str(), stdout); }
"""
WEIGHTS = "// input "
LIMIT = 300  # seconds


def version() -> str:
    """Of the simulation; it needs a C++ compiler."""
    if not has_compiler():
        raise CompileError(
            "topsgraph writes C++, and there is no C++ compiler here.",
            "install g++, or set CXX to one.",
        )
    return "sim of TopsGraph's builder, 2022"


def compile_source(source: bytes) -> bytes:
    """The module of a source: its notes of weights, and a line of JSON for each operator."""
    library = BUILDER.build()
    with tempfile.TemporaryDirectory(prefix="topsgraph_") as name:
        folder = Path(name)
        (folder / "graph.cpp").write_bytes(source)
        (folder / "main.cpp").write_text(MAIN, "utf-8")
        command = [settings.CXX.get(), "-std=c++17", "-O0", f"-I{INCLUDE}", "main.cpp"]
        link = [str(library), f"-Wl,-rpath,{library.parent}", "-o", "graph"]
        _run([*command, *link], folder)
        module = _run(["./graph"], folder)
    notes = [line for line in source.decode().splitlines() if line.startswith(WEIGHTS)]
    return "\n".join([*notes, module]).encode()


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if done.returncode:
        text = done.stderr.strip()[:2000]
        raise CompileError(f"topsgraph (sim): {Path(command[0]).name} failed: {text}")
    return done.stdout
