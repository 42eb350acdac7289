# SPDX-License-Identifier: Apache-2.0
"""The translations of messages: a .po file, read into the classes of gettext.

The .po file is the one form of a catalogue: a wheel and an editable installation read this file, no
compiled file is built or stored.
"""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

_LINE = re.compile(r'(msgid|msgstr)?\s*(".*")')


class Catalogue(gettext.NullTranslations):
    """Translations by their English texts."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self._texts = texts
        self._patterns: list[tuple[re.Pattern[str], str, int]] = []  # and its sentences

    def gettext(self, message: str) -> str:
        return self._texts.get(message, message)

    def recognized(self, text: str) -> str:
        """The translation of a text whose placeholders are filled in; the text where there is none.

        What fills a placeholder is translated likewise; several sentences are translated together
        by a message of several, else one by one.
        """
        sentences = _SENTENCES.split(text)
        for pattern, target, count in self._by_pattern():
            match = pattern.fullmatch(text) if count > 1 or len(sentences) == 1 else None
            if match is not None:
                words = {name: self.recognized(word) for name, word in match.groupdict().items()}
                return _filled(target, words)
        if len(sentences) == 1:
            return text
        translations = [self.recognized(each) for each in sentences]
        return ". ".join(sentences) if translations == sentences else "。".join(translations)

    def _by_pattern(self) -> list[tuple[re.Pattern[str], str, int]]:
        """Patterns of the English texts with their translations, the most specific one first."""
        if not self._patterns:
            specific = sorted(self._texts, key=lambda text: -len(_words(text)))
            self._patterns = [
                (_pattern(text), self._texts[text], len(_SENTENCES.split(text)))
                for text in specific
                if len(_LETTER.findall(_words(text))) >= LETTERS
            ]
        return self._patterns


_PLACEHOLDER = re.compile(r"\{(\w+)(?:![rsa])?(?::([^}]*))?\}")
_SENTENCES = re.compile(r"\. (?=[A-Z{])")
_LETTER = re.compile("[A-Za-z]")
LETTERS = 5  # of a message without its placeholders, for it to be recognized


def _filled(text: str, words: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda field: words[field[1]], text)


def _words(text: str) -> str:
    """The words of a message: those for a count of one, without what fills its placeholders."""
    return _PLACEHOLDER.sub(lambda field: (field[2] or "").rpartition("|")[0], text)


def _pattern(text: str) -> re.Pattern[str]:
    """Matches the message with any words for its placeholders, and for any count."""
    seen: set[str] = set()
    found, end = "", 0
    for field in _PLACEHOLDER.finditer(text):
        found += re.escape(text[end : field.start()])
        end, name, spec = field.end(), field[1], field[2] or ""
        if "|" in spec:
            found += f"(?:{'|'.join(map(re.escape, spec.split('|')))})"
        else:
            found += f"(?P={name})" if name in seen else f"(?P<{name}>.*?)"
            seen.add(name)
    return re.compile(found + re.escape(text[end:]), re.DOTALL)


def entries(text: str) -> Iterator[tuple[str, str]]:
    """The entries of a .po file: the English text, the translation.

    The header, whose text is empty, is the first one.
    """
    fields: dict[str, str] = {}
    field = ""
    for line in [*text.splitlines(), ""]:
        match = _LINE.fullmatch(line.strip())
        if match is None:
            if "msgid" in fields:
                yield fields["msgid"], fields.get("msgstr", "")
            fields = {}
            continue
        field = match[1] or field
        fields[field] = fields.get(field, "") + ast.literal_eval(match[2])


@cache
def chinese() -> Catalogue:
    """The Chinese catalogue; an entry without a translation stays English."""
    text = files("deeplink.i18n").joinpath("zh.po").read_text("utf-8")
    return Catalogue({source: target for source, target in entries(text) if source and target})
