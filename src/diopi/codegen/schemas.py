# SPDX-License-Identifier: Apache-2.0
"""schemas.csv: the ATen overloads of the ops, as the installed torch declares them."""

from __future__ import annotations

import csv
import io

from diopi import schema
from diopi.op import all_ops


def render() -> str:
    """Render one row for each overload: its name, its functional overload and its form."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["name", "of", "form", "schema"])
    seen = set()
    known = schema.torch_schemas()
    for functional in sorted(_functional()):
        if functional not in known:
            continue
        forms = {functional: "functional"} | schema.derived(functional)
        for name, form in forms.items():
            if name not in seen:
                seen.add(name)
                writer.writerow([name, functional, form, known[name].removeprefix("aten::")])
    return text.getvalue()


def _functional() -> set[str]:
    """Return every overload that a declaration names, without the derived forms."""
    return {overload for op in all_ops().values() for overload in op.declared}
