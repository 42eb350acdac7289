"""Vendors: found by entry points, reported with their reasons, chosen by name or by rank."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deeplink import vendor as vendors
from deeplink.errors import NoVendorError, VendorBrokenError, VendorUnavailable
from deeplink.vendor import Found, Status, Vendor, choose, discover

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lays out a distribution as an installer does, with one entry point."""
    before = set(sys.modules)

    def lay_out(name: str, source: str, *, distribution: str = "", module: str = "") -> None:
        distribution = distribution or f"dist-{name}"
        module = module or f"found_{name}"
        place = tmp_path / distribution
        info = place / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(f"[{vendors.GROUP}]\n{name} = {module}:vendor\n")
        (place / f"{module}.py").write_text(f"from deeplink.vendor import Vendor\n{source}\n")
        monkeypatch.syspath_prepend(place)
        importlib.invalidate_caches()

    yield lay_out
    for name in set(sys.modules) - before:
        if name.startswith("found_"):
            del sys.modules[name]


def row(name: str) -> Found:
    """The row of one vendor."""
    return next(row for row in discover() if row.name == name)


def test_an_installed_vendor_is_found(install: Install) -> None:
    install("acme", "vendor = Vendor('acme', 'cpu', lambda: True, note='one chip')")
    found = row("acme")
    assert (found.status, found.reason, found.distribution) == ("available", "", "dist-acme")
    assert found.vendor is not None and found.vendor.label == "one chip"


def test_rows_are_sorted_by_name(install: Install) -> None:
    install("zeta", "vendor = Vendor('zeta', 'cpu', lambda: True)")
    install("alpha", "vendor = Vendor('alpha', 'cpu', lambda: True)")
    names = [row.name for row in discover()]
    assert names == sorted(names)
    assert {"alpha", "zeta"} <= set(names)


@pytest.mark.parametrize(
    ("source", "status", "reason"),
    [
        ("raise ImportError('libacme.so.1 is missing')", "broken", "ImportError: libacme.so.1"),
        ("raise SyntaxError('odd')", "broken", "SyntaxError: odd"),
        ("other = 1", "broken", "AttributeError: module 'found_acme' has no attribute 'vendor'"),
        ("vendor = 'acme'", "broken", "found_acme:vendor is of type str, not Vendor"),
        (
            "vendor = Vendor('other', 'cpu', lambda: True)",
            "broken",
            "its entry point is named 'acme', its record 'other'",
        ),
        (
            "vendor = Vendor('acme', 'cpu', lambda: 1 / 0)",
            "broken",
            "ZeroDivisionError: division by zero",
        ),
        (
            "vendor = Vendor('acme', 'cpu', lambda: False)",
            "unavailable",
            "is_available() returns False, without a reason",
        ),
        (
            "from deeplink.errors import VendorUnavailable\n"
            "def is_available():\n"
            "    raise VendorUnavailable('the driver is too old', 'install 5.2')\n"
            "vendor = Vendor('acme', 'cpu', is_available)",
            "unavailable",
            "the driver is too old; install 5.2",
        ),
    ],
)
def test_every_state_comes_with_its_reason(
    install: Install, source: str, status: Status, reason: str
) -> None:
    install("acme", source)
    found = row("acme")
    assert found.status == status
    assert found.reason.startswith(reason)


def test_one_name_from_two_distributions_is_broken(install: Install) -> None:
    record = "vendor = Vendor('acme', 'cpu', lambda: True)"
    install("acme", record, distribution="acme-one", module="found_one")
    install("acme", record, distribution="acme-two", module="found_two")
    assert [row.name for row in discover()].count("acme") == 1
    assert row("acme").status == "broken"
    assert row("acme").reason == "2 entry points have this name, in: acme-one, acme-two"


def test_a_broken_vendor_does_not_hinder_another(install: Install) -> None:
    install("broken", "raise RuntimeError('no')")
    install("works", "vendor = Vendor('works', 'cpu', lambda: True)")
    assert choose("works").vendor.name == "works"


