# SPDX-License-Identifier: Apache-2.0
"""Calls of which a cheap check failed: the next call of the same kind is judged as a whole."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from deeplink.i18n import _
from op_tools.compare.slices import Aim
from op_tools.core.call import Call

CHECKS = 16  # calls of one suspect that are judged as a whole


def key_of(call: Call) -> Hashable:
    """The key of calls of one operator, module, line and signature; of a copy on the host, too."""
    place = call.site.short if call.site is not None else ""
    shapes = tuple([(tensor.shape, tensor.dtype) for tensor in call.inputs])
    return call.name, place, call.module, shapes


@dataclass(slots=True)
class Suspect:
    """A kind of call of which a check failed."""

    text: str
    only_non_finite: bool  # which may be the operator's meaning, as of 1 / 0
    aims: Sequence[Aim] = ()  # elements that may be wrong
    checks: int = 0  # calls that were judged as a whole
    is_due: bool = True  # the next call is to be judged as a whole
    is_confirmed: bool = False
    is_right: bool = False  # a whole call with results that are not finite was correct


class Suspects:
    """Which calls are to be judged as a whole, and the verdicts on them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._suspects: dict[Hashable, Suspect] = {}

    def add(
        self,
        call: Call,
        key: Hashable,
        item: str,
        text: str,
        non_finite: bool,
        aims: Sequence[Aim] = (),
    ) -> None:
        """Make the next call with this key due. `item`: the part of the call that is wrong."""
        place = call.site.short if call.site is not None else _("unknown line")
        text = _("{name} {item} ({place}, step {step}): {text}").format(
            name=call.name, item=item, place=place, step=call.step, text=text
        )
        with self._lock:
            suspect = self._suspects.setdefault(key, Suspect(text, non_finite))
            suspect.aims = aims or suspect.aims
            if suspect.checks < CHECKS and not (suspect.is_right and non_finite):
                suspect.is_due = True

    def claim(self, call: Call) -> Suspect | None:
        """The suspect that a call is of, if a call is due; the next one is not."""
        if not self._suspects:  # hot path
            return None
        suspect = self._suspects.get(key_of(call))
        if suspect is None:
            return None
        with self._lock:
            is_due, suspect.is_due = suspect.is_due, False
            suspect.checks += is_due
            return suspect if is_due else None

    def judged(self, key: Hashable, is_right: bool) -> None:
        """Count the verdict on a whole call, or on a larger sample of it."""
        with self._lock:
            suspect = self._suspects.get(key)
            if suspect is not None:
                suspect.is_confirmed |= not is_right
                suspect.is_right |= is_right and suspect.only_non_finite

    def unconfirmed(self) -> list[str]:
        """Descriptions of the suspects whose fault did not recur."""
        suspects = self._suspects.values()
        return [one.text for one in suspects if not one.is_confirmed and not one.is_right]
