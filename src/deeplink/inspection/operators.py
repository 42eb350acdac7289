# SPDX-License-Identifier: Apache-2.0
"""The implementation of each operator of a vendor's device, for `deeplink doctor --ops`."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.vendor import Vendor


def rows_of(vendor: Vendor, pattern: str = "") -> list[Any]:
    """Return the rows of the overloads that match: "add", "add.out", or a regular expression."""
    device = importlib.import_module(vendor.device_module) if vendor.device_module else None
    tell = getattr(getattr(device, "dipu", None), "operator_table", None)
    if tell is None:
        raise DeeplinkError(
            _(
                "{label} does not report how its operators run; all of them are part of "
                "{device_module}."
            ).format(label=vendor.label, device_module=vendor.device_module or "torch"),
            hint=_("`deeplink doctor --vendor reference --ops` does."),
        )
    try:
        expression = re.compile(pattern or ".*")
    except re.error as error:
        raise DeeplinkError(
            _("{pattern!r} is not a regular expression: {error}.").format(
                pattern=pattern, error=error
            )
        ) from None
    return [row for row in tell() if _matches(expression, row.overload)]


def _matches(expression: re.Pattern[str], overload: str) -> bool:
    name = overload.partition("::")[2]
    return any(expression.fullmatch(text) for text in (name, name.partition(".")[0], overload))


def summary(rows: Sequence[Any]) -> list[tuple[str, int]]:
    """Count the overloads of each kind of implementation, most frequent first."""
    return Counter(row.by for row in rows).most_common()


def as_json(rows: Sequence[Any]) -> dict[str, Any]:
    return {"summary": dict(summary(rows)), "operators": [asdict(row) for row in rows]}
