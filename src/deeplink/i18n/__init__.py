# SPDX-License-Identifier: Apache-2.0
"""Messages in the reader's language: English in the program and its files, translated on output.

    raise DeeplinkError(_("no vendor is named {name!r}.").format(name=name))
    line = _("{count} {count:call|calls} compared").format(count=count)

A `Message` is its English text, so result files and comparisons do not depend on the language.
`translated` gives the text to show; `deeplink.console` calls it for all output. The translations
are in `zh.po`, read at the first message that is shown in Chinese.
"""

from __future__ import annotations

from deeplink.i18n.language import ENGLISH, language
from deeplink.i18n.message import (
    Message,
    in_chinese,
    joined,
    message,
    recognized,
    translated,
)
from deeplink.i18n.message import message as _

__all__ = [
    "ENGLISH",
    "Message",
    "_",
    "in_chinese",
    "joined",
    "language",
    "message",
    "recognized",
    "translated",
]
