# SPDX-License-Identifier: Apache-2.0
"""The checks of `deeplink doctor`: versions, vendors, the choice, settings, the self-test."""

import importlib
import importlib.metadata
import platform
from dataclasses import asdict, dataclass, field
from typing import Any

from deeplink import __version__, settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.settings import InForce, Unknown
from deeplink.vendor import Choice, Found, Vendor, choose, discover


@dataclass
class Report:
    """The results of the doctor: filled step by step, then printed or written as JSON."""

    versions: dict[str, str]
    vendors: list[Found]
    settings: list[InForce]
    unknown: list[Unknown]
    chosen: Choice | None = None
    build: dict[str, str] = field(default_factory=dict)
    checks: list[Any] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def examine(name: str) -> Report:
    """Collect what is installed and chosen, without using the device."""
    report = Report(_versions(), discover(), settings.in_force(), settings.unknown())
    report.problems += [row.problem for row in report.settings if row.problem]
    report.problems += [
        _("vendor {name} is broken: {reason}").format(name=row.name, reason=row.reason)
        for row in report.vendors
        if row.status == "broken"
    ]
    try:
        report.chosen = choose(name or None)
    except DeeplinkError as error:
        report.problems.append(str(error))
        return report
    if report.chosen.vendor.build:
        report.build = _build_state(report.chosen.vendor.build)
    return report


def _versions() -> dict[str, str]:
    names = ("deeplink", "torch", "numpy")
    found = dict.fromkeys(names, _("not installed")) | {"deeplink": __version__}
    for name in names[1:]:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {
        "python": platform.python_version(),
        "on": f"{platform.system()} {platform.machine()}",
    }


def _build_state(module: str) -> dict[str, str]:
    try:
        state = importlib.import_module(module).state()
    # a vendor's module may raise anything; the error is part of the report
    except Exception as error:
        return {"error": f"{module}: {type(error).__name__}: {error}"}
    return {str(key): str(value) for key, value in state.items()}


def try_device(report: Report, vendor: Vendor) -> None:
    """Add the self-test of a vendor's device to a report."""
    from deeplink.testing import selftest  # imports torch, which the other commands do not need

    with settings.selecting_vendor(
        vendor.name
    ):  # torch_dipu loads the chip of the vendor that is set
        report.checks.extend(selftest.run(vendor))
    report.problems += [
        _("self-test {name}: {detail}").format(name=check.name, detail=check.detail)
        for check in report.checks
        if not check.ok
    ]


def plain(report: Report) -> dict[str, Any]:
    """Convert a report to values that JSON can hold."""
    chosen = report.chosen
    return {
        "versions": report.versions,
        "vendors": [
            {
                "name": row.name,
                "status": row.status,
                "reason": row.reason,
                "distribution": row.distribution,
                "device": row.vendor.device if row.vendor else "",
                "note": row.vendor.note if row.vendor else "",
            }
            for row in report.vendors
        ],
        "chosen": {"name": chosen.vendor.name, "label": chosen.vendor.label, "why": chosen.why}
        if chosen
        else None,
        "build": report.build,
        "settings": [asdict(row) for row in report.settings],
        "unknown": [asdict(row) for row in report.unknown],
        "self_test": [asdict(check) | {"status": check.status} for check in report.checks],
        "problems": report.problems,
        "ok": not report.problems,
    }
