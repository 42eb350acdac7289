# SPDX-License-Identifier: Apache-2.0
"""The translations of messages: a .po file, read into the classes of gettext.

The .po file is the one form of a catalogue: a wheel and an editable installation read it alike, no
compiled file is built or stored.
"""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

_LINE = re.compile(r'(msgid|msgid_plural|msgstr(?:\[0\])?)?\s*(".*")')


class Catalogue(gettext.NullTranslations):
    """Translations by their English texts. The language has one form for all counts."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def gettext(self, message: str) -> str:
        return self._texts.get(message, message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return self._texts.get(msgid1) or super().ngettext(msgid1, msgid2, n)


def entries(text: str) -> Iterator[tuple[str, str, str]]:
    """The entries of a .po file: the English text, its plural ("": none), the translation.

    The header, whose text is empty, is the first one.
    """
    fields: dict[str, str] = {}
    field = ""
    for line in [*text.splitlines(), ""]:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            if "msgid" in fields:
                yield fields["msgid"], fields.get("msgid_plural", ""), fields.get("msgstr", "")
            fields = {}
            continue
        field = (match[1] or field).removesuffix("[0]")
        fields[field] = fields.get(field, "") + ast.literal_eval(match[2])


@cache
def chinese() -> Catalogue:
    """The Chinese catalogue; an entry without a translation stays English."""
    text = files("deeplink.i18n").joinpath("zh.po").read_text("utf-8")
    return Catalogue({source: target for source, _, target in entries(text) if source and target})
