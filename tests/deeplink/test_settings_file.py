"""deeplink.toml: where it is found, what goes before it, and what it refuses."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeplink import settings
from deeplink.errors import SettingError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, no variable of the project, and no file read so far."""
    for name in list(os.environ):
        if name.startswith(settings.PREFIXES) or name == "CXX":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    settings.reload_file()
    yield tmp_path
    settings.reload_file()


def test_a_file_of_the_working_directory_is_read(folder: Path) -> None:
    (folder / "deeplink.toml").write_text(
        'vendor = "cpu"\n[reference]\ndevices = 4\nmemory = "1GiB"\n[ditorch]\nstrict = true\n'
        '[autocompare]\nops = ["torch.add", "torch.mul"]\ntolerance.float16 = [1e-3, 1e-4]\n'
        '[dtype_cast]\ncasts = {float16 = "float32"}\n'
    )
    assert settings.DEEPLINK_VENDOR.get() == "cpu"
    assert settings.DIPU_DEVICE_COUNT.get() == 4
    assert settings.DIPU_DEVICE_MEMORY.get() == 2**30
    assert settings.DITORCH_STRICT.get() is True
    assert settings.OP_AUTOCOMPARE_LIST.get() == ("torch.add", "torch.mul")
    assert settings.op_tolerance("linear", "float16") == (1e-3, 1e-4)
    assert settings.op_tolerance("linear", "float32") is None
    assert settings.OP_DTYPE_CAST_DICT.get() == {"float16": "float32"}


def test_the_table_of_pyproject_is_read_where_there_is_no_file_of_our_own(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.deeplink.reference]\ndevices = 3\n")
    assert settings.DIPU_DEVICE_COUNT.get() == 3
    (folder / "deeplink.toml").write_text("[reference]\ndevices = 5\n")
    settings.reload_file()
    assert settings.DIPU_DEVICE_COUNT.get() == 5


@pytest.mark.parametrize("variable", ["DEEPLINK_CONFIG", "OP_TOOLS_CONFIG"])
def test_a_variable_names_another_file(
    variable: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deeplink.toml").write_text("[reference]\ndevices = 5\n")
    (folder / "other.toml").write_text("[reference]\ndevices = 6\n")
    assert settings.DIPU_DEVICE_COUNT.get() == 5
    monkeypatch.setenv(variable, "other.toml")
    assert settings.DIPU_DEVICE_COUNT.get() == 6


def test_the_environment_goes_before_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deeplink.toml").write_text(
        "[reference]\ndevices = 5\n[capture]\nops = ['torch.add']\n"
    )
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "7")
    monkeypatch.setenv("OP_CAPTURE_LIST", "")
    assert settings.DIPU_DEVICE_COUNT.get() == 7
    assert settings.OP_CAPTURE_LIST.get() == ()


def test_a_variable_set_to_nothing_selects_the_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deeplink.toml").write_text("[reference]\ndevices = 5\n")
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "")
    assert settings.DIPU_DEVICE_COUNT.get() == 2
    assert not settings.DIPU_DEVICE_COUNT.is_set()


def test_the_file_stays_in_force_when_the_program_changes_its_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deeplink.toml").write_text("[reference]\ndevices = 5\n")
    assert settings.DIPU_DEVICE_COUNT.get() == 5
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert settings.DIPU_DEVICE_COUNT.get() == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[refrence]\n", "no section [refrence].\nHint: did you mean 'reference'?"),
        ("vender = 'cpu'\n", "no key 'vender'.\nHint: did you mean 'vendor'?"),
        ("capture.formt = 1\n", "no key 'capture.formt'.\nHint: did you mean 'capture.format'?"),
        ("[autocompare.tolerance]\nfloat8 = 1\n", "no key 'autocompare.tolerance.float8'."),
        ("[capture\n", "is not TOML: "),
    ],
)  # fmt: skip
def test_what_the_file_does_not_know_is_refused_with_the_nearest_name(
    text: str, message: str, folder: Path
) -> None:
    (folder / "deeplink.toml").write_text(text)
    with pytest.raises(SettingError) as caught:
        settings.DEEPLINK_VENDOR.get()
    assert str(folder / "deeplink.toml") in str(caught.value)
    assert message in str(caught.value)


def test_a_bad_value_names_the_file_and_the_key(folder: Path) -> None:
    (folder / "deeplink.toml").write_text("[reference]\ndevices = 'two'\n")
    with pytest.raises(SettingError) as caught:
        settings.DIPU_DEVICE_COUNT.get()
    where = f"{folder / 'deeplink.toml'}: reference.devices"
    assert str(caught.value) == (
        f"{where}='two' is not allowed: it is not a whole number; "
        f"allowed: a whole number from 1 to 16.\nHint: remove {where} for the default, '2'."
    )


def test_a_file_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPLINK_CONFIG", "none.toml")
    with pytest.raises(SettingError, match=r"none\.toml cannot be read: No such file"):
        settings.DEEPLINK_VENDOR.get()


def test_in_force_names_the_file(folder: Path) -> None:
    (folder / "deeplink.toml").write_text("[reference]\ndevices = 5\n")
    rows = {row.name: row for row in settings.in_force()}
    count = rows["DIPU_DEVICE_COUNT"]
    assert (count.value, count.source) == ("5", "deeplink.toml")
    assert rows["DEEPLINK_VENDOR"].source == "default"


def test_in_force_reports_a_file_that_cannot_be_read_once(folder: Path) -> None:
    (folder / "deeplink.toml").write_text("[refrence]\n")
    problems = {row.name: row.problem for row in settings.in_force() if row.problem}
    assert list(problems) == ["DEEPLINK_CONFIG"]
    assert "did you mean 'reference'" in problems["DEEPLINK_CONFIG"]


def test_every_setting_has_a_task_or_is_internal() -> None:
    """Each key of the file belongs to one setting."""
    grouped = [name for group in settings.GROUPS for name in group.keys]
    named = [*grouped, *settings.INTERNAL]
    assert sorted(named) == sorted(setting.name for setting in settings.table())
    assert len(set(settings.KEYS.values())) == len(settings.KEYS)
    assert set(settings.COMMON) | set(settings.PUBLISHED) <= set(grouped)


def test_a_process_that_is_to_have_defaults_has_them_in_spite_of_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deeplink.toml").write_text("[tools]\nsteps = '3'\n")
    for name, value in settings.environment({}, ["OP_TOOLS_STEPS"]).items():
        monkeypatch.setenv(name, value)
    assert settings.OP_TOOLS_STEPS.get() == ""
