# SPDX-License-Identifier: Apache-2.0
"""The start-up line of ditorch."""

from __future__ import annotations

import platform

import torch

from deeplink import settings
from deeplink.console import Output
from ditorch.target import Target


def print_line(line: str) -> None:
    """Print one line on standard error, unless DITORCH_QUIET is on."""
    if not settings.DITORCH_QUIET.get():
        Output(stderr=True).write(f"{line}\n")


def line_for(target: Target, hook_problem: str) -> str:
    """Format vendor, device and versions; and the state of the hook, unless it is in place."""
    versions = f"torch {torch.__version__}, python {platform.python_version()}"
    line = f"ditorch: cuda -> {target.device} ({target.vendor.label}), {versions}"
    return f"{line}; without the native hook: {hook_problem}" if hook_problem else line
