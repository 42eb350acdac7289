"""The outcome of an op, as sent by workers; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A failed sample: the stage, the sample, and the error."""

    stage: str
    sample: int
    message: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of one op in one dtype; totals count only samples that the CPU runs."""

    op: str
    dtype: str
    forward: tuple[int, int] = (0, 0)
    backward: tuple[int, int] = (0, 0)
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0
    unknown: bool = False  # this torch has no such op, or not in this dtype

    @property
    def passed(self) -> bool:
        return not self.failures
