# SPDX-License-Identifier: Apache-2.0
"""A case: the recipe of one call of one op, short enough to be a name, and its result."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from deeplink.errors import DeeplinkError

PLAIN = "plain"
NOT_IMPLEMENTED = "not implemented"  # start of the reason when a vendor reports so
LOWERED = "the adaptor runs"  # start of the reason when a case ran in a coarser type
BAD = frozenset({"failed", "crashed", "hung"})


@dataclass(frozen=True)
class Case:
    """`op/dtype/source.index/profile/layout`: the id determines the whole call.

    `source` is the origin of the arguments: an entry of op_db and one of its lists
    (`softmax+samples`), the suite's own (`own`), or a model (`model:bert`).
    """

    op: str
    dtype: str
    source: str
    index: int
    profile: str = PLAIN
    layout: str = PLAIN

    @property
    def id(self) -> str:
        """The id: stable on every machine and in every run."""
        return f"{self.op}/{self.dtype}/{self.source}.{self.index}/{self.profile}/{self.layout}"

    @property
    def seed(self) -> int:
        """The seed of this case's random numbers."""
        return zlib.crc32(self.id.encode())

    @property
    def group(self) -> Group:
        """The list of arguments that contains this case's."""
        return Group(self.op, self.dtype, self.source)


@dataclass(frozen=True)
class Group:
    """The cases of one op in one dtype from one source, whose arguments are created together."""

    op: str
    dtype: str
    source: str

    @property
    def seed(self) -> int:
        """The seed of the arguments."""
        return zlib.crc32(f"{self.source}/{self.dtype}".encode())

    def __str__(self) -> str:
        return f"{self.op}/{self.dtype}/{self.source}"


def parse(text: str) -> Case:
    """Parse the id of a case."""
    parts = text.split("/")
    place, _, index = parts[2].rpartition(".") if len(parts) == 5 else ("", "", "")
    if not place or not index.isdigit():
        raise DeeplinkError(
            f"{text!r} is not the id of a case; it should be op/dtype/source.index/profile/layout.",
            hint="copy it from a report, as add/float32/add+samples.0/plain/plain.",
        )
    return Case(parts[0], parts[1], place, int(index), parts[3], parts[4])


@dataclass(frozen=True)
class Finding:
    """The objection of one check to a result. `grade` B: notable, not wrong; F: wrong."""

    check: str
    message: str
    grade: str = "F"


@dataclass(frozen=True)
class Result:
    """The result of one case."""

    case: str  # its id
    status: str
    grade: str = ""  # A, B or F; "" when it was not judged
    findings: tuple[Finding, ...] = ()
    checks: tuple[str, ...] = ()  # performed checks
    error: float = 0.0  # the worst error, as a multiple of the bound
    absolute: float = 0.0  # the worst error, as a number
    seconds: float = 0.0
    reason: str = field(default="")  # why it was skipped, refused, or judged without its baseline

    @property
    def bad(self) -> bool:
        return self.status in BAD

    @property
    def op(self) -> str:
        return self.case.partition("/")[0]

    @property
    def dtype(self) -> str:
        return self.case.split("/")[1]

    @property
    def check(self) -> str:
        """Return the first check that failed; else the first with a finding."""
        graver = [f.check for f in self.findings if f.grade == "F"]
        return next(iter([*graver, *(f.check for f in self.findings)]), "")

    @property
    def message(self) -> str:
        """Join all findings, the graver first."""
        found = sorted(self.findings, key=lambda finding: finding.grade != "F")
        return "; ".join(f"{finding.check}: {finding.message}" for finding in found)


def lowered_as(result: Result) -> str:
    """Return the coarser type in which the adaptor ran a case; "" if it did not."""
    _, found, rest = result.reason.partition(LOWERED)
    return f"{LOWERED}{rest.partition(';')[0]}" if found else ""


def reproduce(case: str, words: str) -> str:
    """Return the command line that runs this case alone; `words` request the subject."""
    return f"python -m diopi.conformance {words} --case '{case}'"
