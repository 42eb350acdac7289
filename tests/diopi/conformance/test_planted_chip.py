"""A chip in C with one fault per kernel: the quick tier finds each and names the C function."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from diopi import cabi
from diopi.conformance.cases.case import Result
from diopi.conformance.results import results
from tests.diopi.compiled import COMPILER

ROOT = Path(__file__).parents[3]
DROPLET = ROOT / "examples" / "droplet"
HEADERS = (cabi.include(), ROOT / "src" / "torch_dipu" / "csrc" / "include", DROPLET / "src")
PLANTED = "Exp Ceil Neg Abs Cos Sin Log".split()
OPS = "exp ceil neg abs sub sin cos log".split()
# op, the check that fails, and a part of the message
FAULTS = [
    ("exp", "guard", "diopiExp wrote 4 bytes past the end of its result"),
    ("ceil", "values", "diopiCeil is wrong"),
    ("ceil", "out_transposed", "diopiCeil is wrong"),
    ("neg", "crashed", "in diopiNeg: the process died with SIGSEGV"),
    ("abs", "leak", "each call keeps about 4096 bytes of the chip's memory"),
    ("sub", "crashed", "in diopiNeg: the process died with SIGSEGV"),
    ("sin", "hung", "in diopiCos: no result within"),
    ("cos", "backward", "diopiSin is wrong"),
    ("log", "inplace", "diopiLog"),
]


def chip(folder: Path) -> Path:
    """A folder for PYTHONPATH with droplet under the name planted, its entry point and library."""
    package = folder / "planted"
    package.mkdir(parents=True)
    for file in (DROPLET / "deeplink_droplet").glob("*.*"):
        if file.suffix in (".py", ".yaml", ".toml"):
            text = file.read_text().replace("deeplink_droplet", "planted")
            (package / file.name).write_text(text.replace('"droplet"', '"planted"'))
    entry = folder / "planted-1.0.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (entry / "entry_points.txt").write_text("[deeplink.vendors]\nplanted = planted:vendor\n")
    units = sorted((DROPLET / "src").glob("*.c"))
    flags = ["-std=c11", "-O1", "-fPIC", "-pthread", *(f"-I{one}" for one in HEADERS)]
    correct = [f"-DdiopiX{name}=correct_diopi{name}".replace("diopiX", "diopi") for name in PLANTED]
    elementwise = folder / "elementwise.o"
    source = DROPLET / "src" / "elementwise.c"
    _run(COMPILER, *flags, *correct, "-c", str(source), "-o", str(elementwise))
    rest = [str(unit) for unit in units if unit != source]
    planted = str(Path(__file__).with_name("planted.c"))
    target = str(package / "libdroplet.so")
    _run(COMPILER, *flags, "-shared", *rest, planted, str(elementwise), "-lm", "-o", target)
    return folder


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    if not COMPILER:
        pytest.skip("no C compiler")
    site = chip(tmp_path_factory.mktemp("planted"))
    path = os.pathsep.join([str(site), str(ROOT / "src")])
    kept = {name: value for name, value in os.environ.items() if name != "DEEPLINK_VENDOR"}
    out = site / "results"
    line = [sys.executable, "-m", "diopi.conformance", "--vendor", "planted", "--tier", "quick"]
    options = ["--dtypes", "float32", "--limit", "5", "--jobs", "2", "--results", str(out)]
    done = subprocess.run(
        [*line, *options, "--ops", *OPS],
        env=kept | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return results.read(out / "results.jsonl")


@pytest.mark.slow  # it compiles a chip, and crashes and hangs cost new processes
@pytest.mark.parametrize(("op", "check", "said"), FAULTS)
def test_the_quick_tier_finds_it_and_names_the_function(
    op: str, check: str, said: str, found: list[Result]
) -> None:
    wrong = [f for r in found if r.op == op and r.bad for f in r.findings if f.check == check]
    assert any(said in finding.message for finding in wrong), [
        (r.case, r.message) for r in found if r.op == op and r.bad
    ]
