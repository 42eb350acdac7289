# SPDX-License-Identifier: Apache-2.0
"""The output of `one-iter`: the record, and the first layer that diverges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from deeplink import settings
from deeplink.console import console, table
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.identity import Identity
from op_tools.core.problem import Problem, run_command
from op_tools.core.terminal import size
from op_tools.one_iter.record_store import Writer
from op_tools.one_iter.result import Direction, Finding

SHOWN = 60  # rows of a table; of a larger model, the layers that diverge and their neighbours
SHOWN_LAYERS = 16  # of a workaround
DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
Found = tuple[Finding, Direction] | None


def _tool() -> str:
    """The name of the tool, with its rank if there are several."""
    return (
        "one-iter"
        if settings.world() == 1
        else _("one-iter: rank {rank}").format(rank=settings.rank())
    )


def recorded(writer: Writer, step: int, count: int, device: Identity | None) -> None:
    """Print what was recorded, on which device, and where the record is."""
    console().print(
        _(
            "{tool}: iteration {step} recorded: {calls} {calls:call|calls}, {size} in {place}"
        ).format(tool=_tool(), step=step, calls=writer.calls, size=size(count), place=writer.place),
        soft_wrap=True,
    )
    console().print(
        _("{tool}: recorded on {device}").format(tool=_tool(), device=device), soft_wrap=True
    )


def problem(error: DeeplinkError) -> None:
    """Print the reason why nothing could be compared."""
    console(stderr=True).print(
        _("{tool}: {error}").format(tool=_tool(), error=error), style="red", soft_wrap=True
    )


def compared(
    findings: Sequence[Finding],
    found: Found,
    folder: str,
    record: Identity | None,
    here: Identity | None,
) -> None:
    """Print the layers in the order of the iteration, then the first that diverges."""
    out = console()
    unknown = _("a device that the record does not name")
    out.print(
        _("{tool}: recorded on {record}").format(tool=_tool(), record=record or unknown),
        soft_wrap=True,
    )
    out.print(_("{tool}: compared on {here}").format(tool=_tool(), here=here), soft_wrap=True)
    shown = _shown(findings)
    columns = (
        *(_("layer"), _("kind"), _("status"), _("where"), _("error / tolerance")),
        *(_("drift (output)"), _("drift (grad)")),
    )
    out.print(
        table(
            _("{tool}: against {folder}").format(tool=_tool(), folder=folder),
            columns,
            [_row(f) for f in shown],
        )
    )
    if len(shown) < len(findings):
        out.print(_("{count} more {count:is|are} correct").format(count=len(findings) - len(shown)))
    bad = sum(finding.diverges for finding in findings)
    skipped = sum(bool(finding.skipped) for finding in findings)
    out.print(
        _(
            "{tool}: {count} {count:layer|layers}: {bad} {bad:diverges|diverge}, {skipped} skipped"
        ).format(tool=_tool(), count=len(findings), bad=bad, skipped=skipped),
        soft_wrap=True,
    )
    for line in _verdict(found, findings):
        out.print(line, soft_wrap=True)
    if _is_same(record, here):
        out.print(
            _(
                "{tool}: WARNING: the record is from the device under test itself ({here}). A "
                "fault of this device is in the record too, and no layer diverges by it.\nHint: "
                "record on a device that you trust: deeplink one-iter record -o DIR --vendor "
                "cpu train.py"
            ).format(tool=_tool(), here=here),
            style="bold red",
            soft_wrap=True,
        )


def _is_same(record: Identity | None, here: Identity | None) -> bool:
    return record is not None and here is not None and record.same_device(here)


def _shown(findings: Sequence[Finding]) -> list[Finding]:
    if len(findings) <= SHOWN:
        return list(findings)
    kept = {0, len(findings) - 1}
    for place, finding in enumerate(findings):
        if finding.diverges or finding.skipped:
            kept.update((place - 1, place, place + 1))
    return [finding for place, finding in enumerate(findings) if place in kept]


def _row(finding: Finding) -> tuple[str, ...]:
    wrong = [word for word in DIRECTIONS if finding.wrong(word)]
    state = _("FAILED") if wrong else _("skipped") if finding.skipped else _("ok")
    where = ", ".join(wrong) or finding.skipped
    ratio = f"{finding.ratio:.3g}" if wrong else ""
    drifts = _text(finding.drift), _text(finding.gradient_drift)
    return finding.label, _kind(finding), state, where, ratio, *drifts


def _text(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.1e}"


def _verdict(found: Found, findings: Sequence[Finding]) -> list[str]:
    if found is None:
        return [_("{tool}: every layer is correct").format(tool=_tool())]
    finding, direction = found
    entry = finding.entry
    headline = _("{tool}: first diverging layer: {label} ({name}), {direction}").format(
        tool=_tool(), label=finding.label, name=entry.name, direction=direction
    )
    return [headline, *explained(finding, direction, findings).lines()]


def explained(finding: Finding, direction: Direction, findings: Sequence[Finding]) -> Problem:
    """The verdict on the first layer that diverges."""
    item = finding.wrong(direction)
    assert item is not None  # the first layer that diverges
    entry = finding.entry
    workaround = following = ""
    if entry.kind == "operator":
        workaround = run_command("fallback", entry.path)
        following = run_command("autocompare", entry.path)
    elif entry.parent:
        layers = ",".join(_paths(findings)) or entry.path
        workaround = run_command("fallback", ".*", modules=layers)
        following = run_command("autocompare", modules=entry.path)
    pattern = _pattern(findings)
    return Problem(
        _("{label}: {message}").format(label=item.label, message=item.verdict.message),
        entry.site,
        (pattern,) if pattern else (),
        workaround,
        following,
    )


def _paths(findings: Sequence[Finding]) -> list[str]:
    """The diverging modules, without those that have another one inside; [] if there are many."""
    bad = [each.entry.path for each in findings if each.diverges and each.entry.kind == "module"]
    inner = [path for path in bad if not any(other.startswith(f"{path}.") for other in bad)]
    return inner if len(inner) <= SHOWN_LAYERS else []


def _pattern(findings: Sequence[Finding]) -> str:
    """What the diverging layers have in common: their kind, if no correct layer has it."""
    judged = [each for each in findings if not each.skipped]
    bad = [each for each in judged if each.diverges]
    kinds = {_kind(each) for each in bad}
    correct = [each for each in judged if not each.diverges]
    if len(bad) < 2 or len(kinds) > 2 or any(_kind(each) in kinds for each in correct):
        return ""
    names = " or ".join(sorted(kinds))
    return _(
        "{bad:The|All} {bad} diverging {bad:layer is|layers are} {names}; none of the "
        "{correct} others is."
    ).format(bad=len(bad), names=names, correct=len(correct))


def _kind(finding: Finding) -> str:
    entry = finding.entry
    return entry.name.rsplit(".", 1)[-1] if entry.kind == "module" else entry.kind


def write_json(
    path: Path,
    findings: Sequence[Finding],
    found: Found,
    record: Identity | None,
    here: Identity | None,
) -> None:
    """Write the result; `first` is null when no layer diverges. Each of several
    ranks has a file.
    """
    if settings.world() > 1:
        path = path.with_stem(f"{path.stem}_rank{settings.rank()}")
    first, verdict = None, {}
    if found is not None:
        first = {
            "layer": found[0].entry.path,
            "call": found[0].entry.number,
            "direction": found[1],
        }
        verdict = explained(*found, findings).as_dict()
    content = {
        "rank": settings.rank(),
        "record": record.as_dict() if record is not None else None,
        "here": here.as_dict() if here is not None else None,
        "same_device": _is_same(record, here),
        "first": first,
        "verdict": verdict,
        "layers": [finding.as_dict() for finding in findings],
    }
    path.write_text(json.dumps(content, indent=1))
