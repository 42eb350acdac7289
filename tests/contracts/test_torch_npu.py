"""The pinned names of torch_npu against the source of the real wheel; it is not imported."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tests.contracts.contract import Contract, pinned

CONTRACTS = [contract for contract in pinned() if contract.vendor == "ascend"]
FOLDER = "torch_npu/npu/"


def wheel(folder: Path, contract: Contract) -> Path:
    """The wheel, from the index that pip uses."""
    package, version = contract.title.split()
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    done = subprocess.run(
        [*command, f"{package}=={version}"], capture_output=True, text=True, check=False
    )
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        pytest.skip(f"pip does not get {package}=={version}: {done.stderr.strip()[-200:]}")
    return wheels[0]


def functions(tree: ast.Module) -> dict[str, list[str]]:
    """The argument names of the functions that a module defines at its top."""
    return {
        node.name: _arguments(node.args) for node in tree.body if isinstance(node, ast.FunctionDef)
    }


def mentioned(tree: ast.Module) -> set[str]:
    """Every name that a module defines, imports, assigns or lists as a string in __all__."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def _arguments(arguments: ast.arguments) -> list[str]:
    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    return names + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.title)
def test_the_pinned_names_are_those_of_the_wheel(contract: Contract, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(tmp_path, contract)) as archive:
        trees = {
            name: ast.parse(archive.read(name))
            for name in archive.namelist()
            if name.startswith(FOLDER) and name.endswith(".py")
        }
    pinned_names = [name for name in torch.cuda.__all__ if name in contract.names]
    submodules = {Path(name).stem for name in trees} | {Path(name).parent.name for name in trees}
    there = mentioned(trees[f"{FOLDER}__init__.py"]) | submodules
    assert [name for name in pinned_names if name not in there] == []

    defined: dict[str, list[list[str]]] = {}
    for tree in trees.values():
        for name, arguments in functions(tree).items():
            defined.setdefault(name, []).append(arguments)
    shapes = contract.names
    compared = [n for n in pinned_names if n in defined and isinstance(shapes[n], list)]
    assert len(compared) > 50
    assert [name for name in compared if shapes[name] not in defined[name]] == []


def test_what_is_read_from_a_source() -> None:
    tree = ast.parse("import a as b\nc = 1\ndef d(x, *y, z=1, **w): pass\n__all__ = ['e']")
    assert {"b", "c", "d", "e"} <= mentioned(tree)
    assert functions(tree) == {"d": ["x", "*y", "z", "**w"]}
