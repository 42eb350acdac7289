# SPDX-License-Identifier: Apache-2.0
"""The CUDA features that a program's source uses: torch.cuda, CUDA C++, Triton, CUDA packages.

Nothing of the program runs. ditorch decides whether the chosen device supports a name; what no
name of torch.cuda covers is a row of cuda_dependencies.csv.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run import program as programs

KINDS = ("package", "name", "call", "text")
OUTCOMES = ("raises", "triton", "not covered")  # "triton": as the device runs Triton kernels
SOURCES = (".cu", ".cuh")
_TABLE = Path(__file__).with_name("cuda_dependencies.csv")
_SKIPPED = ("site-packages", "node_modules")  # folders of installed packages


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
    outcome: str  # of OUTCOMES


@dataclass(frozen=True)
class ScanResult:
    """The CUDA features that a scan found."""

    uses: list[Use]
    foreign: list[Foreign]


@dataclass(frozen=True)
class Dependency:
    """One row of the table: how a program depends on CUDA outside of torch.cuda.

    `pattern` is an imported package (kind `package`), a full dotted name (`name`, `call`), or a
    regular expression for a text in the program (`text`). `arguments` restricts a `call` to those
    that pass one of them: `name`, `name@position`, `name@position=expression`.
    """

    kind: str
    pattern: str
    arguments: str
    name: str  # in reports; empty: what matched
    what: str
    outcome: str
    advice: str

    def at(self, name: str, file: str, line: int) -> Foreign:
        """Return the row as found at a place of the program."""
        return Foreign(self.name or name, self.what, file, line, self.advice, self.outcome)


@cache
def dependencies() -> tuple[Dependency, ...]:
    """Read the table; raise DeeplinkError for an invalid row."""
    with _TABLE.open(encoding="utf-8", newline="") as file:
        found = tuple(Dependency(**line) for line in csv.DictReader(file))
    for row in found:
        if row.kind not in KINDS or row.outcome not in OUTCOMES:
            raise DeeplinkError(
                f"{_TABLE.name}: {row.pattern} has the kind {row.kind!r} and the outcome "
                f"{row.outcome!r}; allowed: {', '.join(KINDS)}; {', '.join(OUTCOMES)}."
            )
    return found


def source(words: Sequence[str]) -> Path:
    """The script, or the folder of sources, of a program as it stands on a command line."""
    rest = list(words)
    if len(rest) > 1 and not Path(rest[0]).exists():
        found = programs.read(rest, "coverage")
        if found.name == programs.TORCHRUN:  # its script follows its own options
            own = [at for at, word in enumerate(found.arguments) if word.endswith(".py")]
            own += [at for at, word in enumerate(found.arguments) if word in ("-m", "--module")]
            found = programs.read(found.arguments[min(own, default=0) :], "coverage")
        if found.kind == "module":
            return _module(found.name)
        rest = [found.name]
    path = Path(rest[0])
    if not path.exists():
        raise DeeplinkError(
            _("no file or folder {path!r}.").format(path=str(path)), _("name a script or a folder.")
        )
    return path


def _module(name: str) -> Path:
    """The file or the folder of a module, which is not imported."""
    spec = programs.top_level(name)
    for part in name.split(".")[1:]:
        folders = spec.submodule_search_locations if spec is not None else None
        spec = PathFinder.find_spec(part, folders or [])
    if spec is None or not (spec.origin or spec.submodule_search_locations):
        raise DeeplinkError(
            _("no module {name!r}.").format(name=name),
            _("the working directory is {cwd}.").format(cwd=Path.cwd()),
        )
    return Path(next(iter(spec.submodule_search_locations or ()), str(spec.origin)))


def scan(path: Path) -> ScanResult:
    """Read a file, or every Python and CUDA file below a folder, and what they import locally."""
    if not path.exists():
        raise DeeplinkError(
            _("no file or folder {path!r}.").format(path=str(path)),
            hint=_("give a script or a package."),
        )
    found = ScanResult([], [])
    files = _files_below(path) if path.is_dir() else [path]
    read = {file.resolve() for file in files}
    while files:
        file = files.pop(0)
        if file.suffix in SOURCES:
            row = next(row for row in _rows("text") if re.search(row.pattern, file.name))
            found.foreign.append(row.at(file.name, str(file), 1))
        elif file.suffix == ".py" or file == path:
            new = [one for one in _read(file, found) if one.resolve() not in read]
            read.update(one.resolve() for one in new)
            files.extend(new)
    return found


def _files_below(folder: Path) -> list[Path]:
    def is_own(file: Path) -> bool:
        parents = file.relative_to(folder).parts[:-1]
        return not any(part.startswith(".") or part in _SKIPPED for part in parents)

    return [file for file in sorted(folder.rglob("*")) if file.is_file() and is_own(file)]


def _rows(kind: str) -> Iterator[Dependency]:
    return (row for row in dependencies() if row.kind == kind)


def _read(file: Path, found: ScanResult) -> list[Path]:
    """Add what one file uses; return the program's own modules that it imports."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise DeeplinkError(
            _("cannot read {file} as Python: {error}.").format(file=file, error=error),
            _("give a script, or a folder of them."),
        ) from error
    names = _Names(tree)
    local = _Local(file)
    found.uses.extend(_uses(names.below("torch.cuda"), str(file)))
    seen: set[str] = set()
    for one in sorted(_foreign(tree, names, local, str(file)), key=lambda one: one.line):
        if one.name not in seen:
            seen.add(one.name)
            found.foreign.append(one)
    return list(dict.fromkeys(module for name in names.modules for module in local.files(name)))


