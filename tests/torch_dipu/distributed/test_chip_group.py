"""The process group over a chip's own communicator: droplet's, in C, through shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.torch_dipu import ranks_reductions
from tests.torch_dipu.distributed.test_distributed import EXPECTED, run_ranks

EXAMPLE = Path(__file__).parents[3] / "examples" / "droplet"
# The chip reduces no float16 and no complex numbers, computes float64 as float32, and its
# communicator cannot receive from any rank, nor send much before the other receives.
LACKS = {f"reductions {name}" for name in ("float64", "float16", "complex64")}
LACKS |= {f"table {name}" for name in ("float16", "complex64", "float8_e4m3fn")}
LACKS |= {"average of large halves", "recv from any", "isend before irecv", "carried by"}
JOBS = [name for name in EXPECTED if name not in LACKS]
TRIED = [
    "carried by",
    "reductions float16",
    "recv from any",
]  # the last leaves a message that no rank receives


@pytest.fixture(scope="module")
def droplet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, built, as pip would install it."""
    if not shutil.which("cc") or not shutil.which("make"):
        pytest.skip("no C compiler or no make")
    copy = tmp_path_factory.mktemp("chip") / "droplet"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    command = ["make", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    about = copy / "deeplink_droplet-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: deeplink-droplet\nVersion: 0\n")
    points = "[deeplink.vendors]\ndroplet = deeplink_droplet:vendor\n"
    (about / "entry_points.txt").write_text(points)
    return copy


def run(droplet: Path, names: list[str], folder: Path, world: int) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(droplet)  # the ranks take over the path
        patch.setenv("DEEPLINK_VENDOR", "droplet")
        patch.setenv("DIPU_FLIGHT_RECORD_DIR", str(folder))
        return run_ranks("dicl", names, folder, world)


@pytest.fixture(scope="module")
def found(droplet: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(droplet, [*JOBS, *TRIED], tmp_path_factory.mktemp("ranks"), 2)


def test_two_ranks_get_what_they_should(found: list[dict[str, Any]]) -> None:
    results = {name: [rank[name] for rank in found] for name in JOBS}
    assert {name: got for name, got in results.items() if got != EXPECTED[name]} == {}


def test_what_the_chip_lacks_is_reported_by_its_own_words(found: list[dict[str, Any]]) -> None:
    text = "comm_all_reduce failed with code 1: no reduction of the type number 8"
    assert text in found[0]["reductions float16"]
    assert "the chip's table has no comm_probe" in found[1]["recv from any"]


def test_the_groups_bytes_go_through_the_chips_own_communicator(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["carried by"] for rank in found] == [("dicl", "dicl", True)] * 2


@pytest.mark.slow
def test_four_ranks_reduce(droplet: Path, tmp_path: Path) -> None:
    names = [f"reductions {name}" for name in ranks_reductions.DTYPES if name.startswith("int")]
    names += ["reductions float32", "reductions bfloat16", "reduce to each", "sub-group"]
    assert run(droplet, names, tmp_path, 4) == [{name: [] for name in names}] * 4
