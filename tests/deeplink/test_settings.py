"""Settings: typed, read late, never written; the error for a bad value names the allowed ones."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeplink import settings
from deeplink.errors import SettingError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(settings.PREFIXES) or name in ("CXX", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name)


def test_defaults_are_in_force_when_nothing_is_set() -> None:
    assert settings.DEEPLINK_VENDOR.get() == ""
    assert settings.DIPU_DEVICE_COUNT.get() == 2
    assert settings.DIPU_DEVICE_MEMORY.get() == 16 * 2**30
    assert settings.DIPU_BUILD_JOBS.get() == 0
    assert settings.DIPU_QUIRKS.get() == ""
    assert settings.CXX.get() == "c++"


def test_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.DIPU_DEVICE_COUNT.get() == 2
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "4")
    assert settings.DIPU_DEVICE_COUNT.get() == 4
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "8")
    assert settings.DIPU_DEVICE_COUNT.get() == 8


def test_empty_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE_COUNT", " ")
    assert settings.DIPU_DEVICE_COUNT.get() == 2
    assert not settings.DIPU_DEVICE_COUNT.is_set()


def test_reading_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "3")
    before = dict(os.environ)
    for setting in settings.table():
        setting.get()
    settings.in_force()
    settings.unknown()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DIPU_DEVICE_COUNT", "two", "'two' is not allowed: it is not a whole number"),
        ("DIPU_DEVICE_COUNT", "0", "less than 1; allowed: a whole number from 1 to 16"),
        ("DIPU_DEVICE_COUNT", "17", "more than 16; allowed: a whole number from 1 to 16"),
        ("DIPU_DEVICE_MEMORY", "lots", "'lots' is not allowed: it is not a size"),
        ("DIPU_DEVICE_MEMORY", "0", "less than 1; allowed: bytes, such as 16GiB, 512M"),
        ("DIPU_BUILD_JOBS", "-1", "less than 0; allowed: a whole number, at least 0"),
    ],
)
def test_a_bad_value_names_the_variable_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    setting = next(s for s in settings.table() if s.name == name)
    with pytest.raises(SettingError, match=f"^{name}=") as caught:
        setting.get()
    assert message in str(caught.value)
    assert f"Hint: unset {name} for the default" in str(caught.value)


def test_the_build_directory_follows_the_cache_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings.DIPU_BUILD_DIR.get() == tmp_path / ".cache" / "torch_dipu"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert settings.DIPU_BUILD_DIR.get() == tmp_path / "cache" / "torch_dipu"
    monkeypatch.setenv("DIPU_BUILD_DIR", "~/built")
    assert settings.DIPU_BUILD_DIR.get() == tmp_path / "built"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512M", 512 * 2**20),
        ("16GiB", 16 * 2**30),
        ("16 gib", 16 * 2**30),
        ("1.5G", 3 * 2**29),
        ("2TB", 2 * 2**40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert settings.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1GiBB", "0x10", "1 2", "nan", "½G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it is not a size"):
        settings.parse_size(text)


@given(st.integers(min_value=0, max_value=2**62))
def test_a_size_is_read_back_as_it_is_shown(count: int) -> None:
    assert settings.parse_size(settings.show_size(count)) == count


@given(st.integers(min_value=0, max_value=4096), st.sampled_from(settings.UNITS[1:]))
def test_the_spellings_of_a_unit_agree(count: int, unit: str) -> None:
    spellings = {f"{count}{unit}", f"{count}{unit}iB", f"{count} {unit.lower()}b"}
    assert len({settings.parse_size(text) for text in spellings}) == 1


@pytest.mark.parametrize(("text", "value"), [("1", True), ("ON", True), ("no", False)])
def test_boolean(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    setting = settings.boolean("DIPU_TRIED", not value, "Tried here.")
    monkeypatch.setenv("DIPU_TRIED", text)
    assert setting.get() is value


def test_boolean_refuses_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = settings.boolean("DIPU_TRIED", True, "Tried here.")
    monkeypatch.setenv("DIPU_TRIED", "maybe")
    with pytest.raises(SettingError, match="neither yes nor no; allowed: 1, true, yes, on, 0,"):
        setting.get()


def test_words(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = settings.words("DIPU_TRIED", ["x"], "Tried here.")
    assert setting.get() == ("x",)
    monkeypatch.setenv("DIPU_TRIED", "aten.add, ,aten.mul ")
    assert setting.get() == ("aten.add", "aten.mul")


def test_choice_says_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = settings.choice("DIPU_TRIED", "fast", "Tried here.", ["fast", "careful"])
    monkeypatch.setenv("DIPU_TRIED", "Careful")
    assert setting.get() == "careful"
    monkeypatch.setenv("DIPU_TRIED", "carefull")
    with pytest.raises(SettingError, match="did you mean 'careful'\\?; allowed: fast, careful"):
        setting.get()


def test_every_setting_is_documented_and_named_once() -> None:
    rows = settings.table()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names) >= 7
    assert all(row.doc.endswith(".") and row.allowed for row in rows)


def test_in_force_shows_where_a_value_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE_MEMORY", "512M")
    rows = {row.name: row for row in settings.in_force()}
    memory, count = rows["DIPU_DEVICE_MEMORY"], rows["DIPU_DEVICE_COUNT"]
    assert (memory.value, memory.source, memory.default) == ("512MiB", "environment", "16GiB")
    assert (count.value, count.source, count.problem) == ("2", "default", "")


def test_in_force_reports_a_bad_value_instead_of_raising(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "many")
    row = next(row for row in settings.in_force() if row.name == "DIPU_DEVICE_COUNT")
    assert row.value == "many"
    assert row.problem.startswith("DIPU_DEVICE_COUNT='many' is not allowed")


def test_unknown_variables_are_found_with_what_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPLINK_VENDER", "cpu")
    monkeypatch.setenv("DIPU_ZZZ", "1")
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "1")
    assert settings.unknown() == [
        settings.Unknown("DEEPLINK_VENDER", "DEEPLINK_VENDOR"),
        settings.Unknown("DIPU_ZZZ", ""),
    ]


def test_variables_of_older_documents_have_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE", "camb")
    monkeypatch.setenv("DICP_TOPS_DIPU", "True")
    tops, device = settings.unknown()
    assert (tops.name, tops.meant, device.name, device.meant) == (
        "DICP_TOPS_DIPU", "", "DIPU_DEVICE", "",
    )  # fmt: skip
    assert device.hint.startswith("set DEEPLINK_VENDOR to the vendor's name")
    assert tops.hint.startswith("remove it")


def test_a_path_that_is_not_set_is_shown_as_empty() -> None:
    shown = {row.name: row.value for row in settings.in_force() if row.source == "default"}
    assert shown["OP_TIME_MEASURE_TRACE"] == ""
    assert "OP_BISECT_PLAN" not in shown  # internal
    assert "." not in shown.values()


def test_hide_cuda_writes_the_variable_of_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    before = dict(os.environ)
    settings.hide_cuda()
    assert dict(os.environ) == before | {"CUDA_VISIBLE_DEVICES": ""}


def test_asking_for_a_vendor_holds_inside_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ("cpu", ""):
        monkeypatch.setenv("DEEPLINK_VENDOR", before)
        with settings.selecting_vendor("acme"):
            assert settings.DEEPLINK_VENDOR.get() == "acme"
        assert settings.DEEPLINK_VENDOR.get() == before


def test_a_watched_variable_reports_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    settings.watch(
        settings.DIPU_DUMP_OP_ARGS, lambda: seen.append(settings.DIPU_DUMP_OP_ARGS.get())
    )
    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "2")
    os.environ.update(DIPU_DUMP_OP_ARGS="3", DIPU_QUIRKS="")
    del os.environ["DIPU_DUMP_OP_ARGS"]
    assert seen == [2, 3, 0]
    assert os.environ.get("DIPU_DUMP_OP_ARGS") is None
