# SPDX-License-Identifier: Apache-2.0
"""diopi_shapes.h: the distinct parameter lists of the functions of diopi.h.

A caller without Python needs a typed call for each, because by-value parameters differ.
"""

from __future__ import annotations

from diopi import cfunction
from diopi.catalogue import Function

# type of a parameter -> its letter; everything else is a pointer
LETTERS = {
    "bool": "B",
    "float": "F",
    "double": "D",
    "int": "I",
    "int32_t": "I",
    "int64_t": "L",
    "diopiSize_t": "Z",
    "diopiReduction_t": "I",
    "diopiRoundMode_t": "I",
    "diopiMemoryFormat_t": "I",
    "diopiDtype_t": "I",
}
TOP = """\
/* SPDX-License-Identifier: Apache-2.0 */
/* How the functions of diopi.h take their parameters, each way once. Written by
 * `python -m diopi.codegen`; do not edit. P: a pointer, L: int64_t, I: int32_t or an enumeration,
 * B: bool, D: double, F: float, Z: diopiSize_t. */
"""


def shape(function: Function) -> str:
    """Encode the parameters of a function as letters, the context first."""
    return "P" + "".join(LETTERS.get(cfunction.bare(p), "P") for p in function.parameters)


def render() -> str:
    shapes = sorted({shape(function) for function in cfunction.functions()})
    return TOP + "".join(f"DIOPI_SHAPE({text}, {', '.join(text)})\n" for text in shapes)
