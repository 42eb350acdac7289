# SPDX-License-Identifier: Apache-2.0
"""diopi.h: every op as a C function, under its own name and under the published ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from diopi import catalogue
from diopi.catalogue import Function, Parameter
from diopi.op import Argument, Op, all_ops

PREFIX = "diopi_"
WIDTH = 100
ABI = 1
SPARSE_PARTS = ("CrowIndices", "ColIndices", "Values")
RESERVED = frozenset("default register operator template new delete this and or not xor".split())

# type of an argument -> C type, C type when None is allowed
C_TYPES = {
    "Tensor": ("diopiConstTensorHandle_t", "diopiConstTensorHandle_t"),
    "Scalar": ("const diopiScalar_t*", "const diopiScalar_t*"),
    "int": ("int64_t", "const int64_t*"),
    "float": ("double", "const double*"),
    "bool": ("bool", "const bool*"),
    "str": ("const char*", "const char*"),
    "dtype": ("diopiDtype_t", "const diopiDtype_t*"),
    "memory_format": ("diopiMemoryFormat_t", "const diopiMemoryFormat_t*"),
    "Generator": ("diopiGeneratorHandle_t", "diopiGeneratorHandle_t"),
    "int[]": ("diopiSize_t", "const diopiSize_t*"),
}
# Lists are passed as a pointer and a length.
ELEMENTS = {
    "Tensor[]": "const diopiConstTensorHandle_t*",
    "Tensor?[]": "const diopiConstTensorHandle_t*",
    "float[]": "const double*",
    "bool[]": "const bool*",
    "Scalar[]": "const diopiScalar_t*",
}
RESULTS = {"int": "int64_t*", "float": "double*", "bool": "bool*", "Scalar": "diopiScalar_t*"}


@dataclass(frozen=True)
class CParameter:
    """One parameter of a C function."""

    name: str
    c_type: str
    nullable: bool = False

    def __str__(self) -> str:
        mark = " /*nullable*/" if self.nullable else ""
        return f"{self.c_type} {self.name}{mark}"


CONTEXT = CParameter("ctx", "diopiContextHandle_t")

TOP = """\
/* SPDX-License-Identifier: Apache-2.0 */
/* The operators. Written by `python -m diopi.codegen`; do not edit.
 *
 * Every symbol is weak: a library defines those that it has, and what is missing is null.
 * Results come first and are allocated by the caller, except behind a `diopiTensorHandle_t*`.
 * A parameter marked nullable may be null; no other may.
 */
#ifndef DIOPI_H
#define DIOPI_H

#include "diopi_runtime.h"

#define DIOPI_OPS {ops}
#define DIOPI_FUNCTIONS {functions}

#define DIOPI_OP __attribute__((weak, visibility("default")))

/* Of the published runtime, what needs no runtime: the version, sparse tensors, of which there are
 * none in this ABI, and marks for a profiler that does not listen. */
static inline const char* diopiGetVersion(void) {{ return "diopi ABI {abi}"; }}
static inline diopiError_t diopiIsTensorSparse(diopiConstTensorHandle_t th, bool* is_sparse) {{
    (void)th;
    *is_sparse = false;
    return diopiSuccess;
}}
{getters}static inline diopiError_t diopiRecordStart(const char* record_name, void** record) {{
    (void)record_name;
    *record = NULL;
    return diopiSuccess;
}}
static inline diopiError_t diopiRecordEnd(void** record) {{
    *record = NULL;
    return diopiSuccess;
}}

#ifdef __cplusplus
extern "C" {{
#endif
"""
SPARSE_GETTER = """\
static inline diopiError_t diopiGetTensor{name}(diopiConstTensorHandle_t th,
    diopiConstTensorHandle_t* part) {{
    (void)th;
    *part = NULL;
    return diopiNoImplement;
}}
"""
BOTTOM = """
#ifdef __cplusplus
}
#endif

#endif /* DIOPI_H */
"""


def render() -> str:
    ops, functions = all_ops(), catalogue.functions()
    getters = "".join(SPARSE_GETTER.format(name=name) for name in SPARSE_PARTS)
    parts = [TOP.format(ops=len(ops), functions=len(functions), abi=ABI, getters=getters)]
    for family, members in by_family(ops.values()).items():
        parts.append(f"\n/* {family} */\n")
        parts += [declaration(op) for op in members]
    parts.append("\n/* The published names. */\n")
    parts += [published(function) for function in functions.values()]
    return "".join([*parts, BOTTOM])


def by_family(ops: Iterable[Op]) -> dict[str, list[Op]]:
    grouped: dict[str, list[Op]] = {}
    for op in ops:
        grouped.setdefault(op.family, []).append(op)
    return grouped


def symbol(op: Op) -> str:
    """Return the name of the op's own C function."""
    return PREFIX + op.name


def declaration(op: Op) -> str:
    return _declare(symbol(op), parameters(op))


def published(function: Function) -> str:
    """Declare a function of the published headers, in their order of parameters."""
    found = [_published(parameter) for parameter in function.parameters]
    return _declare(function.name, [CONTEXT, *found])


def _published(parameter: Parameter) -> CParameter:
    c_type = parameter.c_type.replace("const bool", "bool").replace("bool*", "const bool*")
    if parameter.direction == "alloc" and parameter.c_type == "bool*":
        c_type = "bool*"
    if not parameter.c_type.endswith("*"):
        c_type = parameter.c_type.removeprefix("const ")  # no effect on a value
    return CParameter(_c_name(parameter.name), c_type, parameter.optional)


def parameters(op: Op) -> list[CParameter]:
    """Return the parameters: the context, the results, the arguments."""
    found = [CONTEXT]
    names = {argument.name for argument in op.arguments}
    for name, kind in zip(op.result_names, op.returns, strict=True):
        found += _result(f"{name}_result" if name in names else name, kind, op.dynamic)
    for argument in op.arguments:
        found += _argument(argument)
    return found


def _result(name: str, kind: str, dynamic: bool) -> list[CParameter]:
    if kind == "Tensor":
        return [CParameter(name, "diopiTensorHandle_t*" if dynamic else "diopiTensorHandle_t")]
    if kind == "Tensor[]":
        return [CParameter(name, "diopiTensorHandle_t*"), CParameter(f"{name}_len", "int64_t")]
    return [CParameter(name, RESULTS[kind])]


def _argument(argument: Argument) -> list[CParameter]:
    name = _c_name(argument.name)
    if argument.type in ELEMENTS:
        c_type = ELEMENTS[argument.type]
        if argument.written:
            c_type = "const diopiTensorHandle_t*"
        return [CParameter(name, c_type, argument.optional), CParameter(f"{name}_len", "int64_t")]
    c_type = C_TYPES[argument.type][argument.optional]
    if argument.written:
        c_type = "diopiTensorHandle_t"
    return [CParameter(name, c_type, argument.optional)]


def _c_name(name: str) -> str:
    return f"{name}_" if name in RESERVED else name


def _declare(name: str, found: Iterable[CParameter]) -> str:
    """Format a declaration, with line breaks between parameters."""
    lines = [f"DIOPI_OP diopiError_t {name}("]
    *front, last = map(str, found)
    for text in (*(f"{parameter}," for parameter in front), f"{last});"):
        gap = "" if lines[-1].endswith("(") else " "
        if len(lines[-1]) + len(gap) + len(text) > WIDTH:
            lines.append(f"    {text}")
        else:
            lines[-1] += gap + text
    return "\n".join(lines) + "\n"
