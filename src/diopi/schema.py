# SPDX-License-Identifier: Apache-2.0
"""Torch's schemas, parsed from text: arguments, mutated arguments and results of an op."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from deeplink.errors import OpDeclarationError

# The placement of a tensor is decided by the caller, not by the kernel.
PLACEMENT = frozenset({"layout", "device", "pin_memory", "non_blocking"})

# `self` cannot name an argument of a method, `from` is a keyword of Python.
RENAMED = {"self": "input", "from": "low", "to": "high"}

# Arguments that a later torch renamed: the function, the name in torch 2.13, the one from 2.14 on.
MOVED = dict.fromkeys(("_cdist_backward", "_pdist_backward"), ("grad", "grad_output"))

TYPES = {
    "Tensor": "Tensor",
    "Scalar": "Scalar",
    "number": "Scalar",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "ScalarType": "dtype",
    "Generator": "Generator",
    "MemoryFormat": "memory_format",
}


class Missing:
    """The type of MISSING, which marks an argument without a default."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


@dataclass(frozen=True)
class Argument:
    """One argument of an op: its type without the question mark, and its properties."""

    name: str
    type: str
    optional: bool = False  # None is allowed
    written: bool = False  # mutated by the op
    default: Any = MISSING
    kwarg_only: bool = False

    @property
    def required(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True)
class Schema:
    """A parsed schema."""

    name: str  # "add.Tensor", "rotary_embedding"
    arguments: tuple[Argument, ...]
    returns: tuple[str, ...]
    result_names: tuple[str, ...]
    torch_names: tuple[str, ...]  # names of the arguments before renaming


def own_name(function: str, name: str) -> str:
    """Return the name in our ops of an argument of a function ("aten::add", "add.out")."""
    old, new = MOVED.get(_base(function), ("", ""))
    return RENAMED.get(name, old if name == new else name)


def installed_name(function: str, name: str) -> str:
    """Return the name in the installed torch of an argument that torch 2.13 calls `name`."""
    old, new = MOVED.get(_base(function), ("", ""))
    if name != old:
        return name
    declared = torch._C._get_schema(f"aten::{_base(function)}", "").arguments
    return new if any(argument.name == new for argument in declared) else name


def _base(function: str) -> str:
    return function.removeprefix("aten::").partition(".")[0]


_SCHEMA = re.compile(r"(?:aten::)?(?P<name>[\w.]+)\((?P<arguments>.*)\) -> (?P<returns>.+)")
_TYPE = re.compile(
    r"(?P<base>\w+)(?P<alias>\([^)]*\))?(?P<inner>\?)?(?P<list>\[\d*\])?(?P<optional>\?)?"
)
_LITERALS: dict[str, Any] = {"None": None, "True": True, "False": False, "Mean": 1}


@cache
def read(text: str) -> Schema:
    """Parse the arguments and results of a schema; placement arguments are omitted."""
    match = _SCHEMA.fullmatch(text.strip())
    if match is None:
        raise OpDeclarationError(f"not a schema: {text!r}", "name(Tensor x, int dim=-1) -> Tensor")
    arguments, torch_names, kwarg_only = [], [], False
    for part in _split(match["arguments"]):
        if part == "*":
            kwarg_only = True
            continue
        name = part.partition("=")[0].rpartition(" ")[2]
        if name not in PLACEMENT:
            arguments.append(_argument(part, kwarg_only))
            torch_names.append(name)
    returns = match["returns"].strip()
    results = _split(returns[1:-1] if returns.startswith("(") else returns)
    names = [part.rpartition(" ")[2] if " " in part else "" for part in results]
    return Schema(
        match["name"],
        tuple(arguments),
        tuple(_type(part.partition(" ")[0])[0] for part in results),
        tuple(name or _result_name(i, len(results)) for i, name in enumerate(names)),
        tuple(torch_names),
    )


def _argument(text: str, kwarg_only: bool) -> Argument:
    declared, _, default = text.partition("=")
    kind, _, name = declared.replace(" -> *", "->*").rpartition(" ")
    typed, optional, written = _type(kind)
    value = _literal(default, typed) if default else MISSING
    return Argument(RENAMED.get(name, name), typed, optional, written, value, kwarg_only)


def _type(text: str) -> tuple[str, bool, bool]:
    match = _TYPE.fullmatch(text)
    if match is None or (match["base"] not in TYPES and match["base"] not in _PLACEMENT_TYPES):
        raise OpDeclarationError(f"no such type: {text!r}", f"one of {', '.join(TYPES)}")
    base = TYPES.get(match["base"], match["base"])
    written = "!" in (match["alias"] or "")
    if match["list"]:
        return base + (match["inner"] or "") + "[]", bool(match["optional"]), written
    return base, bool(match["inner"] or match["optional"]), written


