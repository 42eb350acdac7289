# SPDX-License-Identifier: Apache-2.0
"""The language of messages: English, until `deeplink.settings` is imported and decides."""

from __future__ import annotations

from collections.abc import Callable

ENGLISH, CHINESE = "en", "zh"


def _english() -> str:
    return ENGLISH


_decide: Callable[[], str] = _english


def decide_by(decide: Callable[[], str]) -> None:
    """Set the function that decides the language. Settings raise errors, errors are messages: so
    the settings call this, and are not imported here.
    """
    global _decide
    _decide = decide


def language() -> str:
    """The language in force, "en" or "zh". Never raises: errors are messages, too."""
    return _decide()
