"""What a program asks of CUDA, read from its source: each name, its rule, and the lines."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deeplink.errors import DeeplinkError
from deeplink.native import folder_of


@dataclass(frozen=True)
class Use:
    """One name of torch.cuda in one file; `rule` is empty for a name that the table lacks."""

    name: str
    file: str
    lines: tuple[int, ...]
    rule: str
    reason: str

    @property
    def served(self) -> bool:
        """Whether the call does what it does on CUDA, or something documented in its place."""
        return self.rule not in ("", "unsupported")


def scan(path: Path) -> list[Use]:
    """The uses in a file, or in every Python file below a folder."""
    if not path.exists():
        raise DeeplinkError(f"no file or folder {str(path)!r}.", hint="give a script or a package.")
    rules = _rules()
    found = []
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        except (SyntaxError, UnicodeDecodeError) as error:
            raise DeeplinkError(f"cannot read {file} as Python: {error}.") from error
        lines: dict[str, list[int]] = {}
        for name, line in _names(tree):
            lines.setdefault(name, []).append(line)
        for name in sorted(lines):
            rule, reason = rules.get(name, ("", "not a name of torch.cuda that is known here"))
            found.append(Use(name, str(file), tuple(lines[name]), rule, reason))
    return found


def _rules() -> dict[str, tuple[str, str]]:
    """Name -> (rule, reason); the table is ditorch's, read without activating it."""
    with open(folder_of("ditorch") / "cuda_names.csv", newline="", encoding="utf-8") as file:
        return {row["name"]: (row["rule"], row["reason"]) for row in csv.DictReader(file)}


def _names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names relative to torch.cuda, by attribute (`torch.cuda.x.y`) or by import."""
    aliases = {"torch.cuda": "torch.cuda"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.cuda"):
            inner = (node.module or "")[len("torch.cuda") :].lstrip(".")
            for alias in node.names:
                yield f"{inner}.{alias.name}".lstrip("."), node.lineno
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("torch.cuda") and alias.asname:
                    aliases[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            for alias in node.names:
                if alias.name == "cuda":
                    aliases[alias.asname or "cuda"] = "torch.cuda"
    inner_nodes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in inner_nodes:
            continue  # only the longest chain of each expression
        dotted = _dotted(node)
        for short, meaning in aliases.items():
            if dotted.startswith(f"{short}."):
                full = meaning + dotted[len(short) :]
                yield full[len("torch.cuda.") :], node.lineno


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text; an empty text for anything but plain names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])
