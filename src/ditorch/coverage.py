# SPDX-License-Identifier: Apache-2.0
"""`deeplink coverage train.py`: report how the chosen device handles a program's CUDA calls."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deeplink import settings
from deeplink.commands.common import STDOUT, write_json
from deeplink.console import console, table
from deeplink.i18n import _, joined
from deeplink.inspection import cuda_usage
from deeplink.inspection.cuda_usage import Foreign, ScanResult, Use
from deeplink.vendor import using
from ditorch import cuda_namespace, session, triton_kernels
from ditorch.table import find
from ditorch.target import Target

SERVED, WARNS, RAISES, UNKNOWN = "supported", "warns", "raises", "unknown"
NOT_COVERED = "not covered"
TRITON = "triton"  # in the table of dependencies: as the device runs Triton kernels


@dataclass(frozen=True)
class Outcome:
    """The effect of a call on the chosen device, and advice."""

    use: Use
    outcome: str
    reason: str


def outcome_of(use: Use, target: Target | None) -> Outcome:
    """Look up the effect of a name in the rules that map torch.cuda."""
    row = find(use.name)
    name = use.name
    while row is None and "." in name:  # Stream.wait_event: use the row of the class
        name = name.rpartition(".")[0]
        row = find(name)
    if row is None:
        return Outcome(use, UNKNOWN, _("unknown name of torch.cuda"))
    if target is None:  # the device is CUDA to torch itself
        return Outcome(use, SERVED, "")
    neutral = cuda_namespace.missing(row, target)
    if neutral is None:
        return Outcome(use, SERVED, row.reason)
    if not neutral or settings.DITORCH_STRICT.get():
        return Outcome(use, RAISES, row.reason)
    return Outcome(
        use,
        WARNS,
        _("warns and returns {neutral}: {reason}").format(neutral=neutral, reason=row.reason),
    )


def dependencies_of(found: ScanResult, target: Target | None) -> list[Foreign]:
    """Return what the program uses of CUDA outside of torch.cuda, with its effect on the device."""
    if target is None:  # the device is CUDA to torch itself
        return []
    if not any(one.outcome == TRITON for one in found.foreign):
        return found.foreign
    runs = triton_kernels.runs()
    advice = {
        "device": _("the vendor's Triton compiles it"),
        triton_kernels.INTERPRET: _("Triton's interpreter runs it on the CPU, slowly"),
    }
    outcome = SERVED if runs else RAISES
    return [
        replace(one, outcome=outcome, advice=advice.get(runs, one.advice))
        if one.outcome == TRITON
        else one
        for one in found.foreign
    ]


def check(path: Path, *, every: bool, json: str, vendor: str) -> int:
    """Print how the chosen device handles the CUDA calls of a program; return the exit code."""
    found = cuda_usage.scan(path)
    with using(vendor):
        active = session.activate()
    outcomes = [outcome_of(use, active.target) for use in found.uses]
    foreign = dependencies_of(found, active.target)
    if json:
        write_json(_plain(outcomes, foreign, active.vendor.label), json)
    if json != STDOUT:
        _show(outcomes, foreign, active.vendor.label, every)
    effects = [one.outcome for one in outcomes] + [one.outcome for one in foreign]
    return 1 if any(outcome != SERVED for outcome in effects) else 0


def _plain(outcomes: list[Outcome], foreign: list[Foreign], label: str) -> dict[str, Any]:
    return {
        "device": label,
        "calls": [asdict(one) for one in outcomes],
        "dependencies": [asdict(one) for one in foreign],
    }


def _show(outcomes: list[Outcome], foreign: list[Foreign], label: str, every: bool) -> None:
    rows = [
        (one.use.name, one.outcome, f"{one.use.file}:{one.use.lines[0]}", one.reason)
        for one in outcomes
        if every or one.outcome != SERVED
    ]
    rows += [
        (one.name, one.outcome, f"{one.file}:{one.line}", f"{one.what}: {one.advice}")
        for one in foreign
        if every or one.outcome != SERVED
    ]
    out = console()
    if rows:
        columns = (_("name"), _("status"), _("first use"), _("what it does, or what to do"))
        out.print(
            table(_("What the program uses of CUDA, on {label}").format(label=label), columns, rows)
        )
    served = sum(one.outcome == SERVED for one in outcomes)
    counts = {
        _("raise"): RAISES,
        _("warn and return a neutral value"): WARNS,
        _("are unknown"): UNKNOWN,
    }
    others = [
        f"{count} " + text
        for text, outcome in counts.items()
        if (count := sum(one.outcome == outcome for one in outcomes))
    ]
    if not outcomes:
        out.print(_("No torch.cuda call was found."))
    elif others:
        line = _(
            "{served} of {count} torch.cuda {count:call|calls} {served:is|are} supported on {label}"
        ).format(served=served, count=len(outcomes), label=label)
        out.print(joined("; ", [line, *others]), soft_wrap=True)
    else:
        out.print(
            _("All {served} torch.cuda {served:call is|calls are} supported on {label}.").format(
                served=served, label=label
            ),
            soft_wrap=True,
        )
    for outcome, text in (
        (RAISES, _("does not run on {label}: {names}")),
        (NOT_COVERED, _("not covered by this check: {names}")),
    ):
        names = dict.fromkeys(one.name for one in foreign if one.outcome == outcome)
        if names:
            out.print(
                text.format(label=label, names=", ".join(names)), style="yellow", soft_wrap=True
            )
