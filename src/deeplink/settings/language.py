# SPDX-License-Identifier: Apache-2.0
"""The language of messages: DEEPLINK_LANG, else the locale."""

from __future__ import annotations

from deeplink.errors import SettingError
from deeplink.i18n.language import CHINESE, ENGLISH, decide_by
from deeplink.settings.process import locale
from deeplink.settings.rows import DEEPLINK_LANG


def _chosen() -> str:
    try:
        chosen = DEEPLINK_LANG.get()
    except SettingError:  # `deeplink doctor` and `deeplink settings` report it
        chosen = DEEPLINK_LANG.default()
    if chosen != "auto":
        return chosen
    return CHINESE if locale().lower().startswith(CHINESE) else ENGLISH


decide_by(_chosen)
