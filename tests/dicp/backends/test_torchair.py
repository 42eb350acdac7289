"""Comparison of ascendgraph with the converter of the real torch_npu, from its unpacked wheel."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.contracts.contract import RELEASE, for_this_torch, release
from tests.contracts.npu_stub.installation import CannotInstall, unpacked
from tests.dicp.torchair_program import CASES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CONTRACT = for_this_torch("ascend")
PROTOBUF = "protobuf==7.36.2"
BLOCKS = ("llama", "resnet", "bert", "mixtral")
# where there is nothing to compare: torchair has no conversion, or the simulation no such operator
LACKING = {
    "amax": "NotImplementedError: torch.ops.aten.amax.default ge_converter is not implemented",
    "bert": "SimulationError: the simulation has no operator Gelu",  # exact or not? not published
    "resnet": "SimulationError: the simulation has no operator MaxPoolWithArgmaxV1",
}

Said = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def wheel(pytestconfig: pytest.Config) -> Path:
    """The folder with torch_npu; kept in pytest's cache, never installed."""
    if release(CONTRACT.version) != RELEASE:
        pytest.skip(f"{CONTRACT.title} is for another torch than {torch.__version__}")
    assert pytestconfig.cache is not None
    try:
        return unpacked(CONTRACT.title.replace(" ", "=="), pytestconfig.cache.mkdir("torch_npu"))
    except CannotInstall as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def said(
    wheel: Path, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Said:
    """Return the results of each case, by dicp's graph and by torchair's."""
    assert pytestconfig.cache is not None
    try:
        protobuf = unpacked(PROTOBUF, pytestconfig.cache.mkdir("protobuf"))
    except CannotInstall as reason:
        pytest.skip(str(reason))
    file = tmp_path_factory.mktemp("torchair") / "said.json"
    folders = [wheel / "torch_npu/dynamo", protobuf, ROOT / "src", ROOT]
    done = subprocess.run(
        [sys.executable, "-m", "tests.dicp.torchair_program", str(file)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: Said = json.loads(file.read_text("utf-8"))
    return found


@pytest.mark.parametrize("name", [*CASES, *BLOCKS])
def test_both_graphs_are_right_on_the_simulation(name: str, said: Said) -> None:
    assert said[name]["ours"] == "right"
    assert said[name]["theirs"].startswith(LACKING.get(name, "right"))


@pytest.mark.parametrize("name", BLOCKS)
def test_our_bytes_are_those_of_the_vendors_protobuf_classes(name: str, said: Said) -> None:
    assert said[name]["protobuf"] == "same"


def test_the_prototypes_are_those_of_the_wheel(wheel: Path) -> None:
    spec = importlib.util.spec_from_file_location("mining", ROOT / "scripts/ascend_prototypes.py")
    assert spec is not None and spec.loader is not None
    mining = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mining)
    kept = mining.TABLE.read_text("utf-8")
    names = {line.split(",")[0] for line in kept.splitlines()[1:]}
    assert mining.written(mining.mine(wheel, names)) == kept, "run scripts/ascend_prototypes.py"
