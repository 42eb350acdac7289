"""The command `deeplink`: what it shows, and its exit code."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import deeplink
from deeplink import cli, native, settings
from deeplink.commands import demo, device, host
from deeplink.inspection import doctor
from deeplink.vendor import Choice, Found, Vendor

runner = CliRunner()
GOOD = Vendor("good", "cpu", lambda: True, note="good chip (made up)")
ROWS = [
    Found("bad", None, "broken", "ImportError: libbad.so", "bad-dist"),
    Found("away", Vendor("away", "npu", lambda: False), "unavailable", "no card", "away-dist"),
    Found("good", GOOD, "available", "", "good-dist"),
]


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One good vendor and one that is away."""
    monkeypatch.setattr(doctor, "discover", lambda: ROWS[1:])
    monkeypatch.setattr(doctor, "choose", lambda name: Choice(GOOD, f"asked {name}"))


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    result = runner.invoke(cli.app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_version() -> None:
    assert run("--version") == (0, f"deeplink {deeplink.__version__}\n")


def test_the_version_is_that_of_the_project_file() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'\nversion = "{deeplink.__version__}"\n' in text


@pytest.mark.usefixtures("healthy")
def test_doctor_shows_all_details_on_request() -> None:
    code, output = run("doctor", "--all", "--no-self-test", "--vendor", "good")
    assert code == 0
    assert re.search(r"away +unavailable +away-dist +no card", output)
    assert re.search(r"good +available +good-dist +good chip \(made up\)", output)
    assert "Chosen: good, device 'cpu', good chip (made up)\nbecause: asked good" in output
    assert re.search(r"DIPU_DEVICE_COUNT +(default|environment) +\d", output)
    assert re.search(r"torch \d+\.\d+", output)
    assert output.startswith("No problem; device not tested: good chip (made up), device 'cpu'.\n")


@pytest.mark.usefixtures("healthy")
def test_doctor_output_is_plain_and_narrow_when_it_is_no_terminal() -> None:
    _, output = run("doctor", "--no-self-test")
    assert "\x1b" not in output
    assert max(len(line) for line in output.splitlines()) <= 100


@pytest.mark.usefixtures("healthy")
def test_doctor_answers_in_twenty_lines_with_the_verdict_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "3")
    code, output = run("doctor", "--quiet")
    lines = output.splitlines()
    assert code == 0 and len(lines) <= 20
    assert lines[0] == "All checks passed: good chip (made up), device 'cpu'."
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in lines[1:-1])
    assert rows["vendor"] == "good: asked None"
    assert rows["self-test"].startswith("copy ok, autograd ok, rng ok, streams skipped")
    assert (rows["available"], rows["unavailable"]) == ("good", "away")
    assert "DIPU_DEVICE_COUNT=3" in rows["settings"]
    assert lines[-1] == "Hint: `deeplink doctor --all` shows all details."


@pytest.mark.usefixtures("healthy")
def test_doctor_runs_the_self_test() -> None:
    code, output = run("doctor", "--all")
    assert code == 0
    assert "Self-test" in output
    for line in (r"copy +ok +\d", r"autograd +ok", r"streams +skipped", r"total +\d+\.\d\d s"):
        assert re.search(line, output), line


def test_a_broken_vendor_fails_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "discover", lambda: ROWS)
    monkeypatch.setattr(doctor, "choose", lambda name: Choice(GOOD, "because"))
    code, output = run("doctor", "--no-self-test")
    assert code == 1
    assert "FAILED  vendor bad is broken: ImportError: libbad.so" in output


def test_an_unknown_vendor_fails_the_doctor_with_the_hint() -> None:
    code, output = run("doctor", "--no-self-test", "--vendor", "no-such-vendor")
    assert code == 1
    assert "no vendor 'no-such-vendor'; installed: " in output
    assert "\nHint: " in output


@pytest.mark.usefixtures("healthy")
def test_doctor_json_is_complete() -> None:
    code, output = run("doctor", "--json")
    found = json.loads(output[output.index("{") :])
    assert code == 0 and found["ok"] is True
    assert found["chosen"]["label"] == "good chip (made up)"
    assert [row["name"] for row in found["vendors"]] == ["away", "good"]
    assert {check["name"]: check["status"] for check in found["self_test"]}["copy"] == "ok"
    assert {"name", "value", "source"} <= set(found["settings"][0])


