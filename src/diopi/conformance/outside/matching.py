# SPDX-License-Identifier: Apache-2.0
"""Which op a function of someone else computes: by its name, then by its parameters."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deeplink.errors import DeeplinkError
from diopi.conformance.outside.adapting import Adapted, adapted
from diopi.op import Op, all_ops, by_legacy
from diopi.schema import torch_schemas

Kernel = Callable[..., Any]
SUGGESTIONS = 3
# words around the name of an operator; removed one by one where the whole name is no operator
BEFORE = re.compile(r"^(?:triton|cuda|torch|custom|naive|fast|my|fused|aten|launch|run)_")
AFTER = re.compile(
    r"_(?:kernel_impl|kernel|impl|triton|cuda|torch|python|numpy|op|fn|func|forward|fwd|launcher|"
    r"wrapper|interpreted|v\d+)$"
)


@dataclass(frozen=True)
class Unmatched:
    """A function that is no kernel of a known op, and why."""

    function: str
    reason: str
    suggestions: tuple[str, ...] = ()
    kernel: Kernel | None = field(default=None, repr=False, compare=False)
    requested: str = ""  # the operator that the user names

    def __str__(self) -> str:
        near = f"; did you mean {', '.join(self.suggestions)}?" if self.suggestions else ""
        return f"{self.function}: {self.reason}{near}"


@dataclass(frozen=True)
class Matching:
    """The kernels by op, with `relu_` and `relu_out` as forms; and the functions without an op."""

    kernels: Mapping[str, Adapted] = field(default_factory=dict)
    forms: Mapping[str, Adapted] = field(default_factory=dict)
    unmatched: tuple[Unmatched, ...] = ()
    restricted: tuple[str, ...] = ()  # one line for each kernel without an argument of its op


def match(
    functions: Mapping[str, Kernel],
    maps: Sequence[tuple[str, str]] = (),
    missing: Sequence[tuple[str, str]] = (),
) -> Matching:
    """Match functions with ops; `maps` has the ops that the user names, `missing` is reported."""
    requested = dict(maps)
    if unknown := sorted(set(requested) - set(functions)):
        raise DeeplinkError(
            f"--map names {', '.join(unknown)}; the functions are {', '.join(functions)}.",
            "as --map my_function=softmax.",
        )
    kernels: dict[str, Adapted] = {}
    forms: dict[str, Adapted] = {}
    unmatched = [Unmatched(name, reason) for name, reason in missing]
    for name, function in functions.items():
        found = _match(name, function, requested.get(name, ""))
        if isinstance(found, Unmatched):
            request = requested.get(name, "")
            unmatched.append(replace(found, kernel=function, requested=request))
            continue
        place, key = (forms, f"{found.op.name}_") if found.inplace else (kernels, found.op.name)
        if key in place:
            unmatched.append(Unmatched(name, f"{place[key].function} is the kernel of {key}"))
        else:
            place[key] = found
    every = [*kernels.values(), *forms.values()]
    restricted = tuple(f"{one.function}: {one.limits}" for one in every if one.limits)
    return Matching(kernels, forms, tuple(unmatched), restricted)


def _match(name: str, function: Kernel, requested: str) -> Adapted | Unmatched:
    reasons = []
    for op, inplace in _candidates(requested or name):
        found = adapted(op, name, function, inplace)
        if isinstance(found, Adapted):
            return found
        reasons.append(found)
    if reasons:
        return Unmatched(name, reasons[0])
    if requested:
        near = tuple(difflib.get_close_matches(requested, all_ops(), n=SUGGESTIONS))
        return Unmatched(name, f"there is no operator {requested!r}", near)
    near = tuple(difflib.get_close_matches(_bare(name), all_ops(), n=SUGGESTIONS))
    taken = _parameters(function)
    return Unmatched(name, f"no operator has this name (it takes {taken})", near)


def _parameters(function: Kernel) -> str:
    try:
        return ", ".join(inspect.signature(function).parameters) or "nothing"
    except (TypeError, ValueError):
        return "unknown arguments"


def _candidates(name: str) -> Iterator[tuple[Op, bool]]:
    """Yield the ops that a name may mean, the most exact first, and whether it is in place."""
    seen: set[tuple[str, bool]] = set()
    for variant in variants(name):
        for op, inplace in _ops(variant):
            if (op.name, inplace) not in seen:
                seen.add((op.name, inplace))
                yield op, inplace


def variants(name: str) -> list[str]:
    """Return a name, and what is left of it without the words around an operator's name."""
    found = [name]
    for one in found:
        shorter = [AFTER.sub("", one), BEFORE.sub("", one), one.lower()]
        found += [word for word in shorter if word and word not in found]
    return found


def _bare(name: str) -> str:
    return min(variants(name), key=len)


def _ops(name: str) -> Iterator[tuple[Op, bool]]:
    ops = all_ops()
    overload = re.sub(r"(?<=[a-z0-9_])__(?=[A-Za-z])", ".", name)  # BackendBench: add__Tensor
    for spelt in dict.fromkeys((name, overload, f"_{name}", name.replace(".", "_"))):
        if spelt in ops:
            yield ops[spelt], False
        base = spelt.removesuffix(".default")
        served = _by_aten().get(base, ())
        yield from ((ops[op], inplace) for op, inplace in served)
    if name.endswith("_") and name[:-1] in ops:
        yield ops[name[:-1]], True
    yield from ((ops[op], False) for op in ops if op.replace("_", "") == name)
    if name.startswith("diopi"):
        try:
            yield by_legacy(name), name.endswith("Inp")
        except LookupError:
            return


_ATEN: dict[str, list[tuple[str, bool]]] = {}


def _by_aten() -> Mapping[str, Sequence[tuple[str, bool]]]:
    """Return the ops by ATen overload ("add.Tensor") and by base name ("add")."""
    if not _ATEN:
        for op in all_ops().values():
            for served in op.aten:
                overload = served.removeprefix("aten::")
                base = overload.partition(".")[0]
                if "(a!)" in torch_schemas().get(overload, "") and not base.endswith("_"):
                    continue  # an out= form
                inplace = base.endswith("_") and not op.written
                for key in {overload, base}:
                    rows = _ATEN.setdefault(key, [])
                    if (op.name, inplace) not in rows:
                        rows.append((op.name, inplace))
    return _ATEN
