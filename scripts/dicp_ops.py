"""Write docs/reference/dicp_ops.md: how far each operator is verified on each backend.

`python scripts/dicp_ops.py` writes the page from tests/dicp/levels.csv; with `measure` it measures
the table first: every call, in every type (minutes), or only those of the overloads and backends
that are named after it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the measurements are those of the tests

from tests.dicp import levels  # noqa: E402
from tests.dicp.levels import BACKENDS, DTYPES, REAL, SIMULATED, Level  # noqa: E402

PAGE = ROOT / "docs/reference/dicp_ops.md"
HEAD = """# What the backends map

<!-- Written by scripts/dicp_ops.py from tests/dicp/levels.csv; a test holds it to both. -->

Which operators a backend of `torch.compile` takes, and how far that is proved. Every operator is
called with diopi's samples, and every result is judged against float64: in float32 (`f32`), float16
(`f16`), bfloat16 (`bf16`); `dyn`: with symbolic sizes, too. A call in a form that a backend does
not take runs eagerly, with its reason in the report.

`onnxrtgraph` and `openvinograph` are real compilers: *run* is what they computed on the CPU.
`ascendgraph` and `topsgraph` write what the vendors' compilers read, and run it by a **simulation**
on the CPU (`sim`): no chip and no vendor's compiler was part of it. Their levels:

- *emitted, checked*: a call was written and passed the check: against GE's operator prototypes for
  `ascendgraph`, by g++ against declarations of the builder's interface for `topsgraph`;
- *simulated*: an interpreter executed the emitted form, and the results were right;
- *hardware*: run on the chip. Empty today.

"""
SHORT = dict(zip(DTYPES, ("f32", "f16", "bf16"), strict=True))
LEVELS = {
    **dict.fromkeys(REAL, ("run",)),
    **dict.fromkeys(SIMULATED, ("emitted, checked", "simulated", "hardware")),
}


def page(rows: list[Level]) -> str:
    """Return the page of a table of levels."""
    found = {(row.overload, row.backend): row for row in rows}
    names = sorted({row.overload for row in rows})
    parts = [HEAD, _totals(rows), "\n", _header()]
    for name in names:
        cells = [cell for backend in LEVELS for cell in _cells(backend, found.get((name, backend)))]
        parts.append(f"| `{name}` | {' | '.join(cells)} |\n")
    return "".join(parts)


def _totals(rows: list[Level]) -> str:
    head = ("backend", "mapped", "emitted", "right in all three types", "on a vendor's chip")
    lines = [f"| {' | '.join(head)} |\n", "|---|---|---|---|---|\n"]
    for name, backend in BACKENDS.items():
        mine = [row for row in rows if row.backend == name]
        emitted = sum(bool(row.emitted) for row in mine)
        whole = sum(row.right == " ".join(DTYPES) for row in mine)
        lines.append(f"| {backend.label} | {len(mine)} | {emitted} | {whole} | |\n")
    return "".join(lines)


def _header() -> str:
    names = [f"{BACKENDS[name].label}: {level}" for name in LEVELS for level in LEVELS[name]]
    return f"| operator | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"


def _cells(backend: str, row: Level | None) -> list[str]:
    if row is None:
        return [""] * len(LEVELS[backend])
    right = [SHORT[dtype] for dtype in row.right.split()] + ["dyn"] * bool(row.dynamic)
    if backend in REAL:
        return [" ".join(right)]
    return ["yes" if row.emitted else "in models only", " ".join(right), ""]


def measure(names: list[str]) -> list[Level]:
    """Return the table, with the rows of the named operators, or of all, measured again."""
    rows = {} if not names else {(row.backend, row.overload): row for row in levels.kept()}
    for backend in BACKENDS.values():
        every = not names or backend.name in names
        chosen = [t for t in levels.targets(backend) if every or str(t) in names]
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
