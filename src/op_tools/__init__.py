# SPDX-License-Identifier: Apache-2.0
"""Tools for the operators of a real training run: capture, compare, time, fall back and cast."""

from op_tools.capture.tool import OpCapture
from op_tools.compare.tool import OpAutoCompare
from op_tools.core.filters import Selection, Steps
from op_tools.core.step_counter import step
from op_tools.diagnosis.bisect.reroute_tool import OpReroute
from op_tools.diagnosis.flight_recorder.recorder import FlightRecorder
from op_tools.diagnosis.nan.tool import WhyNan
from op_tools.one_iter import OneIteration
from op_tools.timing.tool import OpTimeMeasure
from op_tools.tools.apply import apply_feature
from op_tools.tools.dtype_cast import OpDtypeCast
from op_tools.tools.fallback import OpFallback
from op_tools.tools.guard import Guard
from op_tools.tools.observe import OpObserve
from op_tools.tools.overflow import OpOverflowCheck

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
    "Selection",
    "Steps",
    "WhyNan",
    "apply_feature",
    "step",
]
