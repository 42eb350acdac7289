"""Write the table of GE's operator prototypes again, from an unpacked torch_npu wheel.

    python scripts/ascend_prototypes.py FOLDER [NAME …]

FOLDER holds the package `torch_npu`. The table keeps its operators and adds the named ones: facts
of an interface (names, order, types), for the emitted operators alone.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

TABLE = Path(__file__).parents[1] / "src/deeplink_vendors/ascend/graph/prototypes.csv"
LISTING = "torch_npu/dynamo/torchair/_ge_concrete_graph/auto_generated_ge_raw_ops.py"
HEADER = ("op", "kind", "name", "types")
PART = re.compile(r"\.([A-Z_]+)\((\w+),\s*(.*?)\)\s*(?=\n|$)")
# two spellings of one type
SAME = {"FLOAT32": "FLOAT", "BFLOAT16": "BF16", "DI_UINT16": "UINT16"}

Row = tuple[str, str, str, str]


def mine(folder: Path, names: set[str]) -> list[Row]:
    """Return the rows of the named operators that have a prototype in the wheel."""
    text = (folder / LISTING).read_text("utf-8")
    rows: list[Row] = []
    for listing in sorted(re.findall(r'"""(REG_OP\(.*?)"""', text, re.DOTALL)):
        name = re.match(r"REG_OP\((\w+)\)", listing)
        if name and name[1] in names:
            rows += _rows(name[1], listing.replace("\\n", "\n"))
    return rows


def _rows(op: str, listing: str) -> list[Row]:
    found = PART.findall(listing)
    return [
        (op, kind.lower(), name, _attribute(types) if "ATTR" in kind else _types(types))
        for kind, name, types in found
    ]


def _attribute(text: str) -> str:
    """`Int 0` of `Int, 0`; only the kind where there is no default, or a list."""
    kind, _, default = text.partition(",")
    return f"{kind.strip()} {default.strip()}".strip()


def _types(text: str) -> str:
    """The words of a set of types: of GE's types, or of its classes; `any` for a free one."""
    if text.startswith('"'):
        return "any"
    words = re.findall(r"\w+", text.replace("TensorType", ""))
    plain = [word.removeprefix("DT_") for word in words]
    return " ".join(dict.fromkeys(SAME.get(word, word) for word in plain))


def written(rows: list[Row]) -> str:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(HEADER)
    table.writerows(rows)
    return out.getvalue()


def main(folder: Path, added: list[str]) -> None:
    known = set(added)
    if TABLE.exists():
        with TABLE.open(encoding="utf-8", newline="") as file:
            known |= {row["op"] for row in csv.DictReader(file)}
    rows = mine(folder, known)
    TABLE.write_text(written(rows), "utf-8")
    missing = sorted(known - {row[0] for row in rows})
    print(f"{len({row[0] for row in rows})} operators; not in the wheel: {missing or 'none'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
