"""Writes docs/dicp_ops.md: which operator is proved how far on which simulated backend.

python scripts/dicp_ops.py            the page, from tests/dicp/levels.csv
python scripts/dicp_ops.py measure    the table first: every call, in every type (minutes)
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the measurements are those of the tests

from tests.dicp import levels  # noqa: E402
from tests.dicp.levels import BACKENDS, DTYPES, Level  # noqa: E402

PAGE = ROOT / "docs/dicp_ops.md"
HEAD = """# What the simulated backends map

<!-- Written by scripts/dicp_ops.py from tests/dicp/levels.csv; a test holds it to both. -->

`ascendgraph` and `topsgraph` write what the vendors' compilers read, and run it here by a
**simulation** on the CPU (`sim`): no chip and no vendor's compiler was part of it. The levels:

- *emitted*: it has a conversion, and a call of it was written;
- *checked*: what was written passed the check: against GE's operator prototypes for `ascendgraph`,
  by g++ against declarations of the builder's interface for `topsgraph`. Only what passed is run;
- *simulated*: an interpreter executed the emitted form, and every result was judged right against
  float64: in float32 (`f32`), float16 (`f16`), bfloat16 (`bf16`); `dyn`: for symbolic sizes, too;
- *hardware*: run on the chip. Empty today.

A call in a form that a backend does not take runs eagerly, with its reason in the report.

"""
SHORT = dict(zip(DTYPES, ("f32", "f16", "bf16"), strict=True))


def page(rows: list[Level]) -> str:
    """The page of a table of levels."""
    found = {(row.overload, row.backend): row for row in rows}
    names = sorted({row.overload for row in rows})
    parts = [HEAD, _totals(rows), "\n", _header()]
    for name in names:
        cells = [_cells(found.get((name, backend))) for backend in BACKENDS]
        parts.append(f"| `{name}` | {' | '.join(cells)} |\n")
    return "".join(parts)


def _totals(rows: list[Level]) -> str:
    lines = [
        "| backend | mapped | emitted and checked | simulated in all three types | hardware |\n"
    ]
    lines.append("|---|---|---|---|---|\n")
    for name in BACKENDS:
        mine = [row for row in rows if row.backend == name]
        checked = sum(bool(row.emitted) for row in mine)
        whole = sum(row.simulated == " ".join(DTYPES) for row in mine)
        lines.append(f"| {name} (sim) | {len(mine)} | {checked} | {whole} | |\n")
    return "".join(lines)


def _header() -> str:
    names = [
        f"{name} (sim) {what}" for name in BACKENDS for what in ("checked", "simulated", "hardware")
    ]
    return f"| operator | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"


def _cells(row: Level | None) -> str:
    if row is None:
        return "| | "
    simulated = " ".join(
        [*(SHORT[d] for d in row.simulated.split()), *(["dyn"] * bool(row.dynamic))]
    )
    return f"{'yes' if row.emitted else 'never taken'} | {simulated} | "


def measure(names: list[str]) -> list[Level]:
    """The table, with the rows of the overloads that are named, or all, measured anew."""
    rows = {} if not names else {(row.backend, row.overload): row for row in levels.kept()}
    for backend in BACKENDS.values():
        chosen = [t for t in levels.targets(backend) if not names or str(t) in names]
        rows |= {(row.backend, row.overload): row for row in levels.measured(backend, chosen)}
    return [
        rows[backend.name, str(target)]
        for backend in BACKENDS.values()
        for target in levels.targets(backend)
    ]


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["measure"]:
        levels.FILE.write_text(levels.written(measure(arguments[1:])), "utf-8")
    PAGE.write_text(page(levels.kept()), "utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(levels.kept())} rows")


if __name__ == "__main__":
    main(sys.argv[1:])
