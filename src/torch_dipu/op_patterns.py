# SPDX-License-Identifier: Apache-2.0
"""Names of operators: the meaning of patterns, and the names in dumps and comparisons.

The device receives `x + y` as add.Tensor, where an interface of `out=` functions has add.out: both
names select it, and add.out is displayed. `x * 3` is mul.Tensor with a number, and displayed as
mul.Scalar_out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from torch_dipu import _C

CONVOLUTION = (
    "convolution",
    "convolution_backward",
    "convolution_overrideable",
    "convolution_backward_overrideable",
)

# Names that torch decomposes before they reach a device, and the resulting operators.
COMES_TO: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), CONVOLUTION),
    **{f"conv_transpose{n}d": CONVOLUTION for n in (1, 2, 3)},
    "linear": ("addmm", "mm", "bmm"),
    "matmul": ("mm", "bmm", "mv", "dot", "addmm"),
    "softmax": ("_softmax", "_softmax_backward_data"),
    "log_softmax": ("_log_softmax", "_log_softmax_backward_data"),
    "layer_norm": ("native_layer_norm", "native_layer_norm_backward"),
    "group_norm": ("native_group_norm", "native_group_norm_backward"),
    "batch_norm": ("native_batch_norm", "native_batch_norm_backward"),
    "dropout": ("native_dropout", "native_dropout_backward", "bernoulli_"),
    "cross_entropy_loss": (
        "_log_softmax",
        "_log_softmax_backward_data",
        "nll_loss_forward",
        "nll_loss_backward",
        "nll_loss2d_forward",
        "nll_loss2d_backward",
    ),
    "scaled_dot_product_attention": (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
}

NAME = re.compile(r"\w[\w.]*")
ALWAYS, WITH_NUMBER = 1, 2  # as in csrc/engine/engine.h


class UnknownOperatorError(DeeplinkError):
    """A pattern matches no operator of the device."""


@dataclass(frozen=True)
class Shown:
    """The names of a call in a dump: "add.out", "dipu_add_out", "diopiAdd"."""

    name: str
    function: str
    diopi: str


@cache
def shown(overload: str, number: bool = False) -> Shown:
    """Return the names of a call; `number` when one of its tensors is a number, as in x * 3."""
    name = _with_number(overload) if number else ""
    name = name or _out_form(overload) or overload.removeprefix("aten::")
    function = "dipu_" + name.replace(".", "_").lower()
    return Shown(name, function, diopi_name(overload, number=bool(number and "Scalar" in name)))


@cache
def diopi_name(overload: str, number: bool = False) -> str:
    """Return the published function of an overload ("diopiAdd"), else the op;
    "" where there is none.
    """
    from diopi import catalogue
    from diopi.decomposition import served

    name = overload.removeprefix("aten::")
    owner = served(f"aten.{name}" if "." in name else f"aten.{name}.default")
    if owner is None:
        return ""
    number = number or "Scalar" in name.partition(".")[2]
    functions = [catalogue.functions()[known] for known in catalogue.legacy_names(owner.op)]
    wanted = (owner.form == "inplace", number)
    ranked = sorted(
        functions, key=lambda f: ((f.inplace, f.name.endswith("Scalar")) != wanted, f.inplace)
    )
    return ranked[0].name if ranked else owner.op


def matching(patterns: Iterable[str]) -> dict[str, int]:
    """Return the overloads that patterns match: names or regular expressions, in full, over
    "add.out"
    and "add". WITH_NUMBER where only calls with a number match (".*.Scalar"). Raise
    UnknownOperatorError for a pattern without a match.
    """
    found: dict[str, int] = {}
    for pattern in patterns:
        hits = _hits(pattern)
        if not hits:
            _refuse(pattern)
        for overload, mode in hits.items():
            found[overload] = min(mode, found.get(overload, mode))
    return found


def spelled(pattern: str) -> str:
    """Convert an entry to the device's spelling: "mm" for aten.mm.default, aten::mm, torch.mm.

    A regular expression loses only a leading "aten.".
    """
    word = re.sub(r"^(torch\.ops\.)?aten(::|\\?\.)", "", pattern)
    if not NAME.fullmatch(word):
        return word
    if word.startswith("torch."):
        return word.rpartition(".")[2]
    return word.removesuffix(".default")


def _hits(pattern: str) -> dict[str, int]:
    if pattern.startswith("diopi"):
        return {name: ALWAYS for name in _C.operators() if diopi_name(name) == pattern}
    pattern = spelled(pattern)
    try:
        expression = re.compile("|".join(COMES_TO.get(pattern, (pattern,))))
    except re.error as error:
        raise UnknownOperatorError(
            f"{pattern!r} is neither an operator nor a regular expression: {error}."
        ) from None
    hits: dict[str, int] = {}
    for overload in _C.operators():
        if any(map(expression.fullmatch, _plain_names(overload))):
            hits[overload] = ALWAYS
        elif any(map(expression.fullmatch, _number_names(overload))):
            hits[overload] = WITH_NUMBER
    return hits


def _refuse(pattern: str) -> None:
    known = {name for overload in _C.operators() for name in _plain_names(overload)}
    near = difflib.get_close_matches(spelled(pattern), sorted(known | COMES_TO.keys()), n=3)
    raise UnknownOperatorError(
        _("{pattern!r} matches no operator of the device.").format(pattern=pattern),
        _("did you mean {names}?").format(names=", ".join(near))
        if near
        else _("`deeplink doctor --ops` lists them."),
    )


@cache
def _plain_names(overload: str) -> tuple[str, ...]:
    name = overload.removeprefix("aten::")
    return tuple(filter(None, (name, name.partition(".")[0], _out_form(overload))))


@cache
def _number_names(overload: str) -> tuple[str, ...]:
    shown_as = _with_number(overload)
    return (shown_as, shown_as.removesuffix("_out")) if shown_as else ()


@cache
def _with_number(overload: str) -> str:
    """Return "mul.Scalar_out" for "aten::mul.Tensor"; "" for an overload that takes no number."""
    base = overload.removeprefix("aten::").partition(".")[0]
    others = {schema.overload_name for schema in _schemas(base)}
    own = overload.partition(".")[2]
    if "Scalar" not in others or own not in ("Tensor", "out", "Tensor_out"):
        return ""
    return f"{base}.Scalar" if base.endswith("_") else f"{base}.Scalar_out"


@cache
def _out_form(overload: str) -> str:
    """Return the `out=` overload with equal arguments, where the device has it; else ""."""
    name = overload.removeprefix("aten::")
    base, _, own = name.partition(".")
    schemas = {schema.overload_name: schema for schema in _schemas(base)}
    if own not in schemas:
        return ""
    arguments = _inputs(schemas[own])
    for other, schema in schemas.items():
        has_out = any(argument.is_out for argument in schema.arguments)
        if has_out and other != own and _inputs(schema) == arguments:
            return f"{base}.{other}" if f"aten::{base}.{other}" in _C.operators() else ""
    return ""


def _inputs(schema: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


@cache
def _schemas(base: str) -> list[Any]:
    found: list[Any] = torch._C._jit_get_schemas_for_operator(f"aten::{base}")
    return found
