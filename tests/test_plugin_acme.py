"""An outside vendor, installed by pip and used from another process, as a user would."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SRC = HERE.parent / "src"


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the plug-in into; built once, from a copy, offline."""
    place = tmp_path_factory.mktemp("acme")
    source = shutil.copytree(HERE / "plugin_acme", place / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--no-index", "--target"]
    done = subprocess.run(
        [*command, str(place / "site"), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return place / "site"


@pytest.fixture
def site(wheelhouse: Path, tmp_path: Path) -> Path:
    """A copy of the installed plug-in to change at will, its driver loaded."""
    copy = shutil.copytree(wheelhouse, tmp_path / "site")
    (copy / "deeplink_acme" / "driver").touch()
    return copy


def python(site: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs python where the plug-in is installed, with no variable of ours but those given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DEEPLINK_", "DIPU_"))}
    kept["PYTHONPATH"] = os.pathsep.join([str(site), str(SRC)])
    kept["PYTHONWARNINGS"] = "error"
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=kept | environment,
        timeout=120,
    )


def doctor(site: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `deeplink doctor --json`."""
    done = python(site, "-m", "deeplink", "doctor", "--json", *arguments, **environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def acme(report: dict[str, Any]) -> dict[str, str]:
    """The row of the plug-in."""
    (row,) = [row for row in report["vendors"] if row["name"] == "acme"]
    return dict(row)


def test_it_is_discovered_beside_the_vendors_of_the_tree(site: Path) -> None:
    _, report = doctor(site, "--no-self-test", "--vendor", "acme")
    assert acme(report)["status"] == "available"
    assert acme(report)["distribution"] == "deeplink-acme"
    assert {"acme", "cpu", "cuda", "reference"} <= {row["name"] for row in report["vendors"]}


def test_it_is_chosen_by_the_environment(site: Path) -> None:
    script = "import deeplink; c = deeplink.choose(); print(c.vendor.name, c.vendor.device, c.why)"
    done = python(site, "-c", script, DEEPLINK_VENDOR="acme")
    assert done.stdout == "acme cpu DEEPLINK_VENDOR=acme\n", done.stderr


def test_an_available_accelerator_is_chosen_by_itself(site: Path) -> None:
    script = "import deeplink; c = deeplink.choose(); print(c.vendor.name, '|', c.why)"
    done = python(site, "-c", script)
    assert done.stdout == "acme | the first available accelerator\n", done.stderr


def test_the_doctor_shows_it_and_tests_it(site: Path) -> None:
    done = python(site, "-m", "deeplink", "doctor", DEEPLINK_VENDOR="acme")
    assert "Chosen: acme, device 'cpu', ACME chip (made up)" in done.stdout
    assert "because: DEEPLINK_VENDOR=acme" in done.stdout
    assert "Self-test: ACME chip (made up)" in done.stdout
    assert "all_reduce of 2 processes over gloo" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_reported_broken_with_its_own_error(site: Path) -> None:
    (site / "deeplink_acme" / "__init__.py").write_text("raise OSError('libacme.so.1: not found')")
    code, report = doctor(site, "--no-self-test", "--vendor", "cpu")
    assert code == 1  # it is installed and does not work: the doctor does not call that well
    assert acme(report)["status"] == "broken"
    assert acme(report)["reason"] == "OSError: libacme.so.1: not found"
    assert report["chosen"]["name"] == "cpu"  # and it stood in nobody's way


def test_asking_for_a_broken_vendor_raises(site: Path) -> None:
    (site / "deeplink_acme" / "__init__.py").write_text("raise OSError('libacme.so.1: not found')")
    done = python(site, "-c", "import deeplink; deeplink.choose()", DEEPLINK_VENDOR="acme")
    assert done.returncode == 1
    assert (
        "VendorBrokenError: vendor 'acme' (of deeplink-acme) is broken: "
        "OSError: libacme.so.1: not found; available: "
    ) in done.stderr
    assert "Hint: repair or uninstall deeplink-acme" in done.stderr


def test_it_is_reported_unavailable_with_its_reason(site: Path) -> None:
    (site / "deeplink_acme" / "driver").unlink()
    _, report = doctor(site, "--no-self-test", "--vendor", "cpu")
    assert acme(report)["status"] == "unavailable"
    assert acme(report)["reason"] == "the ACME driver is not loaded; create driver"
    done = python(site, "-c", "import deeplink; deeplink.choose('acme')")
    assert "vendor 'acme' is not available: the ACME driver is not loaded" in done.stderr
