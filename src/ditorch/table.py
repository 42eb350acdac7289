# SPDX-License-Identifier: Apache-2.0
"""The table of torch.cuda: one row per name, with the rule by which it is mapped."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from deeplink.errors import DeeplinkError

RULES = MappingProxyType(
    {
        "direct": "the name of the vendor's module, else the fallback",
        "class": "the class of the vendor's module, else the fallback",
        "synthesised": "a function of ditorch.synthesis",
        "constant": "a value, or a function that returns it",
        "noop": "accepted; no action is needed",
        "unsupported": "raises or, when it has a neutral value, warns once per call site",
        "type": "a legacy tensor or storage type, of the target's device",
        "keep": "left as it is",
    }
)

# submodules whose names torch.cuda has itself: the row is found under the shorter name
REEXPORTED = MappingProxyType(
    {
        "amp.autocast_mode": "amp.",
        "amp.common": "amp.",
        "amp.grad_scaler": "amp.",
        "graphs": "",
        "green_contexts": "",
        "memory": "",
        "profiler": "",
        "random": "",
        "streams": "",
    }
)

_FILE = Path(__file__).with_name("cuda_names.csv")


@dataclass(frozen=True)
class Row:
    """One name of torch.cuda; the rule defines what `target`, `fallback` and `neutral` mean."""

    name: str  # relative to torch.cuda
    rule: str
    # the vendor's names, the first that exists (direct, class), ditorch's function (synthesised …),
    # or a literal
    target: str
    fallback: str  # ditorch's function, where the vendor's module lacks the name
    neutral: str  # returned by an unsupported call after its warning; empty: the call raises
    reason: str

    @property
    def full_name(self) -> str:
        return f"torch.cuda.{self.name}"


@cache
def rows() -> dict[str, Row]:
    """Read every row, by name; raise DeeplinkError for an invalid row."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        found = [Row(**line) for line in csv.DictReader(file)]
    for row in found:
        if row.rule not in RULES:
            raise DeeplinkError(
                f"{_FILE.name}: {row.name} has the rule {row.rule!r}; allowed: {', '.join(RULES)}."
            )
    return {row.name: row for row in found}


def find(name: str) -> Row | None:
    """Find the row of a name relative to torch.cuda, or of the module that re-exports the name."""
    module, _, last = name.rpartition(".")
    return rows().get(name) or rows().get(REEXPORTED.get(module, f"{module}.") + last)
