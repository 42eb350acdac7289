"""Writes tests/dlinfer/lmdeploy_calls.csv: how releases of LMDeploy call dlinfer's published ops.

`pip download --no-deps lmdeploy==0.18.0` and others, then `python scripts/dlinfer_calls.py *.whl`.
"""

from __future__ import annotations

import csv
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

from dlinfer.framework.lmdeploy.calls import Call, scan

FILE = Path(__file__).parents[1] / "tests/dlinfer/lmdeploy_calls.csv"


def main(wheels: list[str]) -> None:
    releases: defaultdict[Call, list[str]] = defaultdict(list)
    for wheel in sorted(wheels):
        with zipfile.ZipFile(wheel) as files:
            names = [name for name in files.namelist() if name.endswith(".py")]
            for call in scan(files.read(name).decode() for name in names):
                releases[call].append(Path(wheel).name.split("-")[1])
    with FILE.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("op", "by position", "by name", "releases"))
        for call, found in sorted(releases.items()):
            writer.writerow((call.op, " ".join(call.args), " ".join(call.named), " ".join(found)))
    print(f"{len(releases)} calls of {len(wheels)} releases")


if __name__ == "__main__":
    main(sys.argv[1:])