def test_build_state_is_shown_and_its_failure_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "built_well.py").write_text("def state():\n    return {'library': 'cached'}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module, shown in (
        ("built_well", r"library +cached"),
        ("not_built", r"error +not_built: ModuleNotFoundError"),
    ):
        vendor = Vendor("good", "cpu", lambda: True, build=module)
        monkeypatch.setattr(doctor, "discover", lambda: [])
        monkeypatch.setattr(doctor, "choose", lambda name, v=vendor: Choice(v, "because"))
        assert re.search(shown, run("doctor", "--all", "--no-self-test")[1])


def test_settings_shows_values_and_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE_MEMORY", "512M")
    code, output = run("settings")
    assert code == 0
    assert re.search(r"DIPU_DEVICE_MEMORY +512MiB +environment +Memory", output)
    code, output = run("settings", "--all")
    assert "DIPU_DEVICE_MEMORY = 512MiB  (environment)" in output
    assert "default 16GiB; allowed: bytes, such as" in output


def test_settings_shows_what_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.table():
        monkeypatch.delenv(setting.name, raising=False)
    assert run("settings", "--changed") == (0, "all settings have their defaults\n")
    monkeypatch.setenv("DIPU_DEVICE_MEMORY", "512M")
    code, output = run("settings", "--changed", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(output)["settings"]] == ["DIPU_DEVICE_MEMORY"]


def test_settings_explains_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIPU_DEVICE_COUNT", raising=False)
    code, output = run("settings", "--explain", "dipu_device_count")
    assert code == 0
    assert output.splitlines() == [
        "DIPU_DEVICE_COUNT = 2  (default)",
        "    How many reference devices there are.",
        "    default 2; allowed: a whole number from 1 to 16",
    ]


def test_settings_refuses_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.status(["settings", "--explain", "DIPU_QUIRK"]) == 2
    said = capsys.readouterr().err
    assert said == "no setting is named 'DIPU_QUIRK'.\nHint: did you mean DIPU_QUIRKS?\n"


def test_settings_reports_bad_and_unknown_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE_COUNT", "99")
    monkeypatch.setenv("DIPU_QUIRK", "nan")
    code, output = run("settings")
    assert code == 1
    assert "DIPU_DEVICE_COUNT='99' is not allowed: it is more than 16" in output
    assert "DIPU_QUIRK is set, but nothing reads it; did you mean DIPU_QUIRKS?" in output


def test_settings_answers_a_variable_of_older_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_DEVICE", "camb")
    _, output = run("settings")
    assert "DIPU_DEVICE is set, but nothing reads it.\nHint: set DEEPLINK_VENDOR to" in output


def test_main_shows_an_error_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> None:
        raise deeplink.SettingError("it went wrong.", "do better.")

    monkeypatch.setattr(device, "choose", lambda name: fail(name))
    monkeypatch.setattr("sys.argv", ["deeplink", "doctor", "--ops"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == "it went wrong.\nHint: do better.\n"


PROGRAM = str(Path(__file__).parents[2] / "examples" / "train_small.py")
STARTING = [
    ["run", "--vendor", "cpu", PROGRAM],
    ["one-iter", "record", "--to", "rec", "--vendor", "cpu", PROGRAM],
    ["one-iter", "record", "--vendor=cpu", "-m", "my.training"],
]


@pytest.mark.parametrize("line", STARTING, ids=lambda line: " ".join(line[:2]))
def test_vendor_is_chosen_before_the_program_starts(
    line: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of the program activates a device on import: it must inherit the choice."""
    seen: list[str] = []

    def start(command: list[str], **how: object) -> int:
        seen.append(settings.DEEPLINK_VENDOR.get())
        return 0

    monkeypatch.delenv("DEEPLINK_VENDOR", raising=False)
    monkeypatch.setattr(host.children, "run", start)
    assert run(*line)[0] == 0
    assert (seen, settings.DEEPLINK_VENDOR.get()) == (["cpu"], "")


def test_an_unknown_vendor_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.children, "run", lambda line: pytest.fail("the program was started"))
    code, output = run("run", "--vendor", "no-such", PROGRAM)
    assert code == 2
    assert re.search(r"no vendor 'no-such'; installed: .*\nHint: ", output)


def test_demo_runs_the_examples_in_order_until_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "examples", lambda: tmp_path)
    for name, status in (("first.py", 0), ("second.py", 3), ("third.py", 0)):
        (tmp_path / name).write_text(f"print({name!r})\nraise SystemExit({status})\n")
    names = ("first.py", "second.py", "third.py")
    monkeypatch.setattr(demo, "EXAMPLES", tuple(((), name) for name in names))
    assert cli.status(["demo"]) == 3
    assert capfd.readouterr().out.split() == ["first.py", "second.py"]


def test_demo_is_what_the_examples_folder_has() -> None:
    assert all((native.examples() / name).is_file() for _, name in demo.EXAMPLES)
