"""Messages in Chinese: the language, the values, and the catalogue against the sources."""

import copy
import json
import pickle
import string
from collections.abc import Iterator

import pytest

from deeplink.console import console, table
from deeplink.errors import DeeplinkError
from deeplink.i18n import Message, _, joined, language, recognized, translated
from deeplink.i18n.catalogue import entries
from deeplink.settings import locale
from op_tools.core.problem import Problem
from scripts import messages

LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPLINK_LANG", "zh")


@pytest.fixture
def no_locale(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in ("DEEPLINK_LANG", *LOCALE):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch


# The language.


def test_messages_are_english_without_a_locale(no_locale: pytest.MonkeyPatch) -> None:
    assert language() == "en"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "C"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LC_ALL": "zh_CN", "LC_MESSAGES": "C", "LANG": "C"}, "zh"),
        ({"LC_ALL": "", "LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "DEEPLINK_LANG": "en"}, "en"),
        ({"LANG": "C", "DEEPLINK_LANG": "zh"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "DEEPLINK_LANG": "auto"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "DEEPLINK_LANG": "klingon"}, "zh"),
    ],
)
def test_deeplink_lang_goes_before_the_locale(
    no_locale: pytest.MonkeyPatch, values: dict[str, str], expected: str
) -> None:
    for name, value in values.items():
        no_locale.setenv(name, value)
    assert language() == expected


def test_the_first_variable_of_the_locale_counts(no_locale: pytest.MonkeyPatch) -> None:
    assert locale() == ""
    no_locale.setenv("LANG", "zh_CN")
    no_locale.setenv("LC_MESSAGES", "en_US")
    assert locale() == "en_US"


# Values.


def test_a_message_is_its_english_text(chinese: None) -> None:
    text = _("there are: {names}.").format(names="a, b")
    assert text == "there are: a, b."
    assert json.dumps({"text": text}) == '{"text": "there are: a, b."}'
    assert translated(text) == "可选的有：a, b。"


def test_a_plain_text_is_not_translated(chinese: None) -> None:
    assert translated("Hint: {text}") == "Hint: {text}"


def test_a_message_without_a_translation_stays_english(chinese: None) -> None:
    unknown = Message._of("{count} unknown", "text", "{count} unknown")
    assert translated(unknown.format(count=3)) == "3 unknown"


def test_parts_of_a_message_are_translated(chinese: None) -> None:
    inner = _("did you mean {name!r}?").format(name="x")
    assert translated(_("Hint: {text}").format(text=inner)) == "提示：是否想写 'x'？"
    assert translated(joined("; ", (inner, "y", inner))) == "是否想写 'x'？; y; 是否想写 'x'？"
    assert translated("a " + inner + " b") == "a 是否想写 'x'？ b"
    assert joined("; ", ("a", "b")) == "a; b"


def test_sentences_of_a_file_are_translated_one_by_one(chinese: None) -> None:
    text = "3 of 4 elements differ by more than rounding allows. Worst at [1]: got 2, expected 0 "
    text += "(error 2, tolerance 1e-6)"
    shown = translated(recognized(text))
    assert shown.startswith("4 个元素中有 3 个")
    assert shown.endswith("。最差的位于 [1]：得到 2，应为 0（误差 2，容差 1e-6）")
    assert translated(recognized("Unknown words. And more.")) == "Unknown words. And more."


def test_the_count_chooses_the_english_form() -> None:
    counted = [_("{n} {n:call|calls}").format(n=n) for n in (0, 1, 2)]
    assert counted == ["0 calls", "1 call", "2 calls"]
    assert _("{n:,} {n:element is|elements are} wrong").format(n=1) == "1 element is wrong"


def test_a_message_with_a_count_is_translated(chinese: None) -> None:
    text = _("OpObserve: {applied} {applied:call|calls} shown")
    for count in (1, 2):
        shown = text.format(applied=count)
        assert translated(shown) == f"OpObserve：显示了 {count} 次调用"
        assert translated(recognized(str.__str__(shown))) == f"OpObserve：显示了 {count} 次调用"
    untranslated = _("{n} {n:ounce|ounces}").format(n=1)
    assert translated(untranslated) == "1 ounce"


def test_messages_survive_copies_and_other_processes(chinese: None) -> None:
    text = joined("\n", (_("there are: {names}.").format(names="a"), "b"))
    for each in (copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert each == "there are: a.\nb"
        assert translated(each) == "可选的有：a。\nb"


def test_an_error_is_english_as_text_and_chinese_on_the_screen(
    chinese: None, capsys: pytest.CaptureFixture[str]
) -> None:
    error = DeeplinkError("plain", _("there are: {names}.").format(names="a"))
    assert f"{error}" == "plain\nHint: there are: a."
    console().print(str(error))
    assert capsys.readouterr().out == "plain\n提示：可选的有：a。\n"


def test_tables_are_translated(chinese: None, capsys: pytest.CaptureFixture[str]) -> None:
    word = _("there are: {names}.").format(names="a")
    console().print(table(word, (word, "plain"), [("1", word)]))
    assert capsys.readouterr().out.count("可选的有：a。") == 3


def test_a_verdict_has_chinese_labels_and_english_json(chinese: None) -> None:
    problem = Problem("p", "w", ("e1", "e2"), "fix", "next")
    assert [translated(line) for line in problem.lines()] == [
        "问题：      p",
        "位置：      w",
        "证据：      e1",
        "            e2",
        "规避方法：  fix",
        "下一步：    next",
    ]
    assert problem.as_dict()["problem"] == "p"


# The catalogue.


def test_every_message_is_translated_and_every_entry_is_a_message() -> None:
    found, known = messages.collected(), messages.translations()
    assert [text for text in found if not known.get(text)] == [], "python -m scripts.messages"
    assert [text for text in known if text and text not in found] == [], "scripts.messages --write"


def test_translations_have_the_placeholders_of_their_messages() -> None:
    known = messages.translations()
    different = [
        text
        for text, target in known.items()
        if text and set(messages.placeholders(text)) != set(messages.placeholders(target))
    ]
    assert different == []


def test_the_words_for_a_count_are_two() -> None:
    for text in messages.collected():
        specs = [spec or "" for _, _, spec, _ in string.Formatter().parse(text)]
        assert all(spec.count("|") < 2 for spec in specs), text


def test_the_line_ends_of_a_translation_are_those_of_its_message() -> None:
    known = messages.translations()
    for text, target in known.items():
        if text:
            assert text.startswith("\n") == target.startswith("\n"), text
            assert text.endswith("\n") == target.endswith("\n"), text


def test_no_message_has_two_entries() -> None:
    texts = [text for text, _ in entries(messages.CATALOGUE.read_text("utf-8"))]
    assert len(texts) == len(set(texts))


def test_messages_are_collected_from_calls() -> None:
    source = 'from deeplink.i18n import _\na = _("one {x}" " two").format(x=1)\nb = _("three")\n'
    found = list(messages.of_module(source, "m.py"))
    assert [each.text for each in found] == ["one {x} two", "three"]
    with pytest.raises(ValueError, match="one literal text"):
        list(messages.of_module(source + 'c = _(f"{a}")\n', "m.py"))


def test_po_entries_are_read() -> None:
    text = (
        'msgid ""\nmsgstr "head\\n"\n\n#: a.py\nmsgid "a\\"b"\nmsgstr "甲"\n\n'
        'msgid ""\n"two\\n"\n"lines"\nmsgstr ""\n"两\\n"\n"行"\n\n'
    )
    assert list(entries(text)) == [
        ("", "head\n"),
        ('a"b', "甲"),
        ("two\nlines", "两\n行"),
    ]