def test_choosing_by_name_and_by_environment(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("acme", "vendor = Vendor('acme', 'cpu', lambda: True)")
    install("other", "vendor = Vendor('other', 'cpu', lambda: True)")
    monkeypatch.setenv("DEEPLINK_VENDOR", "acme")
    assert (choose().vendor.name, choose().why) == ("acme", "DEEPLINK_VENDOR=acme")
    chosen = choose("other")  # the argument goes before the environment
    assert (chosen.vendor.name, chosen.why) == ("other", "requested by name: other")


# Choosing out of given rows: what is installed on this machine does not matter.


def given(monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, Status, str, bool]) -> None:
    """Makes discover() return these: name, status, reason, accelerator."""
    found = [
        Found(name, Vendor(name, "cpu", lambda: True, accelerator=accel), status, reason, "dist")
        for name, status, reason, accel in rows
    ]
    monkeypatch.setattr(vendors, "discover", lambda: found)
    monkeypatch.delenv("DEEPLINK_VENDOR", raising=False)


def test_the_first_available_accelerator_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    given(
        monkeypatch,
        ("acme", "unavailable", "no card", True),
        ("cpu", "available", "", False),
        ("nova", "available", "", True),
        ("reference", "available", "", False),
        ("zeta", "available", "", True),
    )
    assert choose().vendor.name == "nova"
    assert choose().why == "the first available accelerator"


def test_reference_is_the_last_resort_and_broken_ones_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given(
        monkeypatch,
        ("acme", "broken", "ImportError: libacme", True),
        ("cpu", "available", "", False),
        ("reference", "available", "", False),
    )
    assert choose().vendor.name == "reference"
    assert choose().why == "no accelerator is available; broken: acme (ImportError: libacme)"


def test_cpu_is_never_chosen_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given(
        monkeypatch,
        ("cpu", "available", "", False),
        ("reference", "unavailable", "no compiler", False),
    )
    with pytest.raises(NoVendorError) as caught:
        choose()
    assert str(caught.value) == (
        "no vendor to choose: no accelerator is available, and neither is 'reference': "
        "no compiler.\n"
        "Hint: set DEEPLINK_VENDOR=cpu to run on plain CPU; `deeplink doctor --all` shows all "
        "vendors."
    )


def test_nothing_installed_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch)
    with pytest.raises(NoVendorError, match=r"neither is 'reference'\.\nHint: install this"):
        choose()


def test_an_unknown_name_is_answered_with_the_installed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given(monkeypatch, ("cpu", "available", "", False), ("reference", "available", "", False))
    with pytest.raises(NoVendorError) as caught:
        choose("referense")
    assert str(caught.value) == (
        "no vendor 'referense'; installed: cpu, reference.\nHint: did you mean 'reference'?"
    )
    with pytest.raises(NoVendorError, match="Hint: set DEEPLINK_VENDOR to one of these"):
        choose("qqqq")


@pytest.mark.parametrize("name", ["npu", "npu:1"])
def test_a_device_is_answered_with_the_vendors_that_have_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Found(each, Vendor(each, device, lambda: True), "available", "", "d")
        for each, device in (("acme", "npu"), ("other", "npu"), ("reference", "dipu"))
    ]
    monkeypatch.setattr(vendors, "discover", lambda: rows)
    with pytest.raises(NoVendorError) as caught:
        choose(name)
    assert caught.value.hint == "'npu' is a device; vendors with this device: acme, other."


def test_an_unavailable_vendor_that_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, ("acme", "unavailable", "no card", True), ("cpu", "available", "", False))
    with pytest.raises(
        VendorUnavailable, match="vendor 'acme' is not available: no card; available: cpu"
    ):
        choose("acme")


def test_a_broken_vendor_that_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, ("acme", "broken", "ImportError: libacme", True))
    with pytest.raises(
        VendorBrokenError,
        match=r"vendor 'acme' \(of dist\) is broken: ImportError: libacme; available: none",
    ):
        choose("acme")


def test_a_record_cannot_be_changed() -> None:
    record = Vendor("acme", "cpu", lambda: True)
    with pytest.raises(AttributeError):
        record.name = "other"  # type: ignore[misc]
