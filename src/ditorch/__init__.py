"""`import torch; import ditorch`: code written for CUDA runs on another accelerator."""

from ditorch.calls import DitorchWarning, Report, Unsupported, report
from ditorch.session import activate, current, undo

__all__ = ["DitorchWarning", "Report", "Unsupported", "activate", "current", "report", "undo"]

activate()
