"""The classic folders: what lies where, that anyone may read it, and nothing is half written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from op_tools import OpCapture
from op_tools.capture import encoding, folder_store
from op_tools.capture.encoding import decode, encode
from op_tools.core import output_paths, tool_errors

ROOT = Path("op_tools_results/op_capture_results")


def captured(name: str) -> list[encoding.Recorded]:
    found = [folder_store.read(folder) for folder in folder_store.find(ROOT / name)]
    return sorted(found, key=lambda recorded: int(recorded.header["id"]))


def test_the_layout_is_the_classic_one() -> None:
    x = torch.randn(3, 4, device="dipu", requires_grad=True)
    with OpCapture(ops="torch.Tensor.sort"):
        made, _ = x.sort()
        made.sum().backward()
    (folder,) = folder_store.find(ROOT)
    assert re.fullmatch(
        rf"torch\.Tensor\.sort/{os.getpid()}/\d+/\d{{4}}(-\d\d){{5}}", str(folder.relative_to(ROOT))
    )
    kinds = ("input", "output", "grad_inputs", "grad_outputs")
    names = sorted(f"{kind}.pth{end}" for kind in kinds for end in ("", ".json"))
    assert sorted(path.name for path in folder.iterdir()) == names
    held = torch.load(folder / "output.pth", weights_only=True)
    assert {"name", "args", "kwargs", "identifier"} <= held.keys()
    assert held["name"] == "torch.Tensor.sort" and isinstance(held["args"], tuple)
    assert held["identifier"] == "/".join(folder.parts[-2:])
    assert held["args"][0]["__op_tools__"] == "return_type"
    back = folder_store.read(folder).output
    assert type(back) is torch.return_types.sort
    assert torch.equal(back.values, made.detach().cpu())


def test_the_description_beside_a_file() -> None:
    x = torch.zeros(2, 3, device="dipu")
    with OpCapture(ops="torch.Tensor.sum"):
        x.sum(dim=(0, 1), keepdim=True)
    (folder,) = folder_store.find(ROOT)
    shown = json.loads((folder / "input.pth.json").read_text())
    assert shown["op"] == "torch.Tensor.sum"
    assert shown["kwargs"] == {"dim": ["0", "1"], "keepdim": "True"}
    assert shown["args"] == [
        {
            "device": "dipu:0",
            "dtype": "torch.float32",
            "numel": 6,
            "shape": "(2, 3)",
            "stride": [3, 1],
            "requires_grad": False,
            "layout": "torch.strided",
            "data_ptr": x.data_ptr(),
        }
    ]


def test_a_small_view_of_a_large_tensor_is_small() -> None:
    large = torch.randn(1024, 1024, device="dipu")
    with OpCapture(ops="torch.Tensor.neg"):
        large[5, 6].neg()
        large[:, 7].neg()
    one, column = captured("torch.Tensor.neg")
    assert sum(path.stat().st_size for path in ROOT.rglob("*.pth")) < 40_000
    assert torch.equal(one.args[0], large[5, 6].cpu())
    assert torch.equal(column.args[0], large[:, 7].cpu()) and column.args[0].stride() == (1024,)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 5).t(),
        lambda: torch.randn(6, 8)[::2, 1::3],
        lambda: torch.randn(3, 1).expand(3, 7),
        lambda: torch.randn(1).expand(4),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(10).as_strided((4, 3), (2, 1)),
        lambda: torch.randn(()),
        lambda: torch.randn(0, 3),
        lambda: torch.randn(5, dtype=torch.complex64).conj(),
        lambda: torch.arange(7, dtype=torch.int16)[2:],
        lambda: torch.tensor([True, False]),
        lambda: torch.randn(3).bfloat16(),
    ],
    ids="t step expand expand1 last overlap scalar empty conj int16 bool bfloat16".split(),
)
def test_values_and_strides_are_kept(make: Any) -> None:
    x = make()
    y = make().to("dipu") if x.is_conj() else torch.empty(0, dtype=x.dtype, device="dipu")
    if not x.is_conj():
        span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
        whole = x.as_strided((span if x.numel() else 0,), (1,), x.storage_offset())
        y = whole.to("dipu").as_strided(x.shape, x.stride())
    else:
        x = y.cpu()
    with OpCapture(ops="torch.Tensor.clone"):
        y.clone()
    (call,) = captured("torch.Tensor.clone")
    assert torch.equal(call.args[0], x.resolve_conj())
    assert call.args[0].stride() == x.stride() and call.args[0].dtype == x.dtype


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_a_type_that_torch_cannot_load_with_a_gradient() -> None:
    x = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    with OpCapture(devices=["cpu"]):
        x.to(torch.complex32)
    (call,) = captured("torch.Tensor.to")
    assert call.args[0].requires_grad and call.output.dtype == torch.complex32


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "value",
    [
        slice(1, None, -2),
        (slice(None), ..., 3, None),
        {"a": [1, 2.5, "x", None, True], "b": (1, (2,))},
        {1: 2, (3, 4): [5]},
        torch.Size([2, 3]),
        torch.float16,
        torch.device("cpu"),
        torch.strided,
        torch.channels_last,
        1 + 2j,
        b"\x00\xff",
        range(1, 9, 2),
        float("-inf"),
        torch.nn.functional.gelu,
    ],
    ids=repr,
)
@pytest.mark.parametrize("native", [False, True], ids=["json", "pth"])
def test_values_come_back_as_they_were(value: Any, native: bool, tmp_path: Path) -> None:
    encoded = encode(value, lambda tensor: tensor, native)
    if native:
        torch.save(encoded, tmp_path / "x.pth")
        held = torch.load(tmp_path / "x.pth", weights_only=True)
    else:
        held = json.loads(json.dumps(encoded))
    back = decode(held)
    assert back == value and type(back) is type(value)


def test_a_foreign_namedtuple_comes_back_with_its_fields() -> None:
    back = decode(encode(Pair(1, [2]), lambda tensor: tensor))
    assert back == Pair(1, [2]) and (back.left, back.right) == (1, [2])


def test_a_tensor_that_is_given_twice_is_one() -> None:
    x = torch.randn(3, device="dipu")
    with OpCapture(ops="torch.add"):
        torch.add(x, x)
        torch.add(x, x.clone())
    twice, apart = captured("torch.add")
    assert twice.args[0] is twice.args[1]
    assert apart.args[0] is not apart.args[1] and torch.equal(*apart.args)


def test_a_file_that_could_run_code_does_not(tmp_path: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/ran",)

    torch.save({"name": "x", "args": (Bad(),), "kwargs": {}}, tmp_path / "input.pth")
    with pytest.raises(Exception, match="Weights only"):
        folder_store.read(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_failed_save_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: object, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    x = torch.ones(2, device="dipu")
    with OpCapture() as tool:
        y = x + 1
        z = y * 2  # the tool is quiet by now, and the program goes on
    assert z.tolist() == [4.0, 4.0]
    assert [path for path in ROOT.rglob("*") if "pth" in path.name] == []
    (problem,) = tool_errors.problems("OpCapture")
    assert problem.count == 1 and "No space left" in problem.message
    assert tool is not None


def test_processes_with_the_same_pid_get_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = tmp_path / ".owners"
    claims.mkdir()
    (claims / str(os.getpid())).touch()  # of a process on another host
    monkeypatch.setattr("socket.gethostname", lambda: "node.7")
    assert output_paths.owner(tmp_path) == f"{os.getpid()}-node_7"
    assert output_paths.owner(tmp_path) == f"{os.getpid()}-node_7"
    monkeypatch.setattr(output_paths, "_names", {})
    assert output_paths.owner(tmp_path) == f"{os.getpid()}-node_7-2"


def test_two_processes_write_side_by_side(tmp_path: Path) -> None:
    code = (
        "import torch, torch_dipu; from op_tools import OpCapture\n"
        "with OpCapture(): torch.ones(3, device='dipu') + 1"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait(100) for process in running] == [0, 0]
    owners = {path.parts[-3] for path in folder_store.find(ROOT / "torch.Tensor.add")}
    assert owners == {str(process.pid) for process in running}
