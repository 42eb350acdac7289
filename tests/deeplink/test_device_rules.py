"""The section of a vendor's gaps.toml that every suite obeys."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeplink.errors import DeeplinkError
from deeplink.testing import device_rules

RULES = """
[device]
dtypes = ["float32", "bfloat16"]

[[device.skip]]
op = "linalg.eig*"
dtype = "*"
reason = "no eigenvalues on the chip"

[[device.tolerance]]
op = "gelu"
dtype = "float32"
bound = 2e-3
reason = "a table"
"""


@pytest.fixture
def rules(tmp_path: Path) -> device_rules.Rules:
    path = tmp_path / "gaps.toml"
    path.write_text(RULES)
    return device_rules.read(path)


def test_what_the_chip_lacks_is_left_out_with_the_reason(rules: device_rules.Rules) -> None:
    assert rules.skip_reason("add", "int64") == "the chip has no int64"
    assert rules.skip_reason("linalg.eigh", "float32") == "no eigenvalues on the chip"
    assert rules.skip_reason("add", "float32") == ""


def test_a_tolerance_is_for_its_op_by_either_name(rules: device_rules.Rules) -> None:
    assert rules.bound("nn.functional.gelu", "float32") == rules.bound("gelu", "float32") == 2e-3
    assert rules.bound("gelu", "bfloat16") is None
    assert rules.bound("gelu_backward", "float32") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[device]\nskips = []", "has skips; known: dtypes, skip, tolerance"),
        ('[[device.skip]]\nop = "a"', "should have exactly op, dtype, reason"),
        ('[[device.skip]]\nop = "a"\ndtype = "*"\nreason = " "', "needs a reason"),
        ("[device", "is no TOML"),
    ],
)
def test_a_wrong_rule_is_reported(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gaps.toml"
    path.write_text(text)
    with pytest.raises(DeeplinkError, match=message):
        device_rules.read(path)
