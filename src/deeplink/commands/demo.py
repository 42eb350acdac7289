# SPDX-License-Identifier: Apache-2.0
"""`deeplink demo`: the two examples that `make demo` runs, out of the wheel or the checkout."""

from __future__ import annotations

import sys

import typer

from deeplink import native
from deeplink.process import children

# Each example, and the words in front of it: the first is a program for CUDA, the second runs it.
EXAMPLES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("-m", "ditorch", "run"), "train_cuda_style.py"),
    ((), "wrong_loss.py"),
)


def demo(context: typer.Context) -> None:
    """Train on the device; then find and fix a planted fault

    The first part trains a small transformer, written for CUDA, on the chosen device and on the
    CPU: the losses must agree. The second part switches on a fault of the reference device, finds
    the operator, fixes the run, and writes op_tools_results/demo/report.html in this folder.
    It takes about a minute; native parts that are not built yet are built first.

    \b
    Examples:
      deeplink demo

    \b
    Exit codes:
      0 both parts ended as they should, 1 one did not, 2 the device cannot be used
    """
    for words, name in EXAMPLES:
        line = [sys.executable, *words, str(native.examples() / name)]
        status = children.run(line)
        if status:
            raise typer.Exit(status)
