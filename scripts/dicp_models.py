"""Writes the table of docs/reference/dicp_models.md: which model runs on which backend, and how.

`python scripts/dicp_models.py` writes it from tests/dicp/models.csv; with `measure` it first checks
the models, backends, types and kinds of work that are named after it, and keeps the other rows:
`python scripts/dicp_models.py measure llama openvinograph float32 dynamic`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the checks are those of the tests

from deeplink.errors import DeeplinkError  # noqa: E402
from dicp.conformance import model_check  # noqa: E402
from dicp.conformance.model_check import DTYPES, WORKS, ModelResult  # noqa: E402
from dicp.conformance.models import MODELS, PLAIN  # noqa: E402
from dicp.torch_internals import torch_version  # noqa: E402
from tests.dicp import model_table  # noqa: E402
from tests.dicp.model_table import BACKENDS  # noqa: E402

PAGE = ROOT / "docs/reference/dicp_models.md"
START, END = "<!-- From here: scripts/dicp_models.py -->\n", "<!-- To here. -->\n"
NAMES = [*MODELS, *PLAIN]
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def page(rows: list[ModelResult], before: str) -> str:
    """Return the page with a new table; the text around it is unchanged."""
    head, rest = before.split(START)
    return head + START + table(rows) + END + rest.split(END)[1]


def table(rows: list[ModelResult]) -> str:
    """Return a line for each model on each backend, and the runs that it is from."""
    lines = ["| model | backend | fixed sizes | sizes that change | training |\n", "|---|---" * 2]
    lines[-1] += "|---|\n"
    for model in NAMES:
        for name, backend in BACKENDS.items():
            mine = [row for row in rows if (row.model, row.backend) == (model, name)]
            cells = [_cell([row for row in mine if row.work == work]) for work in WORKS]
            if mine:
                lines.append(f"| {model} | {backend.label} | {' | '.join(cells)} |\n")
    runs = sorted({row.run for row in rows})
    wrong = [f"- {r.model}, {r.backend}, {r.dtype}, {r.work}: {r.text}\n" for r in rows if r.text]
    return "".join([*lines, "\nRuns: ", "; ".join(runs), ".\n", "\n" * bool(wrong), *wrong])


def _cell(rows: list[ModelResult]) -> str:
    """Return the results of one kind of work, in each type."""
    return ", ".join(
        f"{SHORT[dtype]} {row.status}" + (f" ({row.compiled})" if row.status != "eager" else "")
        for dtype in DTYPES
        for row in rows
        if row.dtype == dtype
    )


def measure(words: list[str]) -> None:
    """Check the named models, and save each row at once."""
    known = {key(row): row for row in model_table.kept()} if model_table.FILE.exists() else {}
    for name in _named(words, NAMES):
        for backend in _named(words, list(BACKENDS)):
            for dtype in _named(words, list(DTYPES)):
                for work in _named(words, list(WORKS)):
                    row = _checked(name, backend, dtype, work)
                    known[key(row)] = row
                    print(*key(row), row.status, row.compiled, row.text, flush=True)
                    ordered = sorted(known.values(), key=lambda row: NAMES.index(row.model))
                    model_table.FILE.write_text(model_table.written(ordered), "utf-8")


def _checked(name: str, backend: str, dtype: str, work: str) -> ModelResult:
    run = f"{time.strftime('%Y-%m-%d')}, torch {torch_version()}"
    try:
        return model_check.check(name, BACKENDS[backend], dtype, work, run)
    except (DeeplinkError, RuntimeError, TypeError) as error:
        text = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return ModelResult(name, backend, dtype, work, "wrong", text=text, run=run)


def _named(words: list[str], known: list[str]) -> list[str]:
    return [name for name in known if name in words] or known


def key(row: ModelResult) -> tuple[str, ...]:
    return row.model, row.backend, row.dtype, row.work


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["measure"]:
        measure(arguments[1:])
    PAGE.write_text(page(model_table.kept(), PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
