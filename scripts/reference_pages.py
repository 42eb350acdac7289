"""Write the pages of the reference that come from the code: the commands, and the Python API.

Run `python -m scripts.reference_pages` after a change of a command or of a package's `__all__`.
The page of commands is written in full. A page of the API has a directive for each public name,
which the site's generator replaces by the signature and the docstring.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"
BAR = "\\|"  # in a table
NOTE = "<!-- Written by `python -m scripts.reference_pages`; do not edit. -->"
# The pages of the API: title, a sentence, and modules whose `__all__`, or whose own public
# classes and functions where they have none, are on the page.
API = {
    "op_tools": ("op_tools", "Tools for the operators of a training.", ["op_tools"]),
    "ditorch": ("ditorch", "Programs written for CUDA on another device.", ["ditorch"]),
    "diopi": (
        "diopi",
        "The interface of operators, and what resolves a vendor's kernels.",
        ["diopi", "diopi.implementation", "diopi.resolve", "diopi.adaptor"],
    ),
    "torch_dipu": (
        "torch_dipu",
        "The device `dipu`: what a chip implements, and what it adds to `torch.cuda`.",
        ["torch_dipu.runtime", "torch_dipu.routes", "torch_dipu.flight"],
    ),
    "dicp": ("dicp", "Graph compilers behind torch.compile.", ["dicp"]),
    "dlinfer": ("dlinfer", "Fused operators for serving.", ["dlinfer"]),
    "vendor": (
        "deeplink.vendor",
        "The record of a vendor, and the choice of one.",
        ["deeplink.vendor"],
    ),
    "errors": ("deeplink.errors", "Every error of the project.", ["deeplink.errors"]),
}


def pages() -> dict[Path, str]:
    """The text of every page, by its path."""
    found = {REFERENCE / "cli.md": commands()}
    for name, (title, about, modules) in API.items():
        parts = [f"# {title}", NOTE, about]
        parts += [f"::: {path}" for module in modules for path in public(module)]
        found[REFERENCE / f"api/{name}.md"] = "\n\n".join(parts) + "\n"
    return found


def public(module: str) -> list[str]:
    """The public classes and functions of a module, read without importing it."""
    tree = _tree(module)
    own = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    names = [name for name in own if not name.startswith("_")]
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    return [f"{module}.{name}" for name in names if _has_docstring(module, name)]


def _tree(module: str) -> ast.Module:
    path = ROOT / "src" / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text("utf-8"))


def _has_docstring(module: str, name: str) -> bool:
    """Whether a name, here or where it is imported from, is a class or a function with one."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) is not None
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            is_module = (ROOT / "src" / f"{node.module}.{name}".replace(".", "/")).exists() or (
                ROOT / "src" / (f"{node.module}.{name}".replace(".", "/") + ".py")
            ).exists()
            return not is_module and _has_docstring(str(node.module), name)
    return False


def commands() -> str:
    """The page of all commands."""
    import typer.main

    from deeplink import cli

    root: Any = typer.main.get_command(cli.app)
    parts = ["# Commands", NOTE, "`deeplink COMMAND --help` prints the same text."]
    for group in (cli.RUN, cli.DIAGNOSE, cli.INSPECT, cli.BRING_UP):
        names = [name for kind, name, _ in cli.COMMANDS if kind == group]
        parts.append(f"## {group}")
        for name in names:
            parts += _command(f"deeplink {name}", root.commands[name])
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"### {name}"
    help_text = (command.help or "").replace("\b\n", "")
    yield from map(_block, re.split(r"\n\s*\n", help_text.strip()))
    context = command.make_context(name, [], resilient_parsing=True)
    groups: dict[str, list[str]] = defaultdict(list)
    for param in command.params:
        record = param.get_help_record(context)
        if record is None or "--help" in param.opts:
            continue
        argument = param.param_type_name == "argument"
        names = record[0].partition(" <")[0] if argument else record[0]
        title = "argument" if argument else getattr(param, "rich_help_panel", "") or "option"
        text = " ".join(_escaped(record[1]).replace("&lt;", "<").split())
        groups[title].append(f"| `{names.replace('|', '/')}` | {text} |")
    for title in sorted(groups, key=lambda title: title == "option"):
        yield "\n".join([f"| {title} | |", "|---|---|", *groups[title]])
    for inside, sub in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inside}", sub)


def _block(block: str) -> str:
    """A paragraph of a help text; a list of examples or exit codes as it is printed."""
    head, _, rest = block.strip().partition("\n")
    if rest and head.endswith(":") and rest.startswith("  "):
        lines = [line[2:] for line in rest.splitlines()]
        return "\n".join([head, "", "```text", *lines, "```"])
    return " ".join(_escaped(block).split())


def _escaped(text: str) -> str:
    return text.replace("|", BAR).replace("*", "\\*").replace("_", "\\_")


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
