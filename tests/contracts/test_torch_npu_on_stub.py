"""The real torch_npu over a stub of its driver: CUDA code runs there by ditorch, without a chip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.contracts.contract import (
    RELEASE,
    Contract,
    cuda_names,
    different,
    for_this_torch,
    listed,
    missing,
    release,
)
from tests.contracts.npu_stub import probes
from tests.contracts.npu_stub.installation import CannotInstall, Installation, install

pytestmark = pytest.mark.slow

CONTRACT = for_this_torch("ascend")
REQUIREMENT = CONTRACT.title.replace(" ", "==")
NUMBERED = dict(enumerate((probe.__name__ for probe in probes.DEFECTS), start=1))


@pytest.fixture(scope="module")
def npu(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The package and the driver; the wheel is kept in pytest's cache."""
    if release(CONTRACT.version) != RELEASE:
        pytest.skip(f"{CONTRACT.title} is for another torch than {torch.__version__}")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("torch_npu refuses a torch that was built for another accelerator")
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("torch_npu")
    try:
        return install(REQUIREMENT, cache, tmp_path_factory.mktemp("npu_stub"))
    except CannotInstall as reason:
        pytest.skip(str(reason))


def answers(npu: Installation, tool: str, folder: Path, **environment: str) -> dict[str, str]:
    """Return each probe's error; "": it passed."""
    file = folder / f"{tool}.json"
    done = npu.run("-m", "tests.contracts.npu_stub.probes", tool, str(file), **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(file.read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def said(npu: Installation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return answers(npu, "ditorch", tmp_path_factory.mktemp("said"))


@pytest.mark.parametrize("number", NUMBERED, ids=lambda number: f"{number}-{NUMBERED[number]}")
def test_a_defect_of_the_vendors_own_tool_is_none_here(number: int, said: dict[str, str]) -> None:
    assert said[NUMBERED[number]] == ""


@pytest.mark.parametrize("name", [probe.__name__ for probe in probes.OTHERS])
def test_what_programs_do_works(name: str, said: dict[str, str]) -> None:
    assert said[name] == ""


def test_the_vendors_own_tool_has_all_sixteen_defects(npu: Installation, tmp_path: Path) -> None:
    found = answers(npu, "transfer_to_npu", tmp_path)
    assert [number for number, name in NUMBERED.items() if found[name]] == list(range(1, 17))


def test_without_the_native_hook_two_of_them_remain(npu: Installation, tmp_path: Path) -> None:
    found = answers(npu, "ditorch", tmp_path, DITORCH_NATIVE_HOOK="0")
    assert [name for name, error in found.items() if error] == ["aten_zeros", "device_says_cuda"]


def output_of(npu: Installation, source: str, **environment: str) -> tuple[str, str]:
    """Return a program's output and standard error; it must exit with 0."""
    done = npu.run("-c", source, **environment)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if not line.startswith("Warning: ASCEND")]
    return "\n".join(lines), done.stderr


def test_one_line_names_the_device_that_represents_cuda(npu: Installation) -> None:
    _, errors = output_of(npu, "import torch, ditorch")
    lines = [line for line in errors.splitlines() if line.startswith("ditorch")]
    assert len(lines) == 1
    assert lines[0].startswith(f"ditorch: cuda -> npu (ascend), torch {torch.__version__}, python ")
    assert "without the native hook" not in lines[0]


def test_not_a_line_in_the_program(npu: Installation) -> None:
    source = "import torch; print(torch.empty(1, device='cuda:1').device, 'ditorch' in dir())"
    assert output_of(npu, source, DITORCH="1")[0] == "cuda:1 False"


@pytest.mark.parametrize(
    ("source", "environment"),
    [
        ("import torch_npu.contrib.transfer_to_npu, ditorch", {}),
        ("import torch, ditorch", {"TORCH_TRANSFER_TO_NPU": "1"}),
    ],
    ids=["imported", "by its variable"],
)
def test_the_vendors_own_tool_is_refused(
    source: str, environment: dict[str, str], npu: Installation
) -> None:
    done = npu.run("-c", source, **environment)
    assert done.returncode == 1
    tool = "torch_npu.contrib.transfer_to_npu"
    assert f"ditorch and {tool} both redirect CUDA; {tool} is loaded already." in done.stderr
    assert "Hint: use one of the two" in done.stderr


def test_a_checkpoint_opens_where_there_is_no_npu(npu: Installation, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    output_of(
        npu, f"import torch, ditorch; torch.save({{'w': torch.arange(3.0).cuda()}}, '{path}')"
    )
    assert torch.load(path, map_location="cpu")["w"].tolist() == [0.0, 1.0, 2.0]


UNDO = """
import torch, torch_npu

def state():
    names = {name: id(value) for name, value in vars(torch.cuda).items() if name[0] != "_"}
    codes = {name: id(getattr(torch.cuda, name).__code__) for name in names
             if hasattr(getattr(torch.cuda, name), "__code__")}
    return names, codes, id(torch.Tensor.cuda), id(torch.Tensor.type), id(torch.Tensor.to)

before = state()
import ditorch
assert state() != before and torch.cuda.is_available()
ditorch.undo()
assert state() == before
print(torch.cuda.is_available(), torch.device("cuda"), torch.zeros(1).npu().device)
"""


def test_undo_leaves_torch_and_the_package_as_they_were(npu: Installation) -> None:
    assert output_of(npu, UNDO)[0] == "False cuda npu:0"


FIND = """
from deeplink.vendor import find

row = find("ascend")
print(f"{row.status} {row.reason}".strip())
"""


def test_the_package_is_found_where_its_driver_is(npu: Installation) -> None:
    assert output_of(npu, FIND)[0] == "available"


def test_the_package_is_broken_without_its_driver_and_says_so(npu: Installation) -> None:
    hidden = {"LD_LIBRARY_PATH": "", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    text, _ = output_of(npu, FIND, **hidden)
    assert text.startswith("broken ImportError: libhccl.so: cannot open shared object file")


NAMES = """
import json, torch
from tests.contracts.contract import of_module

print(json.dumps(dict(of_module("ascend", torch.npu, "").names)))
"""


def test_the_listed_gaps_are_those_of_the_real_module(npu: Installation) -> None:
    names = json.loads(output_of(npu, NAMES)[0])
    real = Contract("ascend", CONTRACT.title, CONTRACT.version, names)
    assert missing(real, cuda_names()) == listed("ascend", "name")
    assert different(real, cuda_names()) == listed("ascend", "arguments")


BEHAVIOUR = """
import torch

for name, arguments in {
    "get_device_name": {"device": 0},
    "get_device_properties": {"device": 0},
    "can_device_access_peer": {"device": 0, "peer_device": 1},
    "get_device_capability": {},
    "current_stream": {"device": 1},
    "default_stream": {"device": 1},
}.items():
    try:
        print(getattr(torch.npu, name)(**arguments))
    except (RuntimeError, TypeError) as error:
        print(str(error).splitlines()[0].partition(" for device ")[0])
"""


def test_a_gap_is_still_one(npu: Installation) -> None:
    assert output_of(npu, BEHAVIOUR)[0].splitlines() == [
        "get_device_name() got an unexpected keyword argument 'device'",
        "get_device_properties() got an unexpected keyword argument 'device'",
        "can_device_access_peer() got an unexpected keyword argument 'device'",
        "None",
        "Uninitialized default NPU stream",
        "Uninitialized default NPU stream",
    ]
