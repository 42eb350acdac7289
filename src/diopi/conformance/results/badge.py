# SPDX-License-Identifier: Apache-2.0
"""A badge of a run: JSON in the form of shields.io's endpoint, and an SVG of the same text."""

from __future__ import annotations

import json
from pathlib import Path
from xml.sax.saxutils import escape

from diopi.conformance.results.results import Summary

LABEL = "diopi conformance"
COLORS = {"brightgreen": "#4c1", "yellow": "#dfb317", "red": "#e05d44", "lightgrey": "#9f9f9f"}
WIDTH = 6.6  # of a character of the font, on average
PADDING = 10


def write(folder: Path, summary: Summary) -> list[str]:
    """Write badge.json and badge.svg into a folder; return their names."""
    message, color = _text(summary)
    fields = {"schemaVersion": 1, "label": LABEL, "message": message, "color": color}
    (folder / "badge.json").write_text(json.dumps(fields) + "\n", "utf-8")
    (folder / "badge.svg").write_text(_svg(message, COLORS[color]), "utf-8")
    return ["badge.json", "badge.svg"]


def _text(summary: Summary) -> tuple[str, str]:
    ran = [row for row in summary.operators if row.cases]
    right = sum(not row.wrong for row in ran)
    if not ran:
        return "no case was run", "lightgrey"
    color = "brightgreen" if right == len(ran) else "yellow" if right else "red"
    return f"{right} of {len(ran)} operators, {summary.cases} cases", color


def _svg(message: str, color: str) -> str:
    left, right = (int(len(text) * WIDTH) + PADDING for text in (LABEL, message))
    texts = [(left / 2, LABEL), (left + right / 2, message)]
    written = "".join(
        f'<text x="{x:g}" y="14" text-anchor="middle">{escape(text)}</text>' for x, text in texts
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{escape(LABEL)}: {escape(message)}">'
        f'<rect width="{left}" height="20" fill="#555"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{color}"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{written}</g>'
        "</svg>\n"
    )
