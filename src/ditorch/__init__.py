# SPDX-License-Identifier: Apache-2.0
"""`import torch; import ditorch`: code written for CUDA runs on another accelerator."""

import sys

from ditorch.calls import DitorchWarning, Report, Unsupported, report
from ditorch.session import activate, current, undo

__all__ = ["DitorchWarning", "Report", "Unsupported", "activate", "current", "report", "undo"]

# `python -m ditorch` activates after it has parsed its options: `--vendor` chooses the device.
# A worker of `pytorch-tests` activates where its task is about CUDA.
# While Python searches for the module of `-m`, sys.argv[0] is "-m", and the rest is the module's.
ON_THEIR_OWN = ("ditorch", "-mditorch", "ditorch.pytorch_tests.worker")
if not (sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ON_THEIR_OWN):
    activate()
