"""Errors carry their hint in their text, and survive a trip to another process."""

import pickle

import pytest

from deeplink import errors

ALL = [
    errors.DeeplinkError,
    errors.NoVendorError,
    errors.VendorUnavailable,
    errors.VendorBrokenError,
    errors.SettingError,
    errors.BuildError,
]


@pytest.mark.parametrize("kind", ALL)
def test_the_text_is_the_message_and_the_hint(kind: type[errors.DeeplinkError]) -> None:
    assert str(kind("no such thing.", "try another.")) == "no such thing.\nHint: try another."


def test_without_a_hint_the_text_is_the_message() -> None:
    assert str(errors.BuildError("it failed")) == "it failed"


@pytest.mark.parametrize("kind", ALL)
def test_an_error_survives_pickling(kind: type[errors.DeeplinkError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("message", "hint")))
    assert type(copy) is kind
    assert (copy.message, copy.hint) == ("message", "hint")


@pytest.mark.parametrize("kind", ALL[1:])
def test_every_error_is_caught_by_the_base(kind: type[errors.DeeplinkError]) -> None:
    with pytest.raises(errors.DeeplinkError):
        raise kind("message")
