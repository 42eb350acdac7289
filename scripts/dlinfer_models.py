"""Writes the table of docs/reference/dlinfer_models.md: how each model runs in each framework.

`python scripts/dlinfer_models.py` writes it from tests/dlinfer/models.csv; with `measure` it first
checks what is named after it (models, modes) in transformers, and keeps the other rows:
`python scripts/dlinfer_models.py measure llama generate_batch`. `full` does so with models of full
size, on a CUDA GPU. The tests of other frameworks keep their rows by `tests.dlinfer.support.keep`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the checks are those of the tests

from tests.dlinfer import support  # noqa: E402
from tests.dlinfer.support import Found  # noqa: E402

PAGE = ROOT / "docs/reference/dlinfer_models.md"
START, END = "<!-- From here: scripts/dlinfer_models.py -->\n", "<!-- To here. -->\n"


def page(rows: list[Found], before: str) -> str:
    """The page with its table written anew; what stands around it stays."""
    head, rest = before.split(START)
    return head + START + table(rows) + END + rest.split(END)[1]


def table(rows: list[Found]) -> str:
    """A line for each model in each framework and on each vendor; then what the notes say."""
    lines = ["| model | framework | kernels | how it runs |\n", "|---|---|---|---|\n"]
    for model in dict.fromkeys(row.model for row in rows):
        places = dict.fromkeys((r.framework, r.vendor) for r in rows if r.model == model)
        for place in places:
            mine = [r for r in rows if (r.model, r.framework, r.vendor) == (model, *place)]
            cell = ", ".join(f"{row.mode}: {row.status}" for row in mine)
            lines.append(f"| {model} | {' | '.join(place)} | {cell} |\n")
    notes = [f"- {', '.join(row.key)}: {row.text}\n" for row in rows if row.text]
    runs = sorted({row.run for row in rows if row.run})
    said = ["\nRuns: ", "; ".join(runs), ".\n", "\n" * bool(notes), *notes]
    return "".join([*lines, *said, "\nNot run:\n\n", *left_out(rows)])


def left_out(rows: list[Found]) -> list[str]:
    """A line for each reason why models have no row at a place."""
    models = dict.fromkeys(row.model for row in rows)
    places = dict.fromkeys(row.key[1:3] for row in rows)
    run = {(row.model, row.key[1:3]) for row in rows}
    reasons: dict[tuple[tuple[str, str], str], list[str]] = {}
    for place, model in itertools.product(places, models):
        if (model, place) not in run:
            reasons.setdefault((place, support.why_not(model, place)), []).append(model)
    return [
        f"- {', '.join(place)}, {', '.join(names)}: {reason}\n"
        for (place, reason), names in reasons.items()
    ]


def main(arguments: list[str]) -> None:
    if arguments[:1] in (["measure"], ["full"]):
        name = {"measure": "models_transformers", "full": "models_full"}[arguments[0]]
        checks = importlib.import_module(f"tests.dlinfer.{name}")  # needs transformers
        for found in checks.measured(arguments[1:]):
            support.keep(found)
            print(*found.key, found.status, found.text, flush=True)
    PAGE.write_text(page(support.kept(), PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
