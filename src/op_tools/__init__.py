"""Tools for the operators of a real training run: capture, compare, time, fall back and cast."""

from op_tools.apply import apply_feature
from op_tools.capture.tool import OpCapture
from op_tools.compare.tool import OpAutoCompare
from op_tools.diagnosis.origin import WhyNan
from op_tools.diagnosis.recorder import FlightRecorder
from op_tools.diagnosis.rerouting import OpReroute
from op_tools.dtype_cast import OpDtypeCast
from op_tools.fallback import OpFallback
from op_tools.guard import Guard
from op_tools.observe import OpObserve
from op_tools.one_iter import OneIteration
from op_tools.overflow import OpOverflowCheck
from op_tools.steps import step
from op_tools.time_measure import OpTimeMeasure

__all__ = [
    "FlightRecorder",
    "Guard",
    "OneIteration",
    "OpAutoCompare",
    "OpCapture",
    "OpDtypeCast",
    "OpFallback",
    "OpObserve",
    "OpOverflowCheck",
    "OpReroute",
    "OpTimeMeasure",
    "WhyNan",
    "apply_feature",
    "step",
]
