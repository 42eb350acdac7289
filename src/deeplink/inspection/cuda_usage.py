# SPDX-License-Identifier: Apache-2.0
"""The CUDA features that a program's source uses: torch.cuda, CUDA C++, Triton, CUDA packages.

Nothing of the program runs. ditorch decides whether the chosen device supports a name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.i18n import _

# CUDA dependencies outside of torch.cuda: (kind, advice) by the module that is imported.
SDPA = "use torch.nn.functional.scaled_dot_product_attention, or the vendor's build of the package"
BUILD = "install the vendor's build of the package"
PACKAGES = {
    "triton": ("Triton kernels", "use torch operators, or the vendor's build of Triton"),
    "flash_attn": ("a package with CUDA binaries", SDPA),
    "flashinfer": ("a package with CUDA binaries", SDPA),
    "xformers": ("a package with CUDA binaries", SDPA),
    "bitsandbytes": ("a package with CUDA binaries", f"use torch.optim, or {BUILD}"),
    "apex": (
        "a package with CUDA binaries",
        "use torch.amp, torch.nn.LayerNorm and torch.optim with fused=True",
    ),
    "deepspeed": (
        "a package with CUDA binaries",
        f"use torch.distributed.fsdp.fully_shard, or {BUILD}",
    ),
    "transformer_engine": ("a package with CUDA binaries", f"use torch.nn, or {BUILD}"),
    "mamba_ssm": ("a package with CUDA binaries", BUILD),
    "causal_conv1d": ("a package with CUDA binaries", BUILD),
    "cupy": ("a package with CUDA binaries", "use torch operators"),
    "pycuda": ("a package with CUDA binaries", "use torch operators"),
}
CUDA_CPP = ("CUDA C++", "write the kernel for the device, or use torch operators")
BUILDERS = ("load_inline", "load", "CUDAExtension")  # of torch.utils.cpp_extension
EXTENSION = "torch.utils.cpp_extension"
SOURCES = (".cu", ".cuh")


@dataclass(frozen=True)
class Use:
    """A name of torch.cuda that a file uses, with the lines."""

    name: str
    file: str
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Foreign:
    """CUDA-specific code of a program that no table of torch.cuda's names covers."""

    name: str  # "flash_attn", "@triton.jit", "load_inline"
    what: str
    file: str
    line: int
    advice: str


@dataclass(frozen=True)
class ScanResult:
    """The CUDA features that a scan found."""

    uses: list[Use]
    foreign: list[Foreign]


def scan(path: Path) -> ScanResult:
    """Read a file, or every Python and CUDA file below a folder."""
    if not path.exists():
        raise DeeplinkError(
            _("no file or folder {path!r}.").format(path=str(path)),
            hint=_("give a script or a package."),
        )
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    found = ScanResult([], [])
    for file in files:
        if file.suffix in SOURCES:
            found.foreign.append(Foreign(file.name, *_cpp(str(file), 1)))
        elif file.suffix == ".py" or file == path:
            _read(file, found)
    return found


def _read(file: Path, found: ScanResult) -> None:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise DeeplinkError(
            _("cannot read {file} as Python: {error}.").format(file=file, error=error),
            _("give a script, or a folder of them."),
        ) from error
    names = _Names(tree)
    found.uses.extend(_uses(names.below("torch.cuda"), str(file)))
    seen: set[str] = set()
    for one in sorted(_foreign(tree, names, str(file)), key=lambda one: one.line):
        if one.name not in seen:
            seen.add(one.name)
            found.foreign.append(one)


def _uses(names: Iterable[tuple[str, int]], file: str) -> Iterator[Use]:
    lines: dict[str, list[int]] = {}
    for name, line in names:
        lines.setdefault(name, []).append(line)
    for name in sorted(lines):
        yield Use(name, file, tuple(lines[name]))


def _foreign(tree: ast.AST, names: _Names, file: str) -> Iterator[Foreign]:
    for module, line in names.imported:
        package = module.partition(".")[0]
        if package in PACKAGES:
            what, advice = PACKAGES[package]
            yield Foreign(package, what, file, line, advice)
    for name, line in names.below(EXTENSION):
        if name in BUILDERS:
            yield Foreign(name, *_cpp(file, line))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.endswith(SOURCES) and "\n" not in node.value:
                yield Foreign(Path(node.value).name, *_cpp(file, node.lineno))
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                inner = decorator.func if isinstance(decorator, ast.Call) else decorator
                name = names.full(_dotted(inner))
                if name.startswith("triton."):
                    yield Foreign(f"@{name}", PACKAGES["triton"][0], file, inner.lineno,
                                  PACKAGES["triton"][1])  # fmt: skip


def _cpp(file: str, line: int) -> tuple[str, str, int, str]:
    what, advice = CUDA_CPP
    return what, file, line, advice


class _Names:
    """The full names of the modules and names that one file imports."""

    def __init__(self, tree: ast.AST) -> None:
        self.imported: list[tuple[str, int]] = []  # imported modules and names, with their lines
        self._short: dict[str, str] = {}  # short name in the file -> full name
        self._used: list[tuple[str, int]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.imported.append((alias.name, node.lineno))
                    if alias.asname:
                        self._short[alias.asname] = alias.name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    self.imported.append((full, node.lineno))
                    self._short[alias.asname or alias.name] = full
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):  # only the longest attribute chain of each expression
            if isinstance(node, ast.Attribute) and id(node) not in inner and _dotted(node):
                self._used.append((self.full(_dotted(node)), node.lineno))

    def full(self, dotted: str) -> str:
        """Resolve a short name to its full name: `F.gelu` -> `torch.nn.functional.gelu`."""
        first, _, rest = dotted.partition(".")
        module = self._short.get(first, first)
        return f"{module}.{rest}" if rest else module

    def below(self, module: str) -> Iterator[tuple[str, int]]:
        """Yield the names below a module that are used by attribute or import, with their lines."""
        for name, line in (*self.imported, *self._used):
            if name.startswith(f"{module}.") and not self._is_module(name, line):
                yield name[len(module) + 1 :], line

    def _is_module(self, name: str, line: int) -> bool:
        """Whether an import names only the module itself,
        so that its attributes are counted instead.
        """
        return (name, line) in self.imported and any(
            used.startswith(f"{name}.") for used, _ in self._used
        )


def _dotted(node: ast.expr) -> str:
    """Return `a.b.c` as text; "" for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
