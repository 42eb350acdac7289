"""droplet, built by its Makefile and installed by pip, in a folder of the tests."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.diopi.compiled import COMPILER

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLE = ROOT / "examples" / "droplet"
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed droplet, extended by two faulty kernels."""
    if not COMPILER or not shutil.which("make"):
        pytest.skip("no C compiler or no make")
    place = tmp_path_factory.mktemp("droplet")
    source = shutil.copytree(EXAMPLE, place / "droplet", ignore=shutil.ignore_patterns("*.so"))
    shutil.copy(HERE / "faults.c", source / "src")
    _run("make", f"PYTHON={sys.executable}", f"CC={COMPILER}", "CFLAGS=-O2 -Werror", cwd=source)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--target")
    _run(*pip, *options, str(place / "site"), str(source))
    return place / "site"


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def python(site: Path) -> Python:
    """Runs Python on droplet, with no variable of ours but those given."""

    def run(
        *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        ours = ("DEEPLINK_", "DIPU_")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        kept["DIPU_BUILD_DIR"] = os.environ.get("DIPU_BUILD_DIR", "")
        kept["PYTHONPATH"] = os.pathsep.join([str(site), str(ROOT / "src"), str(ROOT)])
        kept["DEEPLINK_VENDOR"] = "droplet"
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            env={k: v for k, v in (kept | environment).items() if v},
            timeout=900,  # some train: the machine may be busy
        )

    return run
