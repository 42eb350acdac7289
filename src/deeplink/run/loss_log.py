# SPDX-License-Identifier: Apache-2.0
"""The losses of a program: what it tells us, or what it prints.

deeplink.observe_loss(loss)  # in the program: does nothing unless somebody asked for it
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
    """One loss; `step` is the least by which two of them can differ as they are written."""

    value: float
    step: float = 0.0


def observe_loss(value: Any) -> None:
    """Writes a loss, a number or a tensor of one, to DEEPLINK_LOSS_FILE where that is set."""
    path = settings.DEEPLINK_LOSS_FILE.get()
    if path == Path():
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"loss": float(value), "rank": settings.rank()}) + "\n")


def observed(path: Path, rank: int = 0) -> list[Loss]:
    """What `observe_loss` wrote; a last line that is not whole is left out."""
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
    """The losses in what a program printed: each group of the pattern, or all that it matches."""
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
