"""The real torch_npu from the package registry, with the stub of its driver, in folders of a test.

It is never installed next to torch: its entry point would stop every `import torch` there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.contracts.npu_stub import library

ROOT = Path(__file__).parents[3]
# a library of which torch_npu's own migration tool wraps a function; here the function raises
WRAPPED = {
    "peft/__init__.py": "",
    "peft/utils/__init__.py": "",
    "peft/utils/other.py": "def infer_device():\n    raise LookupError('no device')\n",
    "peft-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: peft\nVersion: 1.0\n",
}


class CannotInstall(Exception):
    """What is missing on this machine."""


@dataclass(frozen=True)
class Installation:
    """Where the package lies, and the driver's libraries."""

    site: Path
    driver: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`python arguments…` in a process that finds both."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**self._environment(os.environ), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        ours = {
            "DEEPLINK_VENDOR": "ascend",
            "LD_LIBRARY_PATH": os.pathsep.join(
                [str(self.driver), given.get("LD_LIBRARY_PATH", "")]
            ),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(self.driver), str(self.site), str(ROOT)]),
        }
        theirs = (
            "ASCEND",
            "DITORCH",
            "TORCH_",
        )  # settings of the machine for its own chips
        return {k: v for k, v in given.items() if not k.startswith(theirs)} | ours


def install(requirement: str, cache: Path, folder: Path) -> Installation:
    """Fetches the wheel once into `cache`, builds the driver in `folder`; or CannotInstall."""
    for tool in ("gcc", "nm"):
        if shutil.which(tool) is None:
            raise CannotInstall(f"the stub of the driver needs {tool}, and it is not here")
    site = unpacked(requirement, cache)
    library.build(site / "torch_npu", folder)
    for name, text in WRAPPED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return Installation(site, folder)


def unpacked(requirement: str, cache: Path) -> Path:
    """A folder of `cache` with the package, fetched once and never installed; or CannotInstall."""
    site = cache / f"{requirement}-{sys.implementation.cache_tag}"
    if not site.exists():
        _fetch(requirement, site)
    return site


def _fetch(requirement: str, site: Path) -> None:
    scratch = site.with_name(f"{site.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--target", str(scratch), requirement],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotInstall(f"pip does not get {requirement}: {done.stderr.strip()[-200:]}")
    scratch.rename(site)  # a later run never sees half of it
