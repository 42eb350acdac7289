# SPDX-License-Identifier: Apache-2.0
"""The definition of an op, and the registry of all ops: declare, look up, get a signature."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

import torch

from deeplink.errors import OpDeclarationError, OpUnavailableError, UnknownOpError
from deeplink.i18n import _
from diopi import catalogue, schema
from diopi.assumptions import ASSUMED
from diopi.schema import MISSING, Argument

__all__ = [
    "MISSING",
    "Argument",
    "Kind",
    "Op",
    "all_ops",
    "by_aten",
    "by_legacy",
    "get",
    "op",
    "signature",
]

# The kind of an op determines how far a correct result may be from the float64 one.
Kind = Literal[
    "exact",  # moves or compares elements: every bit is determined
    "elementwise",  # one rounding per element: add, mul, sqrt
    "transcendental",  # exp, sin
    "reduction",  # sum, mean, cumsum
    "contraction",  # mm, convolution
    "composite",  # several of these in one op: softmax, layer_norm
    "index",  # results are indices: argmax, sort, nonzero
    "random",  # judged by statistics
    "linalg",  # judged by residuals: qr, cholesky
]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WIDE_FLOATS = (torch.float32, torch.float64)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
BOOL = (torch.bool,)
COMPLEX = (torch.complex64, torch.complex128)
REALS = (*FLOATS, *INTS)
NUMBERS = (*REALS, *COMPLEX)
ALL = (*NUMBERS, *BOOL)


@dataclass(frozen=True, eq=False)  # unique objects: compared and hashed by identity
class Op:
    """One operator of the interface: its arguments, its meaning, and its published names."""

    name: str
    family: str
    arguments: tuple[Argument, ...]
    returns: tuple[str, ...]
    aten: tuple[str, ...]  # the canonical functional overload first, then all forms of it
    legacy: tuple[str, ...]
    kind: Kind
    dtypes: tuple[torch.dtype, ...]
    meaning: Callable[..., Any]
    backward: str = ""  # the op that is its gradient
    opinfo: tuple[str, ...] = ()  # op_db entries that exercise it: "sum", "max.reduction_no_dim"
    doc: str = ""
    signed_zero: bool = False  # the sign of a zero is part of the result
    result_names: tuple[str, ...] = ()
    dynamic: bool = False  # the shape of the result depends on values: the kernel allocates it
    schema: str = field(default="", repr=False)
    declared: tuple[str, ...] = field(default=(), repr=False)  # `aten` as declared

    @property
    def written(self) -> tuple[Argument, ...]:
        """The arguments that the op mutates by definition (optimizers, running statistics)."""
        return tuple(argument for argument in self.arguments if argument.written)

    @property
    def assumed(self) -> str:
        """The assumptions of the meaning where the published headers leave it open."""
        return ASSUMED.get(self.name, "")

    @property
    def available(self) -> bool:
        """Whether the installed torch can evaluate the meaning."""
        return not isinstance(self.meaning, AtenMeaning) or self.meaning.exists()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the reference result."""
        return self.meaning(*args, **kwargs)


class AtenMeaning:
    """An ATen overload as a plain function, with the op's own argument names."""

    def __init__(self, overload: str, arguments: tuple[Argument, ...]) -> None:
        self.overload = overload
        self.__name__ = overload
        theirs = schema.read(_stored_text(overload) or f"{overload}() -> ()")
        ours = [argument.name for argument in theirs.arguments]
        names = (schema.installed_name(overload, name) for name in theirs.torch_names)
        self._theirs = dict(zip(ours, names, strict=True))
        self._order = [self._theirs.get(a.name, a.name) for a in arguments]
        self._tensors = [self._theirs.get(a.name, a.name) for a in arguments if a.type == "Tensor"]
        # defaults of the declaration that torch lacks
        required = {a.name for a in theirs.arguments if a.required}
        added = [a for a in arguments if a.name in required and not a.required]
        self._defaults = {self._theirs[a.name]: a.default for a in added}

    def __repr__(self) -> str:
        return f"torch.ops.aten.{self.overload}"

    def exists(self) -> bool:
        return self.overload in schema.torch_schemas()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        packet, function = self._resolve()
        kwargs = {self._theirs.get(name, name): value for name, value in kwargs.items()}
        given = dict(zip(self._order, args, strict=False)) | kwargs
        missing = {name: v for name, v in self._defaults.items() if name not in given}
        if any(isinstance(given.get(name), (bool, int, float, complex)) for name in self._tensors):
            function = packet  # torch selects the Scalar overload
        return function(*args, **kwargs, **missing)

    def _resolve(self) -> tuple[Any, Any]:
        if not self.exists():
            raise OpUnavailableError(
                _("torch {version} has no aten::{overload}").format(
                    version=torch.__version__, overload=self.overload
                ),
                _("install the torch that schemas.csv was written with, or leave the op out."),
            )
        base, _dot, overload = self.overload.partition(".")
        packet = getattr(torch.ops.aten, base)
        return packet, getattr(packet, overload or "default")


def _stored_text(overload: str) -> str | None:
    """Return the checked-in schema, or the installed torch's while an op is new."""
    stored = catalogue.overloads().get(overload)
    return stored.schema if stored else schema.torch_schemas().get(overload)


