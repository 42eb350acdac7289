# SPDX-License-Identifier: Apache-2.0
"""Texts that are English values and can be shown in another language."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from deeplink.i18n.language import ENGLISH, language


class Message(str):
    """An English text that knows how to render itself in another language.

    `format`, `join` and `+` give messages again. Other methods of str, f-strings included, give
    plain English text. All are typed as str, for lists of messages and of other texts.
    """

    _render: tuple[str, tuple[Any, ...]]

    @classmethod
    def _of(cls, text: str, how: str, *what: Any) -> Message:
        made = cls(text)
        made._render = how, what
        return made

    def format(self, *args: Any, **fields: Any) -> str:
        args = tuple(map(_message_of, args))
        fields = {name: _message_of(value) for name, value in fields.items()}
        return self._of(_filled(self, args, fields), "format", self, args, fields)

    def join(self, parts: Iterable[str], /) -> str:
        parts = tuple(parts)
        return self._of(str.join(self, parts), "join", self, parts)

    def __add__(self, other: str, /) -> str:
        return self._of(str.__add__(self, other), "add", self, other)

    def __radd__(self, other: str, /) -> str:
        return self._of(str.__add__(other, self), "add", other, self)

    def __mul__(self, times: SupportsIndex, /) -> str:
        return self if int(times) == 1 else str.__mul__(self, times)

    def __reduce__(self) -> tuple[Callable[..., Message], tuple[Any, ...]]:
        how, what = self._render
        return Message._of, (str.__str__(self), how, *what)

    def __str__(self) -> str:
        return self  # str(error) of an error with this text is the message, too


def message(text: str) -> str:
    """The message with this English text; a placeholder in it is `{name}`.

    `{name:call|calls}` is the first word for a count of one, the second for another count.
    """
    return Message._of(text, "text", text)


class _Formatter(string.Formatter):
    """Formats as `str.format` does, and chooses the word for a count."""

    def format_field(self, value: Any, format_spec: str) -> str:
        one, is_choice, many = format_spec.partition("|")
        if not is_choice:
            return format(value, format_spec)
        return one if value == 1 else many


_FORMATTER = _Formatter()


def _filled(template: str, args: Sequence[Any], fields: Mapping[str, Any]) -> str:
    """A template with its placeholders filled in."""
    if "|" in template:
        return _FORMATTER.vformat(template, args, fields)
    return str.format(template, *args, **fields)


def joined(separator: str, parts: Iterable[str]) -> str:
    """`separator.join(parts)` that keeps the translations of the parts."""
    return Message._of(separator, "plain", separator).join(parts)


def recognized(text: str) -> str:
    """The message for an English text that was read from a file: translated by the entry of the
    catalogue whose placeholders can have its words.
    """
    return Message._of(text, "recognized", text)


def _message_of(value: Any) -> Any:
    """The message that an error or a verdict shows; another value as it is."""
    if isinstance(value, (str, int, float)):
        return value
    text = str(value)
    return text if isinstance(text, Message) else value


def translated(text: str) -> str:
    """A text in the language in force; what is no Message stays."""
    if not isinstance(text, Message) or language() == ENGLISH:
        return str.__str__(text)
    from deeplink.i18n.catalogue import chinese  # read only where it is needed

    return str(_rendered(text, chinese()))


def in_chinese(text: str) -> str:
    """A text in Chinese, whatever language is in force; what is not in the catalogue stays."""
    from deeplink.i18n.catalogue import chinese

    known = text if isinstance(text, Message) else recognized(text)
    return str(_rendered(known, chinese()))


def _rendered(value: Any, catalogue: Any) -> Any:
    """A message by the catalogue; another value as it is."""
    if not isinstance(value, Message):
        return value
    how, what = value._render
    if how == "text":
        return catalogue.gettext(what[0])
    if how == "plain":
        return what[0]
    if how == "recognized":
        return catalogue.recognized(what[0])
    parts = [_rendered(each, catalogue) for each in what]
    if how == "add":
        return parts[0] + parts[1]
    if how == "join":
        return parts[0].join(_rendered(each, catalogue) for each in what[1])
    _, args, fields = what
    return _filled(
        parts[0],
        [_rendered(each, catalogue) for each in args],
        {name: _rendered(each, catalogue) for name, each in fields.items()},
    )
