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
        "noop": "accepted; nothing has to be done here",
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
    """One name of torch.cuda; `target`, `fallback` and `neutral` mean what the rule says."""

    name: str  # relative to torch.cuda
    rule: str
    target: str  # the vendor's name (direct, class), our function (synthesised …), a literal
    fallback: str  # our function, where the vendor's module lacks the name
    neutral: str  # what an unsupported call returns after its warning; empty: it raises
    reason: str

    @property
    def full_name(self) -> str:
        return f"torch.cuda.{self.name}"


@cache
def rows() -> dict[str, Row]:
    """Every row, by name; DeeplinkError for a row that says nothing we know."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        found = [Row(**line) for line in csv.DictReader(file)]
    for row in found:
        if row.rule not in RULES:
            raise DeeplinkError(
                f"{_FILE.name}: {row.name} has the rule {row.rule!r}; allowed: {', '.join(RULES)}."
            )
    return {row.name: row for row in found}


def find(name: str) -> Row | None:
    """The row of a name relative to torch.cuda, under the module that re-exports it, too."""
    module, _, last = name.rpartition(".")
    return rows().get(name) or rows().get(REEXPORTED.get(module, f"{module}.") + last)
