# SPDX-License-Identifier: Apache-2.0
"""The suites of a backend: every operator that it converts, and models, as rows of a table."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeplink.console import console, table
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dicp.backend import GraphCompiler, find
from dicp.conformance import calls, model_check, op_check
from dicp.conformance.models import OF_TRANSFORMERS

MOST = 3  # maximum calls of an operator in each type
SIZES = {"false": ("static",), "true": ("dynamic",), "all": ("static", "dynamic")}
RIGHT, WRONG, EAGER, NOT_TRIED = "right", "wrong", "eager", "not tried"


@dataclass(frozen=True)
class Row:
    """An operator or a model in one type and kind of sizes."""

    kind: str  # op or model
    name: str
    dtype: str
    sizes: str  # static, dynamic or training
    status: str
    cases: str = ""  # for an operator: "2 right, 1 eager"; for a model: compiled operators, of all
    text: str = ""  # the error, or the reason for staying eager
    named: bool = False  # it was selected by name

    @property
    def failed(self) -> bool:
        """Whether the case is wrong, or was selected by name and not compiled."""
        return self.status == WRONG or (self.named and self.status != RIGHT)


def backend_of(name: str) -> GraphCompiler:
    """Return a backend by the name of its entry point, or by `package.module:attribute`."""
    module, _colon, attribute = name.partition(":")
    if not attribute:
        return find(name)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise DeeplinkError(
            _("cannot load backend {name!r}: {error}.").format(name=name, error=error),
            _("a backend is an entry point of torch_dynamo_backends, or package.module:attribute."),
        ) from error
    if not isinstance(found, GraphCompiler):
        raise DeeplinkError(f"{name!r} is of type {type(found).__name__}; allowed: dicp.Backend.")
    return found


def device_of(backend: GraphCompiler, asked: str) -> str:
    """Return the device of the tensors: the given one, else the CPU if supported,
    else the backend's.
    """
    if asked:
        return asked
    return "cpu" if "cpu" in backend.devices else backend.devices[0]


def tried_ops(
    backend: GraphCompiler,
    targets: Sequence[Any],
    dtypes: Sequence[str],
    sizes: Sequence[str],
    device: str,
    named: bool,
) -> Iterator[Row]:
    """Yield a row for each operator, type and kind of sizes."""
    for target in targets:
        for dtype in dtypes:
            for kind in sizes:
                found = [
                    _outcome(backend, call, kind == "dynamic", device)
                    for call in calls.calls(target, dtype)[:MOST]
                ]
                yield _row_of_op(str(target), dtype, kind, found, named)


def _row_of_op(
    name: str, dtype: str, sizes: str, found: Sequence[op_check.Outcome], named: bool
) -> Row:
    counts = Counter(outcome.status for outcome in found)
    status = next((s for s in (WRONG, RIGHT, EAGER) if counts[s]), NOT_TRIED)
    texts = dict.fromkeys(o.text for o in found if o.text and o.status in (WRONG, EAGER))
    text = "; ".join(texts) if found else "there is no sample of a call"
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return Row("op", name, dtype, sizes, status, told, text, named)


def _outcome(backend: GraphCompiler, call: Any, dynamic: bool, device: str) -> op_check.Outcome:
    try:
        return op_check.check(backend, call, dynamic, device)
    except Exception as error:  # a vendor's compiler may raise anything; the other calls go on
        if dynamic and "symbolic" in str(error):
            return op_check.Outcome(EAGER, "torch has no symbolic shapes for it")
        return op_check.Outcome(WRONG, f"{type(error).__name__}: {error}")


def tried_models(
    backend: GraphCompiler,
    models: Sequence[str],
    dtypes: Sequence[str],
    sizes: Sequence[str],
    device: str,
    named: bool,
) -> Iterator[Row]:
    """Yield a row for each model, type and kind of work."""
    for model in models:
        for dtype in dtypes:
            for work in sizes:
                yield _row_of_model(backend, model, dtype, work, device, named)


def _row_of_model(
    backend: GraphCompiler, model: str, dtype: str, work: str, device: str, named: bool
) -> Row:
    if model in OF_TRANSFORMERS and importlib.util.find_spec("transformers") is None:
        text = "transformers is not installed"
        return Row("model", model, dtype, work, NOT_TRIED, text=text, named=named)
    try:
        found = model_check.check(model, backend, dtype, work, device=device)
    except Exception as error:  # as above
        text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return Row("model", model, dtype, work, WRONG, text=text, named=named)
    compiled = f"{found.compiled} compiled"
    return Row("model", model, dtype, work, found.status, compiled, found.text, named)


def show(backend: GraphCompiler, rows: Sequence[Row], every: bool) -> None:
    """Print the table of failures, or of all rows, and the totals."""
    out = console()
    shown = [row for row in rows if every or row.status != RIGHT]
    columns = ("op or model", "tried", "status", "cases", "why")
    lines = [
        (r.name, f"{r.dtype} {r.sizes}", r.status, r.cases, _first_line(r.text)) for r in shown
    ]
    if lines:
        out.print(table(f"Conformance of {backend.label}", columns, lines))
    for kind in ("op", "model"):
        counts = Counter(row.status for row in rows if row.kind == kind)
        if counts:
            told = ", ".join(f"{counts[s]} {s}" for s in (RIGHT, WRONG, EAGER, NOT_TRIED))
            out.print(f"{kind}s: {told}", highlight=False)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def write(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows as JSON."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1), "utf-8")