def _uses(names: Iterable[tuple[str, int]], file: str) -> Iterator[Use]:
    lines: dict[str, list[int]] = {}
    for name, line in names:
        lines.setdefault(name, []).append(line)
    for name in sorted(lines):
        yield Use(name, file, tuple(lines[name]))


def _foreign(tree: ast.AST, names: _Names, local: _Local, file: str) -> Iterator[Foreign]:
    packages = {row.pattern: row for row in _rows("package")}
    for module, line in names.imported:
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            row = packages.get(".".join(parts[:length]))
            if row is not None and not local.files(parts[0]):
                yield row.at(row.pattern, file, line)
    named = {row.pattern: row for row in _rows("name")}
    called = {row.pattern: row for row in _rows("call")}
    for name, line in names.everywhere():
        if name in named:
            yield named[name].at(f"@{name}" if name.endswith("jit") else name, file, line)
    # docstrings describe, and use nothing
    sentences = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            row = called.get(names.full(_dotted(node.func)))
            if row is not None and _passes(node, row.arguments):
                yield row.at(row.pattern, file, node.lineno)
        elif isinstance(node, ast.Constant) and id(node) not in sentences:
            yield from _of_text(str(node.value), file, node.lineno)


def _of_text(text: str, file: str, line: int) -> Iterator[Foreign]:
    for row in _rows("text"):
        if re.search(row.pattern, text):
            yield row.at(Path(text).name, file, line)


def _passes(call: ast.Call, arguments: str) -> bool:
    """Whether a call passes one of the arguments of a row, with a value that it allows."""
    for one in arguments.split():
        place, _equals, allowed = one.partition("=")
        name, _at, position = place.partition("@")
        value = next((word.value for word in call.keywords if word.arg == name), None)
        if value is None and position and int(position) < len(call.args):
            value = call.args[int(position)]
        if value is None:
            continue
        constant = value.value if isinstance(value, ast.Constant) else ...
        if re.fullmatch(allowed, str(constant)) if allowed else bool(constant):
            return True
    return False


class _Local:
    """The program's own modules: those beside a file, or in the folder of its package."""

    def __init__(self, file: Path) -> None:
        package = file.parent
        while (package / "__init__.py").is_file():
            package = package.parent
        self._file = file
        self._roots = list(dict.fromkeys((file.parent, package)))

    def files(self, module: str) -> list[Path]:
        """Return the files that an import of a module reads: its packages' and its own."""
        level = len(module) - len(module.lstrip("."))
        parts = module[level:].split(".")
        for root in self._file.parents[level - 1 : level] if level else self._roots:
            places = [root.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
            wanted = [root / "__init__.py"] if level else []
            for place in places:
                wanted += [place / "__init__.py", place.with_suffix(".py")]
            if found := [file for file in wanted if file.is_file()]:
                return found
        return []


class _Names:
    """The full names of the modules and names that one file imports."""

    def __init__(self, tree: ast.AST) -> None:
        self.imported: list[tuple[str, int]] = []  # imported modules and names, with their lines
        self.modules: list[str] = []  # imported modules, also relative ones: ".data.loader"
        self._short: dict[str, str] = {}  # short name in the file -> full name
        self._used: list[tuple[str, int]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.modules.append(alias.name)
                    self.imported.append((alias.name, node.lineno))
                    if alias.asname:
                        self._short[alias.asname] = alias.name
            elif isinstance(node, ast.ImportFrom):
                module = "." * node.level + (node.module or "")
                for alias in node.names:
                    full = f"{module}.{alias.name}" if node.module else f"{module}{alias.name}"
                    self.modules.append(full)
                    if not node.level:
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

    def everywhere(self) -> Iterator[tuple[str, int]]:
        """Yield every name that is used by attribute or import, with its line."""
        yield from (*self.imported, *self._used)

    def below(self, module: str) -> Iterator[tuple[str, int]]:
        """Yield the names below a module that are used by attribute or import, with their lines."""
        for name, line in self.everywhere():
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
