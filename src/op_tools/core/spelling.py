# SPDX-License-Identifier: Apache-2.0
"""Operators in the spelling of a user: the names that an entry of a list means, and the level.

torch.nn.functional.linear   linear           api level
aten.mm.default   aten::mm                    aten level
mm.out   diopiMm                              aten level, all overloads of the kernel
torch.Tensor.add.*   aten\\.mm.*               a regular expression
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch

from deeplink.errors import SettingError
from deeplink.i18n import _
from op_tools.core import op_names
from op_tools.core.call import Level

PLAIN = re.compile(r"[A-Za-z_][\w.:]*")  # a name; anything else is a regular expression


@dataclass(frozen=True)
class Meaning:
    """The meaning of an entry of a list; `problem` is the reason why it has none."""

    entry: str
    names: tuple[str, ...]  # full names; "aten.mm" means every overload
    level: Level | None = None  # None: the entry fits every level
    pattern: re.Pattern[str] | None = None
    problem: str = ""

    def matches(self, name: str) -> bool:
        """Whether the entry means the operator of this full name."""
        if any(name in (own, op_names.canonical(own)) for own in self.names):
            return True
        if name.startswith("aten.") and name.rpartition(".")[0] in self.names:
            return True
        return self.pattern is not None and self.pattern.fullmatch(name) is not None


@cache
def read(entry: str) -> Meaning:
    """Resolve an entry; SettingError for a regular expression that is none."""
    if not PLAIN.fullmatch(entry):
        return _regular(entry)
    word = entry.replace("::", ".").removeprefix("torch.ops.")
    if word.startswith("diopi"):
        return _published(entry)
    if "." not in word:
        return _bare(entry)
    if word.startswith("aten."):
        return _kernel(entry, word)
    if word.startswith("torch.distributed."):  # every level sees them
        return Meaning(entry, (word,), None, _compiled(word))
    if word.startswith("torch."):
        return Meaning(entry, (word,), "api", _compiled(word), "" if _exists(word) else _no(entry))
    if _is_kernel(f"aten.{word}"):  # mm.out: the device's kernel, which torch calls as mm.default
        base = word.partition(".")[0]
        return Meaning(entry, (f"aten.{word}", f"aten.{base}"), "aten")
    package, _, rest = word.partition(".")
    of_torch = op_names.last(word) in op_names.by_word() or (
        "." not in rest and _is_kernel(f"aten.{package}")
    )
    loaded = package in sys.modules  # find_spec raises for a module without a spec
    foreign = loaded or importlib.util.find_spec(package) is not None or not of_torch
    return Meaning(entry, (word,), None, _compiled(word), "" if foreign else _no(entry))


def level_of(key: str, entries: Sequence[str]) -> Level:
    """Choose the level that entries name: "aten" for kernels, else "api"."""
    levels = {meaning.level: meaning.entry for meaning in map(read, entries)}
    if "aten" in levels and "api" in levels:
        raise SettingError(
            _(
                "OP_{key}_LIST={names}: {api!r} is a function and {aten!r} is a kernel; a tool "
                "works at one level."
            ).format(key=key, names=",".join(entries), api=levels["api"], aten=levels["aten"]),
            _("name kernels only (aten.…), or functions only (torch.…)."),
        )
    return "aten" if "aten" in levels else "api"


def kernels(where: str, entries: Iterable[str]) -> tuple[str, ...]:
    """The entries for a tool at the level aten, where a word alone means its kernel.

    SettingError for a function, which is no call of that level.
    """
    names = []
    for entry in entries:
        if read(entry).level != "api":
            names.append(entry)
        elif PLAIN.fullmatch(entry) and "." not in entry and _runs_itself(entry):
            names.append(f"aten.{entry}")
        else:
            raise SettingError(
                _("{where}: {entry!r} is a function, and the level aten sees kernels only.").format(
                    where=where, entry=entry
                ),
                _("name kernels (aten.addmm), or leave out --level: it follows from the names."),
            )
    return tuple(names)


def kernels_of(entries: Iterable[str]) -> list[str]:
    """The kernel of each entry that names functions: aten.mm of "mm" and of "torch.mm"."""
    words = [
        op_names.last(meaning.names[0])
        for meaning in map(read, entries)
        if meaning.level == "api" and meaning.names
    ]
    return [f"aten.{word}" for word in dict.fromkeys(words) if _runs_itself(word)]


def explained(entries: Iterable[str]) -> list[str]:
    """A line for each word alone: the operators that it means."""
    lines = []
    for entry in entries:
        meaning = read(entry)
        if "." in entry or not meaning.names or entry in meaning.names:
            continue
        kernel = meaning.level == "api" and _runs_itself(entry)
        also = f"; for its kernel inside other operators too, write aten.{entry}" if kernel else ""
        lines.append(f"{entry} means {', '.join(meaning.names)}{also}")
    return lines


def check(where: str, entries: Iterable[str]) -> None:
    """Raise a SettingError for the first entry that names no operator that exists."""
    for entry in entries:
        problem = read(entry).problem
        if problem:
            similar = ", ".join(map(repr, op_names.suggestions(entry)))
            hint = _("'.*' means every operator.")
            if similar:
                hint = _("did you mean {near}?").format(near=similar)
            raise SettingError(_("{where}: {problem}.").format(where=where, problem=problem), hint)


def _regular(entry: str) -> Meaning:
    pattern = _compiled(entry)
    kernels = re.match(r"aten\b", entry) is not None
    lost = _is_closed(entry) and not any(map(pattern.fullmatch, _matchable()))
    problem = _("{entry!r} matches no operator of torch").format(entry=entry) if lost else ""
    return Meaning(entry, (), "aten" if kernels else None, pattern, problem)


@cache
def _matchable() -> tuple[str, ...]:
    """The names of all functions of torch, and of functions that reach a mode but are not listed by
    torch: torch._foreach_add_, torch._fused_adamw_.
    """
    native = [f"torch.{word}" for word in dir(torch._C._VariableFunctions)]
    methods = [f"torch.Tensor.{word}" for word in dir(torch.Tensor)]
    return (*op_names.known(), *op_names.SHORT, *native, *methods)


def _is_closed(entry: str) -> bool:
    """Whether a pattern can match functions of torch only, which are all known in advance."""
    literal = re.match(r"[\w.]*(?![*+?{])", entry)
    text = literal[0] if literal is not None else ""
    space, _, word = text.rpartition(".")
    inside = any(space == name.rpartition(".")[0] for name in op_names.known())
    return inside and not (space == "torch" and isinstance(getattr(torch, word, None), ModuleType))


def _bare(entry: str) -> Meaning:
    """The meaning of a word alone: the functions with this word, else the kernel."""
    functions = tuple(
        name for name in op_names.by_word().get(entry, ()) if not name.startswith("aten.")
    )
    if functions:
        return Meaning(entry, functions, "api")
    if _is_kernel(f"aten.{entry}"):
        return Meaning(entry, (f"aten.{entry}",), "aten")
    return Meaning(entry, (entry,), None, None, _no(entry))


def _published(entry: str) -> Meaning:
    """A function of the published DIOPI headers: diopiMm, diopiAddInp, diopiLayerNormBackward."""
    words = re.split(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", entry[len("diopi") :])
    while len(words) > 1 and words[-1] in ("Inp", "Scalar", "Tensor", "Out", "Mode", "All", "V2"):
        words.pop()
    name = "_".join(words).lower()
    plain = re.sub(r"[123]d(?=_|$)", "", name)  # convolution2d
    forms = (name, f"_{name}", f"native_{name}", plain, f"_{name}_data", f"_fused_{name}_")
    kernel = next((form for form in forms if _is_kernel(f"aten.{form}")), None)
    if kernel is None:
        return Meaning(entry, (entry,), None, None, _no(entry))
    return Meaning(entry, (f"aten.{kernel}",), "aten")


def _kernel(entry: str, word: str) -> Meaning:
    return Meaning(entry, (word,), "aten", _compiled(word), "" if _is_kernel(word) else _no(entry))


def _no(entry: str) -> str:
    return _("no operator is named {entry!r}").format(entry=entry)


def _is_kernel(word: str) -> bool:
    """Whether torch has "aten.mm" or "aten.mm.out"."""
    _, name, *overload = word.split(".")
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and len(overload) < 2 and set(overload) <= set(packet.overloads())


def _runs_itself(word: str) -> bool:
    """Whether a device has a kernel for aten.WORD: it is not composed of others, as linear is."""
    packet = getattr(torch.ops.aten, word, None)
    if packet is None:
        return False
    composed = torch._C.DispatchKey.CompositeImplicitAutograd
    overloads = (f"aten::{word}" + f".{name}" * (name != "default") for name in packet.overloads())
    known = set(torch._C._dispatch_get_all_op_names())  # without those of TorchScript: add.t
    return not any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, composed)
        for name in overloads
        if name in known
    )


def _exists(word: str) -> bool:
    if word in op_names.known():
        return True
    try:
        op_names.resolve(word)
    except LookupError:
        return False
    return True


def _compiled(entry: str) -> re.Pattern[str]:
    try:
        return re.compile(entry)
    except re.error as error:
        raise SettingError(
            _("{entry!r} is no name of an operator and no regular expression: {error}.").format(
                entry=entry, error=error
            ),
            _(
                "write a full name such as torch.nn.functional.linear, or a pattern such as "
                "'torch.Tensor.add.*'; for every operator, '.*'."
            ),
        ) from None
