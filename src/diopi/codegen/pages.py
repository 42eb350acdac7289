# SPDX-License-Identifier: Apache-2.0
"""docs/diopi: one page for each family, an index, and the table that coverage is counted on."""

from __future__ import annotations

import csv
import io
from functools import cache

import torch

from diopi.codegen.header import by_family, declaration, symbol
from diopi.op import MISSING, Argument, Op, all_ops, signature

NOTE = "<!-- Written by `python -m diopi.codegen`; do not edit. -->\n"

GUIDE = """\
```python
import diopi
import torch

op = diopi.get("softmax")
print(op.aten[0], op.legacy, op.backward)  # aten::_softmax ('diopiSoftmax',) softmax_backward
print(diopi.by_aten("aten::add_.Scalar").name)  # add
print(diopi.signature(diopi.get("abs")))  # (input: 'Tensor')

x, out = torch.tensor([[-1.0, 2.0]]), torch.empty(1, 2)
print(diopi.get("relu")(x).tolist())  # [[0.0, 2.0]]
print(diopi.call("diopiRelu", out, x).tolist())  # [[0.0, 2.0]]
```

- A *meaning* is a plain torch function: it is what an op does, and in float64 the reference.
- `input` is what torch calls `self`. A number may stand where a tensor is expected.
- A *written* argument is changed by the op itself; other in-place and `out=` forms are derived.
- *kind* defines how far a right result may be from the reference: `exact` not at all, `index` up to
  the order of equal elements, `random` by statistics, `linalg` by residuals, the rest by rounding.

To add an op: one row in `src/diopi/ops/<family>.py`, then `python -m diopi.codegen --schemas` and
`python -m diopi.codegen`. These pages, the header and the Protocol follow.""".splitlines()


def render() -> dict[str, str]:
    """Render the pages by file name."""
    families = by_family(all_ops().values())
    found = {f"{family}.md": page(family, ops) for family, ops in families.items()}
    return {"README.md": index(families), **found, "ops.csv": table()}


def index(families: dict[str, list[Op]]) -> str:
    ops = all_ops().values()
    lines = [
        NOTE,
        "# The operators",
        "",
        f"{len(ops)} ops, {len({n for op in ops for n in op.legacy})} published `diopiXxx` "
        f"functions, {len({n for op in ops for n in op.aten})} ATen overloads. "
        "The same as a table: [ops.csv](ops.csv).",
        "",
        *GUIDE,
        "",
        "| family | ops | published functions | ATen overloads |",
        "|---|---|---|---|",
    ]
    for family, members in families.items():
        counts = [len(members), sum(len(op.legacy) for op in members)]
        counts.append(sum(len(op.aten) for op in members))
        lines.append(f"| [{family}]({family}.md) | {' | '.join(map(str, counts))} |")
    guessed = [f"[{op.name}]({op.family}.md#{op.name})" for op in ops if op.assumed]
    lines += [
        "",
        f"Of {len(guessed)} ops the published headers do not define all that a kernel has to ",
    ]
    lines[-1] += f"know; each page states the assumptions: {', '.join(guessed)}."
    return "\n".join(lines) + "\n"


def page(family: str, ops: list[Op]) -> str:
    doc = _family_doc(family)
    links = ", ".join(f"[{op.name}](#{op.name})" for op in ops)
    return "\n".join([NOTE, f"# {family}", "", doc, "", links, "", *map(_section, ops)])


@cache
def _family_doc(family: str) -> str:
    module = __import__(f"diopi.ops.{family}", fromlist=["__doc__"])
    return str(module.__doc__).strip().splitlines()[0]


def _section(op: Op) -> str:
    lines = [f"## {op.name}", ""]
    if op.doc:
        lines += [" ".join(op.doc.split()), ""]
    lines += ["```text", f"{op.name}{_signature(op)}", "```", ""]
    lines += ["| argument | type | |", "|---|---|---|", *map(_row, op.arguments), ""]
    lines += [f"- {name}: {value}" for name, value in _facts(op) if value]
    lines += ["", "```c", declaration(op).strip(), "```", ""]
    return "\n".join(lines)


def _signature(op: Op) -> str:
    results = [f"{kind} {name}" for kind, name in zip(op.returns, op.result_names, strict=True)]
    return f"{str(signature(op)).replace(chr(39), '')} -> ({', '.join(results)})"


def _row(argument: Argument) -> str:
    notes = []
    if argument.optional:
        notes.append("may be None")
    if argument.written:
        notes.append("written")
    if argument.default is not MISSING:
        notes.append(f"default `{argument.default!r}`")
    return f"| `{argument.name}` | {argument.type} | {', '.join(notes)} |"


def _facts(op: Op) -> list[tuple[str, str]]:
    return [
        ("kind", op.kind),
        ("dtypes", ", ".join(map(short, op.dtypes))),
        ("ATen", _code(op.aten)),
        ("published names", _code(op.legacy)),
        ("C symbol", f"`{symbol(op)}`"),
        ("gradient", f"`{op.backward}`" if op.backward else ""),
        ("samples of op_db", _code(op.opinfo)),
        ("sign of zero", "is part of the result" if op.signed_zero else ""),
        ("shape of the result", "depends on values" if op.dynamic else ""),
        ("assumed, as the headers do not say", op.assumed),
    ]


def _code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def table() -> str:
    """Render one row for each op: the rows of a coverage matrix."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["op", "family", "kind", "dtypes", "gradient", "aten", "published", "samples"])
    for op in all_ops().values():
        writer.writerow(
            [
                op.name,
                op.family,
                op.kind,
                " ".join(map(short, op.dtypes)),
                op.backward,
                " ".join(op.aten),
                " ".join(op.legacy),
                " ".join(op.opinfo),
            ]
        )
    return text.getvalue()
