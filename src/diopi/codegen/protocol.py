# SPDX-License-Identifier: Apache-2.0
"""protocol.py: the type of a vendor's kernels for a type checker."""

from __future__ import annotations

import keyword

from diopi.codegen.header import by_family
from diopi.op import Argument, Op, all_ops
from diopi.schema import MISSING

WIDTH = 100
INDENT = "    "

PYTHON_TYPES = {
    "Tensor": "Tensor",
    "Scalar": "Number",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "dtype": "torch.dtype",
    "memory_format": "torch.memory_format",
    "Generator": "torch.Generator",
}

TOP = '''\
# SPDX-License-Identifier: Apache-2.0
"""The kernels that a vendor may have. Written by `python -m diopi.codegen`; do not edit.

A class with any subset of these methods is an implementation. To have what is there checked:

    class Kernels(protocol.Kernels if TYPE_CHECKING else object): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

Number = bool | int | float | complex


class Kernels(Protocol):
    """One method for each op, named like it; docs/diopi describes them."""
'''


def render() -> str:
    parts = [TOP]
    for family, ops in by_family(all_ops().values()).items():
        parts.append(f"\n{INDENT}# {family}\n")
        parts += [f"\n{method(op)}" for op in ops]
    return "".join(parts)


def method(op: Op) -> str:
    """Format the method of an op as the formatter would."""
    arguments = ["self"]
    for argument in op.arguments:
        if argument.kwarg_only and "*" not in arguments:
            arguments.append("*")
        arguments.append(_argument(argument))
    head, tail = f"{INDENT}def {_name(op.name)}(", f") -> {_returns(op)}: ..."
    one = f"{head}{', '.join(arguments)}{tail}"
    if len(one) <= WIDTH:
        return f"{one}\n"
    body = f"{INDENT * 2}{', '.join(arguments)}"
    if len(body) > WIDTH:
        body = ",\n".join(f"{INDENT * 2}{argument}" for argument in arguments) + ","
    return f"{head}\n{body}\n{INDENT}{tail}\n"


def _name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def _argument(argument: Argument) -> str:
    note = python_type(argument.type, optional=argument.optional)
    default = "" if argument.default is MISSING else f" = {_default(argument.default)}"
    return f"{argument.name}: {note}{default}"


def _default(value: object) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(repr, value))}{',' if len(value) == 1 else ''})"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def python_type(kind: str, *, optional: bool = False) -> str:
    element, is_list, _ = kind.partition("[]")
    note = PYTHON_TYPES[element.removesuffix("?")]
    note += " | None" if element.endswith("?") else ""
    note = f"Sequence[{note}]" if is_list else note
    return f"{note} | None" if optional else note


def _returns(op: Op) -> str:
    notes = [python_type(kind) for kind in op.returns]
    notes = [note.replace("Sequence", "list") for note in notes]
    if not notes:
        return "None"
    return notes[0] if len(notes) == 1 else f"tuple[{', '.join(notes)}]"