_PLACEMENT_TYPES = {"Layout", "Device", "Dimname", "Storage", "Stream", "QScheme"}


# Torch writes the default of a dtype as its internal number.
_DTYPES = {"4": torch.int64, "long": torch.int64, "6": torch.float32, "float": torch.float32}


def _literal(text: str, typed: str) -> Any:
    if typed == "dtype" and text in _DTYPES:
        return _DTYPES[text]
    if text in _LITERALS:
        return _LITERALS[text]
    if text[0] in "\"'":
        return text[1:-1]
    if text.startswith("["):
        return [_literal(part, typed.removesuffix("[]")) for part in _split(text[1:-1])]
    if text.startswith("complex") or re.fullmatch(r"[a-z_]+", text):
        return text
    number = float(text) if any(mark in text for mark in ".e") else int(text)
    return [number] if typed.endswith("[]") and typed != "Tensor[]" else number


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, current = [], 0, ""
    for mark in text:
        depth += (mark in "([") - (mark in ")]")
        if mark == "," and not depth:
            parts.append(current.strip())
            current = ""
        else:
            current += mark
    return [*parts, current.strip()] if current.strip() else parts


def _result_name(index: int, count: int) -> str:
    return "out" if count == 1 else f"out{index}"


@cache
def torch_schemas() -> dict[str, str]:
    """Return every ATen overload of the installed torch ("add.Tensor") with its schema as text, in
    which arguments have the names of torch 2.13.
    """
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            overload = f".{schema.overload_name}" if schema.overload_name else ""
            name = schema.name.removeprefix("aten::")
            old, new = MOVED.get(name, ("", ""))
            found[name + overload] = re.sub(rf"\b{new}\b", old, str(schema)) if new else str(schema)
    return found


@cache
def _by_base() -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for overload in torch_schemas():
        grouped.setdefault(overload.partition(".")[0], []).append(overload)
    return grouped


def derived(functional: str) -> dict[str, str]:
    """Return the `out=` and in-place forms of a functional overload: {overload:
    "out" or "inplace"}.
    """
    base = functional.partition(".")[0].removesuffix("_functional")  # normal_functional, normal_
    arguments = _plain(read(torch_schemas()[functional]).arguments)
    found = {}
    for form, name in (("out", base), ("inplace", base + "_")):
        for overload in _by_base().get(name, ()):
            try:
                other = read(torch_schemas()[overload])
            except OpDeclarationError:  # an overload for names or storages
                continue
            taken = [argument for argument in other.arguments if not _is_out(argument)]
            outs = len(other.arguments) - len(taken)
            if _plain(taken) == arguments and (outs > 0) == (form == "out"):
                found[overload] = form
    return found


def _is_out(argument: Argument) -> bool:
    return argument.written and argument.kwarg_only


def _plain(arguments: Iterable[Argument]) -> list[tuple[str, str, bool]]:
    kept = (a for a in arguments if not (a.optional and a.type in ("dtype", "memory_format")))
    return [(a.name, a.type, a.optional) for a in kept]


def of_function(
    name: str, function: Callable[..., Any], written: Iterable[str], results: str
) -> str:
    """Return the schema of a plain function, from its annotations; `results` names its results."""
    letters = dict(zip(written, string.ascii_lowercase, strict=False))
    parts, starred = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        parts.append(_declared(parameter, letters.get(parameter.name, "")))
    names = results.split() or ["out"]
    returned = inspect.signature(function).return_annotation
    kind = {"float": "float", "int": "int"}.get(returned, "Tensor")
    outs = ", ".join(f"{kind} {result}" for result in names) if returned != "None" else ""
    return f"{name}({', '.join(parts)}) -> ({outs})"


def _declared(parameter: inspect.Parameter, letter: str) -> str:
    annotation = str(parameter.annotation).replace("torch.", "").replace("int | float", "Scalar")
    inner, question, _ = annotation.partition(" | None")
    base = re.sub(r"^list\[(.*)\]$", r"\1[]", inner)
    if "list[" in annotation and " | None]" in annotation:  # list[Tensor | None]
        base, question = "Tensor?[]", ""
    mark = f"({letter}!)" if letter else ""
    typed = base.replace("[]", f"{mark}[]") if "[]" in base else base + mark
    default = "" if parameter.default is parameter.empty else f"={_written(parameter.default)}"
    return f"{typed}{'?' if question else ''} {parameter.name}{default}"


def _written(default: object) -> str:
    return f'"{default}"' if isinstance(default, str) else str(default)
