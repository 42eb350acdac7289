"""All calls of all overloads on one backend; as a program, for a compiler that may crash:

python -m tests.dicp.op_outcomes openvinograph bfloat16 dynamic
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dicp.backend import GraphCompiler
from dicp.conformance.overloads import calls, core
from tests.dicp import levels


def outcomes(
    backend: GraphCompiler, dtype: str, dynamic: bool, most: int
) -> tuple[set[Any], list[str]]:
    """The overloads that are right at least once, and what was wrong."""
    right, bad = set(), []
    for overload in core():
        if overload not in backend.conversions:
            continue
        for call in calls(overload, dtype)[:most]:
            found = levels.outcome(backend, call, dynamic)
            if found.status == "right":
                right.add(overload)
            elif found.status == "wrong":
                bad.append(f"{call.overload} {call.key}: {found.text}")
    return right, bad


def main(name: str, dtype: str, *words: str) -> None:
    right, bad = outcomes(levels.REAL[name], dtype, "dynamic" in words, most=4)
    print(json.dumps({"right": sorted(map(str, right)), "wrong": bad}))


if __name__ == "__main__":
    main(*sys.argv[1:])
