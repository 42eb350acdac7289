# SPDX-License-Identifier: Apache-2.0
"""The language of messages: DEEPLINK_LANG, else the locale."""

from __future__ import annotations

ENGLISH, CHINESE = "en", "zh"


def language() -> str:
    """The language in force, "en" or "zh". Never raises: errors are messages, too."""
    from deeplink import settings  # whose errors are messages: imported late
    from deeplink.errors import SettingError

    try:
        chosen = settings.DEEPLINK_LANG.get()
    except SettingError:  # `deeplink doctor` and `deeplink settings` report it
        chosen = settings.DEEPLINK_LANG.default()
    if chosen != "auto":
        return chosen
    return CHINESE if settings.locale().lower().startswith(CHINESE) else ENGLISH
