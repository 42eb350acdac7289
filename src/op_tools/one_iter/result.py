# SPDX-License-Identifier: Apache-2.0
"""The result for each layer, the first layer that diverges, and all of it as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from deeplink.i18n import _
from deeplink.judge import Verdict
from op_tools.compare.host_verdicts import Item
from op_tools.one_iter.record_store import Entry

Direction = Literal["forward", "backward"]


@dataclass
class Finding:
    """The verdict on a call of a layer alone, on the recorded inputs, and the drift of the run at
    this call.

    Drift is the root mean square of the differences over that of the recorded values.
    """

    entry: Entry
    forward: list[Item] = field(default_factory=list)
    backward: list[Item] = field(default_factory=list)
    skipped: str = ""  # the reason why it was not judged alone
    drift: float | None = None
    gradient_drift: float | None = None

    @property
    def label(self) -> str:
        """The path of the layer, or the operator; with the number of the call after
        the first one.
        """
        path = self.entry.path
        if self.entry.kind == "operator":
            path = path.rsplit(".", 1)[-1] + "()"
        return (
            path
            if not self.entry.number
            else _("{path} (call {number})").format(path=path, number=self.entry.number + 1)
        )

    def wrong(self, direction: Direction) -> Item | None:
        """The worst error in one direction."""
        items = self.forward if direction == "forward" else self.backward
        bad = [item for item in items if not item.verdict.passed]
        return max(bad, key=lambda item: item.verdict.ratio, default=None)

    @property
    def diverges(self) -> bool:
        return self.wrong("forward") is not None or self.wrong("backward") is not None

    @property
    def ratio(self) -> float:
        """The largest error, relative to the allowed one."""
        return max((item.verdict.ratio for item in (*self.forward, *self.backward)), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        return {
            "layer": self.entry.path,
            "call": self.entry.number,
            "kind": self.entry.kind,
            "name": self.entry.name,
            "site": self.entry.site,
            "diverges": self.diverges,
            "skipped": self.skipped,
            "drift": _number(self.drift),
            "gradient_drift": _number(self.gradient_drift),
            "forward": [_item(item) for item in self.forward],
            "backward": [_item(item) for item in self.backward],
        }


def _item(item: Item) -> dict[str, Any]:
    verdict: Verdict = item.verdict
    return {
        "what": item.label,
        "passed": verdict.passed,
        "rule": verdict.rule,
        "message": verdict.message,
        "max_abs": _number(verdict.max_abs),
        "ratio": _number(verdict.ratio),
    }


def _number(value: float | None) -> float | str | None:
    """A number for JSON, with infinity and nan as null."""
    return value if value is None or math.isfinite(value) else str(value)


def first(findings: Sequence[Finding]) -> tuple[Finding, Direction] | None:
    """The first layer that diverges in the order of the iteration: forward, then backward."""
    ordered = sorted(findings, key=lambda finding: finding.entry.id)
    for finding in ordered:
        if finding.wrong("forward") is not None and finding.entry.kind != "optimizer":
            return finding, "forward"
    for finding in reversed(ordered):
        if finding.wrong("backward") is not None:
            return finding, "backward"
    return next(((f, "forward") for f in ordered if f.wrong("forward") is not None), None)


def drift(mine: Sequence[Tensor | None], recorded: Sequence[Tensor | None]) -> float | None:
    """The largest drift of the tensors of a call; None: nothing is comparable."""
    found = [
        _relative(a.detach().cpu(), b.detach())
        for a, b in zip(mine, recorded, strict=False)
        if a is not None and b is not None and a.shape == b.shape and _counts(a) and _counts(b)
    ]
    return max(found, default=None)


def _counts(tensor: Tensor) -> bool:
    return tensor.numel() > 0 and (tensor.is_floating_point() or tensor.is_complex())


def _relative(mine: Tensor, recorded: Tensor) -> float:
    wide = torch.complex128 if recorded.is_complex() else torch.float64
    mine, recorded = mine.to(wide), recorded.to(wide)
    same = (mine == recorded) | (mine.isnan() & recorded.isnan())
    error = float(torch.where(same, 0, mine - recorded).norm())
    size = float(torch.where(same & ~recorded.isfinite(), 0, recorded).norm())
    if error == 0:
        return 0.0
    return error / size if size and math.isfinite(error / size) else math.inf
