"""Tools for the operators of a real training run: capture, compare, time, fall back and cast."""

from op_tools.dtype_cast import OpDtypeCast
from op_tools.fallback import OpFallback
from op_tools.observe import OpObserve
from op_tools.overflow import OpOverflowCheck
from op_tools.steps import step

__all__ = ["OpDtypeCast", "OpFallback", "OpObserve", "OpOverflowCheck", "step"]
