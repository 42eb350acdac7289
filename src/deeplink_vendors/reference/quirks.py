# SPDX-License-Identifier: Apache-2.0
"""Faults of the reference device: switched on by name, per operator; switched off they cost
nothing.

In Python `with torch.dipu.quirk("nan", "softmax", call=3): …`; from outside
`DIPU_QUIRKS="nan:softmax:call=3;latency:mm:ms=5"`. The faults themselves are in faults.py.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from deeplink import settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink_vendors.reference.faults import FAULTS, Call, Fault
from torch_dipu import _C, op_patterns
from torch_dipu.op_patterns import UnknownOperatorError


class QuirkError(DeeplinkError):
    """A quirk does not exist, or has an unknown parameter."""


@dataclass(frozen=True)
class Active:
    """An active fault: its operators, its parameters, and its own call count."""

    fault: Fault
    pattern: re.Pattern[str]
    parameters: dict[str, Any]
    count: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def everywhere(self) -> bool:
        """Whether it is on for its default operators."""
        return self.pattern.pattern == self.fault.ops

    def wants(self, operator: str) -> bool:
        """Whether the pattern matches "add.Tensor" or "add" in full."""
        name = operator.partition("::")[2]
        return any(self.pattern.fullmatch(text) for text in (name, name.partition(".")[0]))


_active: list[Active] = []


@contextmanager
def quirk(name: str, ops: str | None = None, **parameters: Any) -> Iterator[None]:
    """Inject a fault inside the block; `ops` is a regular expression over operator names."""
    active = _make(name, ops, parameters)
    _switch_on(active)
    try:
        yield
    finally:
        _switch_off(active)


def quirks() -> dict[str, str]:
    """Return every fault by name, with its effect, its operators, and its parameters."""
    return {
        name: f"{fault.doc} Default operators: {fault.ops!r}; parameters: {fault.parameters}."
        for name, fault in FAULTS.items()
    }


def start() -> None:
    """Switch on the faults of DIPU_QUIRKS, for the whole process."""
    for text in filter(None, (part.strip() for part in settings.DIPU_QUIRKS.get().split(";"))):
        _switch_on(_parse(text))


def _parse(text: str) -> Active:
    name, _, rest = text.replace("aten::", "aten.").partition(":")
    ops, *pairs = rest.split(":") if rest else [""]
    parameters = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise QuirkError(
                f"DIPU_QUIRKS: {pair!r} in {text!r} is not key=value.",
                hint="the form is name[:op_pattern[:key=value…]], with ; between several.",
            )
        parameters[key.strip()] = value.strip()
    return _make(name.strip(), ops.strip() or None, parameters)


def _make(name: str, ops: str | None, parameters: dict[str, Any]) -> Active:
    fault = FAULTS.get(name)
    if fault is None:
        near = difflib.get_close_matches(name, FAULTS, n=1)
        raise QuirkError(
            f"no quirk {name!r}; there are: {', '.join(FAULTS)}.",
            hint=f"did you mean {near[0]!r}?" if near else "torch.dipu.quirks() describes them.",
        )
    unknown = sorted(set(parameters) - set(fault.parameters))
    if unknown:
        raise QuirkError(
            f"quirk {name!r} takes no {', '.join(unknown)}; it takes: "
            f"{', '.join(fault.parameters) or 'no parameters'}."
        )
    try:
        values = {k: type(fault.parameters[k])(v) for k, v in parameters.items()}
        pattern = re.compile(_pattern(name, fault, ops or fault.ops))
    except (ValueError, re.error) as error:
        raise QuirkError(f"quirk {name!r}: {error} (found {ops!r}, {parameters}).") from error
    return Active(fault, pattern, {**fault.parameters, **values})


def _pattern(name: str, fault: Fault, ops: str) -> str:
    """Return the regular expression for operators in any spelling; QuirkError if it is invalid."""
    if fault.around is None or ops == fault.ops:
        return ops
    try:
        found = op_patterns.matching([ops])
    except UnknownOperatorError as error:
        raise QuirkError(
            _("quirk {name!r}: {message}").format(name=name, message=error.message),
            error.hint or "for example: add, add.Tensor, aten.add.Tensor; '.*' is all.",
        ) from None
    if not op_patterns.NAME.fullmatch(op_patterns.spelled(ops)):
        return op_patterns.spelled(ops)  # a regular expression
    return "|".join(re.escape(overload.removeprefix("aten::")) for overload in found)


def _switch_on(active: Active) -> None:
    if active.fault.switch is not None and active.everywhere:
        active.fault.switch(True)
    _active.append(active)
    _apply()


def _switch_off(active: Active) -> None:
    _active.remove(active)
    left = any(a.fault is active.fault and a.everywhere for a in _active)
    if active.fault.switch is not None and not left:
        active.fault.switch(False)
    _apply()


def _apply() -> None:
    """Set the hook of operators with a fault, and remove all other hooks."""
    around = [active for active in _active if active.fault.around is not None]
    wanted = [op for op in _C.operators() if any(active.wants(op) for active in around)]
    _C.set_hook(list(set(_C.operators()) - set(wanted)), None)
    _C.set_hook(wanted, _hook)


def _hook(operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the operator inside its faults, the first switched on outermost."""
    overload = _overload(operator)
    todo = [a for a in _active if a.fault.around is not None and a.wants(operator)]
    if operator in _forced(settings.DIPU_FORCE_FALLBACK_OPS_LIST.get()):
        todo = []  # the CPU runs it, without the chip's fault
    before = _C.exchange_hooks_off(True)  # operators that faults call are not faulty
    try:
        return _run(Call(operator.partition("::")[2], overload, args, kwargs), todo)
    finally:
        _C.exchange_hooks_off(before)


@cache
def _forced(patterns: tuple[str, ...]) -> frozenset[str]:
    """Return the operators that are forced to the CPU, under any name."""
    found = op_patterns.matching(patterns) if patterns else {}
    return frozenset(name for name, mode in found.items() if mode == op_patterns.ALWAYS)


def _run(call: Call, todo: list[Active]) -> Any:
    if not todo:
        return call.overload(*call.args, **call.kwargs)
    first, *rest = todo
    around = first.fault.around
    assert around is not None  # _hook selected only those
    return around(call, lambda changed: _run(changed, rest), first.count, **first.parameters)


def _overload(operator: str) -> Any:
    namespace, _, name = operator.partition("::")
    base, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
