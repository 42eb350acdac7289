"""The choice of the vendor that serves a framework's device type of a chip."""

import pytest

from deeplink.errors import VendorUnavailable
from dlinfer.framework.choice import chosen_chip


def test_a_chip_that_is_absent_is_named_with_what_serves_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DEEPLINK_VENDOR", raising=False)
    with pytest.raises(VendorUnavailable) as raised:
        chosen_chip({"ascend": "ascend", "camb": "camb"})
    assert "no chip of device types 'ascend', 'camb' is available: ascend unav" in str(raised.value)
    assert "Hint: DEEPLINK_VENDOR=reference serves them on the reference" in str(raised.value)


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_the_vendor_that_is_requested_serves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPLINK_VENDOR", name)
    assert chosen_chip({"ascend": "ascend"}).name == name
