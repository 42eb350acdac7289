# SPDX-License-Identifier: Apache-2.0
"""The JSON files of bisect, diff and determinism.

`kind` and `version` come first; a reader of version 1 may find more keys, never fewer. Numbers that
JSON does not have (nan, inf) are null.
"""

from __future__ import annotations

import json
import math
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypedDict

from deeplink import __version__, identity
from deeplink.errors import DeeplinkError

VERSION = 1
FILES = {"bisect": "bisect.json", "diff": "diff.json", "determinism": "determinism.json"}


class Place(TypedDict):
    """A place in the program where calls are made."""

    module: str  # "" is outside of all modules
    site: str  # "train.py:41"; "" is not known
    direction: str  # forward or backward
    calls: int


class Guilty(TypedDict):
    """An operator that the check needs on the CPU to pass."""

    op: str
    calls: int  # in a run
    places: list[Place]  # a minimal set, or all of them if it was not searched
    script: str  # that reproduces one call with torch alone; "": none
    capture: str  # the archive that the script was made from
    evidence: list[str]  # the common properties of its wrong calls; [] if unknown


class BisectRun(TypedDict):
    """One run of the command."""

    number: int  # from 1
    purpose: str  # "as it is", "everything", "rounding", "search", "places", "capture"
    ops: list[str]  # that ran elsewhere; empty for "as it is" and "everything"
    places: list[Place]  # and where, when not everywhere
    outcome: Literal["passed", "failed", "broken", "timeout"]
    reason: str  # of the outcome
    losses: list[float | None]
    seconds: float
    log: str  # what the command printed


class Made(TypedDict):
    """How a search was made: the device, its vendor, the versions, the host and the start."""

    vendor: str
    label: str
    device: str
    torch: str
    python: str
    host: str
    deeplink: str
    started: str  # ISO 8601


class Bisect(TypedDict):
    """bisect.json; written after each run, so that a search can be continued."""

    kind: Literal["bisect"]
    version: int
    command: list[str]
    made: Made
    check: dict[str, Any]  # kind, and its parameters: tolerance, reference, expression, …
    instead: str  # "cpu", or the type that operators were computed in
    level: str
    status: Literal["running", "found", "nothing", "program", "unclear", "broken"]
    verdict: str  # one or two sentences
    candidates: list[str]  # operators that the command calls on the device
    suspects: list[str]  # of them, those with wrong calls in a comparison of each kind of call
    guilty: list[Guilty]
    fix: str  # the command that runs the program with these operators on the CPU; "" for none
    runs: list[BisectRun]
    seconds: float


class Side(TypedDict):
    """One of two runs that are compared."""

    path: str
    stores: list[str]  # "packed", "folders", "statistics"
    calls: int
    ranks: list[int]
    missing_ranks: list[int]
    devices: list[str]  # that the run was made on, with versions; empty: it does not name them
    problems: list[str]  # what could not be read


class Pair(TypedDict):
    """Two calls that correspond, or one without a counterpart."""

    a: int | None  # ids of the calls in their runs
    b: int | None
    op: str
    op_b: str  # where it is another one: fused, in place, …
    module: str
    site: str
    step: int
    direction: str
    rank: int
    how: str  # "same", "moved", "fused", "recomputed", "only a", "only b"
    error_in: float | None  # the largest relative error of an argument
    error: float | None  # and of a result: |a - b| / |a|, of whole tensors
    status: str  # "same", "rounding", "propagated", "diverges", "random", "unpaired"
    message: str


class Growth(TypedDict):
    """The error between the runs in one module, in one step."""

    step: int
    module: str
    direction: str
    calls: int
    error_in: float | None
    error: float | None
    op: str  # where the largest error is


class Collective(TypedDict):
    """A collective, checked by arithmetic on the inputs and results of all ranks."""

    run: str  # "a" or "b"
    op: str
    number: int  # of its kind, from 0
    step: int
    ranks: list[int]
    status: str  # "right", "wrong", "not checked"
    rank: int | None  # whose result is wrong
    message: str


class Diff(TypedDict):
    """diff.json."""

    kind: Literal["diff"]
    version: int
    a: Side
    b: Side
    status: Literal["same", "rounding", "diverges", "nothing in common"]
    verdict: str
    first: Pair | None  # the first true divergence
    evidence: list[str]  # the common properties of the wrong calls of its operator
    workaround: str  # a command; "" for none
    next: str
    counts: dict[str, int]  # of pairs, by `how`
    growth: list[Growth]
    pairs: list[Pair]  # those that are not the same, in the order of A; at most 1,000
    collectives: list[Collective]  # those that are not right, then the others; at most 200
    stragglers: list[dict[str, Any]]  # rank, seconds behind the first, op
    seconds: float
    bytes: int  # that were compared


class DeterminismTensor(TypedDict):
    """A result of the call that differs."""

    label: str  # "output[0]"
    dtype: str
    shape: list[int]
    hash: list[str]  # in the two runs
    differing: int | None  # elements
    max_abs: float | None


class Determinism(TypedDict):
    """determinism.json."""

    kind: Literal["determinism"]
    version: int
    command: list[str]
    made: Made
    status: Literal["same", "differs", "broken"]
    verdict: str
    calls: int  # that were compared
    differing: int
    first: Pair | None
    tensors: list[DeterminismTensor]
    kept: list[str]  # the archives with the call, one of each run
    runs: list[BisectRun]
    seconds: float


def made() -> Made:
    """How a search that starts now is made."""
    try:
        device = identity.chosen()
    except DeeplinkError:  # no vendor is installed for any device here
        device = identity.current()
    return Made(
        vendor=device.vendor,
        label=device.label,
        device=device.device,
        torch=device.torch,
        python=device.python,
        host=device.host,
        deeplink=__version__,
        started=datetime.now().astimezone().isoformat(timespec="seconds"),
    )


def write(found: Any, path: Path) -> None:
    """Write a file atomically: a reader never sees a part of it, even after kill -9."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as file:
        json.dump(_plain(found), file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read(path: Path) -> Any:
    """Read a file of `write`; ValueError for another file."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("kind") not in FILES:
        raise ValueError(f"{path} is not written by bisect, diff or determinism")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
