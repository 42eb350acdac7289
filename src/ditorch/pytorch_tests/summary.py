# SPDX-License-Identifier: Apache-2.0
"""The summary of a run as JSON: counts by file, and the tests that fail on the device alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from deeplink.vendor import Vendor
from ditorch.pytorch_tests import pairs
from ditorch.pytorch_tests.pairs import Pair

KIND, VERSION = "pytorch_tests", 1


def write(path: Path, found: Sequence[Pair], vendor: Vendor, selection: str | None) -> None:
    """Write the summary of the pairs of a run; without a selection, the file's own remains."""
    if selection is None:
        selection = (
            json.loads(path.read_text("utf-8")).get("selection", "") if path.is_file() else ""
        )
    text = json.dumps(as_dict(found, vendor, selection), indent=1, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def as_dict(found: Sequence[Pair], vendor: Vendor, selection: str) -> dict[str, Any]:
    """Return the summary of the pairs of a run; `selection` names the tests that ran."""
    return {
        "kind": KIND,
        "version": VERSION,
        "torch": str(torch.__version__),
        "python": ".".join(map(str, sys.version_info[:2])),
        "vendor": vendor.name,
        "device": vendor.device,
        "selection": selection,
        "files": [each.as_dict() for each in pairs.count(found)],
        "failures": [_failure(pair) for pair in found if pair.lost],
    }


def _failure(pair: Pair) -> dict[str, str]:
    known = pair.known
    return {
        "test": str(pair.row),
        "kind": known.kind if known else "",
        "reason": known.reason if known else "",
        "message": pair.row.message,
    }
