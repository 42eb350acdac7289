# SPDX-License-Identifier: Apache-2.0
"""The losses of a program: reported by `observe_loss`, or parsed from its output.

deeplink.observe_loss(loss)  # in the program: no effect unless DEEPLINK_LOSS_FILE is set
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeplink import settings

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
# loss=0.5, loss: 0.5, "loss": 0.5, Loss 3.194 -> 0.02, train_loss = 1e-3
PATTERN = rf"(?i)loss(?:es)?\b[\"']?\s*(?:is\b|[:=])?\s*({NUMBER})(?:\s*->\s*({NUMBER}))?"


@dataclass(frozen=True)
class Loss:
    """One loss; `step` is the smallest difference that its number of digits can show."""

    value: float
    step: float = 0.0


def observe_loss(value: Any) -> None:
    """Append a loss, a number or a tensor of one element, to the file
    DEEPLINK_LOSS_FILE, if set.
    """
    path = settings.DEEPLINK_LOSS_FILE.get()
    if path == Path():
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"loss": float(value), "rank": settings.rank()}) + "\n")


def observed(path: Path, rank: int = 0) -> list[Loss]:
    """Read the losses that `observe_loss` wrote; an incomplete last line is ignored."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("rank", 0) == rank:
            found.append(Loss(float(row["loss"])))
    return found


def printed(text: str, pattern: str = PATTERN) -> list[Loss]:
    """Parse the losses in a program's output: each group of the pattern, or the whole match."""
    found = []
    for match in re.finditer(pattern, text):
        groups = [group for group in match.groups() if group is not None] or [match[0]]
        found += [_loss(group) for group in groups]
    return found


def _loss(text: str) -> Loss:
    value = float(text)
    if not math.isfinite(value):
        return Loss(value)
    digits, _, exponent = text.lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return Loss(value, 10.0 ** (int(exponent or 0) - decimals))
