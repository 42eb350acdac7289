# SPDX-License-Identifier: Apache-2.0
"""What `dlinfer.check` and `dlinfer.report` return: records, and their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlinfer.observe import WrongCall


@dataclass(frozen=True)
class Position:
    """The logits after one token of a prompt, or of what follows it."""

    prompt: int  # its index
    position: int
    passed: bool
    explanation: str  # of the judge
    error: float  # against the reference, relative to its largest logit
    stock_error: float
    same_token: bool  # whether the most likely token is that of the stock model


@dataclass(frozen=True)
class Checked:
    """The verdict on a model with dlinfer's ops; `str()` gives the explanation."""

    model: str
    reference: str  # the type of the run that both are compared with
    positions: tuple[Position, ...]
    wrong: WrongCall | None = None  # the first wrong call of an op, where a position failed

    @property
    def passed(self) -> bool:
        """Whether every position is within what rounding explains."""
        return not self.failed

    @property
    def failed(self) -> tuple[Position, ...]:
        """Return the positions that are out of bounds."""
        return tuple(position for position in self.positions if not position.passed)

    def __str__(self) -> str:
        return "\n".join([self._verdict(), *self._cause(), self._tokens()])

    def _verdict(self) -> str:
        count, bad = len(self.positions), self.failed
        if not bad:
            return (
                f"{self.model}: the logits of all {count} positions are as close to "
                f"{self.reference} as rounding allows."
            )
        first = bad[0]
        return (
            f"{self.model}: the logits of {len(bad)} of {count} positions differ from "
            f"{self.reference} by more than rounding allows. The first: prompt {first.prompt}, "
            f"position {first.position}: {first.explanation}"
        )

    def _cause(self) -> list[str]:
        if self.passed:
            return []
        if self.wrong is None:
            return [
                "Cause: no op alone. The result of every op is right for its arguments, so the "
                "adaptor of this model computes something else.",
                "Hint: the undo() of dlinfer.apply's result restores the model; please report its "
                "config.",
            ]
        call = self.wrong
        return [
            f"Cause: {call.op} of {call.kernel}, in {call.layer} (call {call.number} of the run): "
            f"{call.error}",
            "Hint: DLINFER_VENDOR=reference runs every op in plain torch; "
            f"python -m dlinfer.conformance --ops {call.op} tries this op's hard cases.",
        ]

    def _tokens(self) -> str:
        same = sum(position.same_token for position in self.positions)
        worst = max((position.error for position in self.positions), default=0.0)
        stock = max((position.stock_error for position in self.positions), default=0.0)
        return (
            f"Largest error {worst:.1e} of the largest logit (stock {stock:.1e}); the most likely "
            f"token is stock's at {same} of {len(self.positions)} positions."
        )


@dataclass(frozen=True)
class Report:
    """Which kernels a model with dlinfer's ops runs; `str()` gives a table."""

    model: str
    device: str
    layers: Mapping[str, int]  # classes of replaced layers, with counts
    kernels: Mapping[str, Mapping[str, int]]  # op -> who computed it, with counts
    fallbacks: tuple[str, ...]  # why ops ran by their references
    graph: str  # how the launches of a decoding step are made

    def __str__(self) -> str:
        layers = ", ".join(f"{count} {name}" for name, count in self.layers.items())
        width = max([*map(len, self.kernels), 2])
        rows = [
            f"{op:<{width}}  {', '.join(f'{who} {count}' for who, count in found.items())}"
            for op, found in self.kernels.items()
        ]
        return "\n".join(
            [
                f"{self.model} on {self.device}: {layers}",
                f"{'op':<{width}}  kernels, with calls",
                *rows,
                *self.fallbacks,
                f"Graph: {self.graph}",
            ]
        )
