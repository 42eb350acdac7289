# SPDX-License-Identifier: Apache-2.0
"""schemas.csv: the ATen overloads that the ops serve, as the torch of the day declares them."""

from __future__ import annotations

import csv
import io

from diopi import schema
from diopi.op import all_ops


def render() -> str:
    """One row for each overload: its own name, of which functional overload it is which form."""
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
    """Every overload that a declaration names, without the forms that follow from it."""
    return {overload for op in all_ops().values() for overload in op.declared}
