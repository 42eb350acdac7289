"""The flight recorder's lines as charts of the steps, and its events as findings."""

from __future__ import annotations

from pathlib import Path

from op_tools.diagnosis.report.content import Content


def steps(file: Path, content: Content) -> None:
    """Placeholder."""
