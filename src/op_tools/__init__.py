"""Tools for the operators of a real training run: capture, compare, time, fall back and cast."""

from op_tools.observe import OpObserve
from op_tools.steps import step

__all__ = ["OpObserve", "step"]
