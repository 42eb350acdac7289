# SPDX-License-Identifier: Apache-2.0
"""The correctness of a recorded call, by a rerun on the CPU in float64 on its own arguments."""

from __future__ import annotations

import warnings

import torch

from deeplink.i18n import _
from op_tools.capture import Recorded
from op_tools.compare import eligibility, host_verdicts
from op_tools.compare.eligibility import NoReferenceError
from op_tools.compare.host_verdicts import RecordedCall
from op_tools.core import dispatch
from op_tools.diagnosis.diff.recordings import Entry
from op_tools.replay import Prepared, ReplayError
from op_tools.replay.verdicts import rerun_of


def fault_of(entry: Entry) -> str | None:
    """The fault of the results of a call, "" if they are correct; None: no verdict.

    By the judge of OpAutoCompare, so an error of the arguments does not count.
    """
    if entry.load is None:
        return None
    try:
        recorded = entry.load()
        if not recorded.has_output:
            return None
        taken = _taken(recorded)
        if taken is None:
            return None
        with dispatch.unseen(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            items = host_verdicts.forward(taken, "calibrated")
    except (NoReferenceError, ReplayError, ValueError, RuntimeError, TypeError):
        return None  # damaged bytes, a missing kernel, no reference: no verdict
    bad = [item for item in items if not item.verdict.passed]
    return _("{label}: {verdict}").format(label=bad[0].label, verdict=bad[0].verdict) if bad else ""


def _taken(recorded: Recorded) -> RecordedCall | None:
    host = Prepared(recorded, eligibility.HOST, backward=False)
    again = rerun_of(recorded, host, recorded.header.get("id", 0), recorded.output)
    if eligibility.unfit(again.call):
        return None
    after = [recorded.mutated.get(at) for at in range(len(host.inputs))]
    return RecordedCall(again, recorded.output, after, False, "cpu")
