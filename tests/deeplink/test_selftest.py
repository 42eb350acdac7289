"""The self-test of a device: passes on one that works, reports the error of one that does not."""

import re

import pytest
import torch

from deeplink.testing import selftest
from deeplink.vendor import Vendor

NAMES = ["copy", "autograd", "rng", "streams", "save/load", "collective"]


def test_plain_cpu_passes_and_has_no_streams() -> None:
    vendor = Vendor("cpu", "cpu", lambda: True, collective="gloo")
    checks = list(selftest.run(vendor))
    assert [check.name for check in checks] == NAMES
    assert [check.detail for check in checks if not check.ok] == []
    assert [check.status for check in checks] == ["ok", "ok", "ok", "skipped", "ok", "ok"]
    assert checks[3].detail == "cpu has no streams"
    assert checks[5].detail == "all_reduce of 2 processes over gloo"
    assert all(check.seconds >= 0 for check in checks)


def test_a_vendor_without_a_collective_skips_that_check() -> None:
    checks = {c.name: c for c in selftest.run(Vendor("cpu", "cpu", lambda: True))}
    assert checks["collective"].skipped
    assert checks["collective"].detail == "the vendor names no collective"


def test_a_device_module_that_does_not_load_fails_each_check_with_its_error() -> None:
    vendor = Vendor("acme", "cpu", lambda: True, device_module="no_such_module_of_acme")
    checks = list(selftest.run(vendor))
    assert {check.status for check in checks} == {"FAILED"}
    assert {check.detail for check in checks} == {
        "ModuleNotFoundError: No module named 'no_such_module_of_acme'"
    }


def test_a_wrong_result_is_reported_with_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(device: str, dtype: torch.dtype, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.full((2, 1), 1.0 if dtype == torch.float64 else 1.5)

    monkeypatch.setattr(selftest, "_fit", fit)
    checks = {c.name: c for c in selftest.run(Vendor("cpu", "cpu", lambda: True))}
    assert checks["autograd"].status == "FAILED"
    assert "regression weight: " in checks["autograd"].detail
    assert "1.5 against 1.0" in checks["autograd"].detail


def test_a_process_that_fails_is_reported_by_its_own_error() -> None:
    vendor = Vendor("cpu", "cpu", lambda: True, collective="no_such_backend")
    check = {c.name: c for c in selftest.run(vendor)}["collective"]
    assert check.status == "FAILED"
    assert re.search(r"rank \d of 2 failed: \w+Error: .*no_such_backend", check.detail)