_OPS: dict[str, Op] = {}
_BY_ATEN: dict[str, str] = {}


def op(
    name: str,
    family: str,
    *,
    kind: Kind,
    dtypes: tuple[torch.dtype, ...],
    aten: str | None = None,
    text: str = "",
    meaning: Callable[..., Any] | None = None,
    backward: str = "",
    opinfo: str | None = None,
    written: str = "",
    results: str = "",
    doc: str = "",
    signed_zero: bool = False,
    dynamic: bool = False,
) -> Op:
    """Declare an op by its functional ATen overloads, or by a plain function, its `meaning`.

    `aten` defaults to the name, the canonical one first; `out=` and in-place forms are derived. A
    `text` replaces the schema. `written` names mutated arguments where the schema does not mark
    them, `results` the results of a plain function.
    """
    functional = (name if aten is None and meaning is None else aten or "").split()
    if meaning is not None and not functional and not text:
        text = schema.of_function(name, meaning, written.split(), results)
    text = text or _schema_text(name, functional)
    parsed = schema.read(text)
    arguments = _mark_written(name, parsed.arguments, written.split())
    served = tuple(f"aten::{n}" for f in functional for n in (f, *catalogue.forms(f)))
    declared = Op(
        name=name,
        family=family,
        arguments=arguments,
        returns=parsed.returns,
        aten=tuple(dict.fromkeys(served)),
        legacy=catalogue.legacy_names(name),
        kind=kind,
        dtypes=dtypes,
        meaning=meaning or AtenMeaning(functional[0], arguments),
        backward=backward,
        opinfo=tuple((name if opinfo is None else opinfo).split()),
        doc=doc or inspect.getdoc(meaning) or "",
        signed_zero=signed_zero,
        result_names=parsed.result_names,
        dynamic=dynamic,
        schema=text,
        declared=tuple(functional),
    )
    return _register(declared)


def _schema_text(name: str, functional: list[str]) -> str:
    if not functional:
        raise OpDeclarationError(f"op {name!r} has neither an ATen overload nor a schema text")
    text = _stored_text(functional[0])
    if text is None:
        near = difflib.get_close_matches(functional[0], schema.torch_schemas(), n=3)
        raise OpDeclarationError(
            _("op {name!r}: torch {version} has no overload aten::{functional}").format(
                name=name, version=torch.__version__, functional=functional[0]
            ),
            _("did you mean {names}?").format(names=", ".join(near)) if near else "",
        )
    return text


def _mark_written(
    name: str, arguments: tuple[Argument, ...], written: list[str]
) -> tuple[Argument, ...]:
    unknown = set(written) - {argument.name for argument in arguments}
    if unknown:
        raise OpDeclarationError(f"op {name!r} has no argument {', '.join(sorted(unknown))}")
    return tuple(
        Argument(a.name, a.type, a.optional, True, a.default, a.kwarg_only)
        if a.name in written
        else a
        for a in arguments
    )


def _register(declared: Op) -> Op:
    if declared.name in _OPS:
        raise OpDeclarationError(f"op {declared.name!r} is declared twice")
    for overload in declared.aten:
        if overload in _BY_ATEN:
            owner = _BY_ATEN[overload]
            raise OpDeclarationError(f"{overload} is served by {owner!r} and {declared.name!r}")
    _BY_ATEN.update(dict.fromkeys(declared.aten, declared.name))
    _OPS[declared.name] = declared
    return declared


def all_ops() -> dict[str, Op]:
    """Return every op by its name, in the order of declaration."""
    _load()
    return dict(_OPS)


def get(name: str) -> Op:
    """Return the op of that name; the error for an unknown name suggests a similar one."""
    _load()
    return _find(name, _OPS, "op")


def by_aten(overload: str) -> Op:
    """Return the op of an ATen overload ("aten::add.out"; the prefix is optional)."""
    _load()
    full = overload if overload.startswith("aten::") else f"aten::{overload}"
    return _OPS[_find(full.removesuffix(".default"), _BY_ATEN, "op for the overload")]


def by_legacy(name: str) -> Op:
    """Return the op of a function of the published headers ("diopiSoftmax")."""
    _load()
    return _OPS[_find(name, catalogue.functions(), "function").op]


def signature(declared: Op) -> inspect.Signature:
    """Return the parameters that a kernel for the op must accept."""
    return inspect.Signature([_parameter(argument) for argument in declared.arguments])


def _parameter(argument: Argument) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else _POSITIONAL
    default = inspect.Parameter.empty if argument.required else argument.default
    note = f"{argument.type} | None" if argument.optional else argument.type
    return inspect.Parameter(argument.name, kind, default=default, annotation=note)


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD

T = TypeVar("T")


def _find(name: str, known: Mapping[str, T], what: str) -> T:
    try:
        return known[name]
    except KeyError:
        raise UnknownOpError(
            _("no {what} {name!r} among {count}").format(what=what, name=name, count=len(known)),
            _hint(name, known),
        ) from None


def _hint(name: str, known: Iterable[str]) -> str:
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=3)
    return f"did you mean {', '.join(lowered[n] for n in near)}?" if near else "see docs/diopi."


@cache
def _load() -> None:
    """Import every family, whose modules register their ops."""
    package = importlib.import_module("diopi.ops")
    for module in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"diopi.ops.{module}")
