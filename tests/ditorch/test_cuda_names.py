"""The table of torch.cuda is complete, and names only what exists."""

from __future__ import annotations

import ast
import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.cuda.comm
import torch.cuda.gds

SUBMODULES = (
    "amp", "amp.autocast_mode", "amp.common", "amp.grad_scaler", "gds", "graphs", "green_contexts",
    "jiterator", "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable",
)  # fmt: skip


@pytest.fixture
def table() -> ModuleType:
    import ditorch

    ditorch.undo()
    return importlib.import_module("ditorch.table")


def public_names() -> list[str]:
    """Every public name of torch.cuda and its submodules, relative to torch.cuda."""
    names = []
    for prefix in ("", *SUBMODULES):
        module = importlib.import_module(f"torch.cuda.{prefix}".rstrip("."))
        names += [
            f"{prefix}.{name}".lstrip(".")
            for name, value in vars(module).items()
            if name in getattr(module, "__all__", ()) or is_public(name, value)
        ]
    return names


def is_public(name: str, value: Any) -> bool:
    """Return the public names that a module itself defines."""
    if name.startswith("_"):
        return False
    if isinstance(value, ModuleType):
        return value.__name__.startswith("torch.cuda.") and value is not torch.cuda.comm
    return str(getattr(value, "__module__", None) or "").startswith("torch.cuda")


def test_every_public_name_has_a_rule(table: ModuleType) -> None:
    names = public_names()
    assert len(names) > 240
    assert [n for n in names if table.find(n) is None and "._" not in n and n[0] != "_"] == []


def test_all_of_torch_cuda_is_there(table: ModuleType) -> None:
    assert len(torch.cuda.__all__) >= 120
    assert [name for name in torch.cuda.__all__ if name not in table.rows()] == []


def test_a_name_is_found_under_the_module_that_re_exports_it(table: ModuleType) -> None:
    assert table.find("memory.memory_allocated") is table.find("memory_allocated")
    assert table.find("amp.autocast_mode.autocast") is table.find("amp.autocast")
    assert table.find("profiler.start").name == "profiler.start"
    assert table.find("is_availble") is None


def test_the_functions_that_rows_name_exist(table: ModuleType) -> None:
    from ditorch.cuda_namespace import _function

    rows = table.rows().values()
    named = {row.fallback for row in rows} | {r.target for r in rows if r.rule == "synthesised"}
    for name in named - {""}:
        assert callable(_function(name)), name


def test_what_is_not_plain_has_its_reason(table: ModuleType) -> None:
    explained = ("constant", "noop", "unsupported", "keep")
    bare = [row.name for row in table.rows().values() if row.rule in explained and not row.reason]
    assert bare == []


def test_what_may_be_missing_says_what_to_do(table: ModuleType) -> None:
    """A direct name without a fallback becomes unsupported where the vendor lacks it."""
    always = {"device_count", "is_initialized"}
    missing = [
        row.name
        for row in table.rows().values()
        if row.rule in ("direct", "class") and not row.fallback and not row.reason
    ]
    assert set(missing) == always


def test_neutral_values_and_constants_are_literals(table: ModuleType) -> None:
    for row in table.rows().values():
        if row.neutral:
            ast.literal_eval(row.neutral)
        if row.rule == "constant":
            ast.literal_eval(row.target)


def test_our_functions_take_the_arguments_of_their_namesakes(table: ModuleType) -> None:
    from ditorch.cuda_namespace import _function

    for row in table.rows().values():
        ours = _function(row.fallback or row.target) if row.fallback or _is_ours(row) else None
        theirs = getattr(torch.cuda, row.name, None)
        if ours is None or not inspect.isfunction(theirs) or not inspect.isfunction(ours):
            continue
        wanted = list(inspect.signature(theirs).parameters)
        found = inspect.signature(ours).parameters
        if any(p.kind is p.VAR_POSITIONAL for p in found.values()):
            continue
        assert list(found)[1 : 1 + len(wanted)] == wanted, row.name  # the first is the target


def _is_ours(row: Any) -> bool:
    return bool(row.rule == "synthesised")


# Names of torch 2.14 and 2.15 that an older torch lacks.
LATER = (
    "graphs.register_graph_capture_start_hook", "graphs.register_graph_destroy_hook", "export_dot",
    "export_graph_data", "graph_annotations.mark_kernels", "graph_annotations.is_available",
    "graph_annotations.dump_kernel_py_stacks", "green_contexts.SMPartition",
    "tunable.dynamic_dims_mask",
)  # fmt: skip


@pytest.mark.parametrize("name", LATER)
def test_names_of_later_versions_have_a_rule(table: ModuleType, name: str) -> None:
    assert table.find(name).reason
