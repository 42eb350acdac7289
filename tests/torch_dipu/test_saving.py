"""Saving, loading, pickling, copying; and checkpoints that open without this package."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def _saved(value: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("device", ["dipu:0", "dipu:1"])
def test_a_tensor_loads_where_it_was_saved(device: str) -> None:
    loaded: Tensor = torch.load(_saved(torch.tensor([1.0, 2.0], device=device)))
    assert loaded.device == torch.device(device)
    assert loaded.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "target", ["cpu", "dipu:1", torch.device("dipu:1"), {"dipu:0": "dipu:1"}, {"dipu:0": "cpu"}]
)
def test_map_location_moves_it(target: Any) -> None:
    loaded: Tensor = torch.load(_saved(torch.ones(2, device="dipu:0")), map_location=target)
    expected = target["dipu:0"] if isinstance(target, dict) else target
    assert loaded.device == torch.device(expected)
    assert loaded.tolist() == [1.0, 1.0]


def test_a_host_checkpoint_loads_onto_the_device() -> None:
    loaded: Tensor = torch.load(_saved(torch.ones(2)), map_location="dipu")
    assert loaded.device == torch.device("dipu", 0)


def test_a_checkpoint_of_a_missing_device_is_refused_with_a_hint() -> None:
    text = _saved(torch.ones(2, device="dipu:1")).getvalue().replace(b"dipu:1", b"dipu:9")
    with pytest.raises(RuntimeError, match=r"dipu.*map_location|map_location.*dipu"):
        torch.load(io.BytesIO(text))


def test_views_stay_views_when_saved_together() -> None:
    base = torch.arange(6.0, device="dipu").view(2, 3)
    loaded = torch.load(_saved({"base": base, "row": base[1]}))
    loaded["base"][1] = 0
    assert loaded["row"].tolist() == [0.0, 0.0, 0.0]


def test_a_strided_tensor_keeps_its_strides() -> None:
    source = torch.arange(6.0, device="dipu").view(2, 3).t()
    loaded: Tensor = torch.load(_saved(source))
    assert loaded.stride() == source.stride()
    assert torch.equal(loaded.cpu(), source.cpu())


def test_module_and_optimizer_continue_after_loading() -> None:
    torch.manual_seed(4)
    net = nn.Linear(3, 1).to("dipu")
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3, device="dipu")).square().sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    saved = _saved({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
    expected = [step(), step()]
    state = torch.load(saved, weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    assert [step(), step()] == expected


@pytest.mark.parametrize("kind", ["tensor", "parameter", "module", "optimizer"])
def test_a_device_checkpoint_opens_without_this_package(tmp_path: Path, kind: str) -> None:
    net = nn.Linear(2, 1).to("dipu")
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2, device="dipu")).sum().backward()
    optimizer.step()
    values: dict[str, Any] = {
        "tensor": net.weight.detach(),
        "parameter": net.weight,
        "module": OrderedDict(net.state_dict()),
        "optimizer": optimizer.state_dict(),
    }
    path = tmp_path / "checkpoint.pt"
    torch.save(values[kind], path)
    source = f"""
import sys, torch
value = torch.load({str(path)!r}, map_location="cpu", weights_only=True)
assert "torch_dipu" not in sys.modules
tensors = [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
print(len(tensors) > 0, {{t.device.type for t in tensors}})
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True {'cpu'}"


@pytest.mark.parametrize("device", ["dipu:0", "dipu:1"])
def test_pickle_keeps_device_and_values(device: str) -> None:
    loaded = pickle.loads(pickle.dumps(torch.tensor([1.5], device=device)))
    assert loaded.device == torch.device(device)
    assert loaded.tolist() == [1.5]


def test_deepcopy_is_independent() -> None:
    source = torch.ones(2, device="dipu:1", requires_grad=True)
    clone = copy.deepcopy(source)
    with torch.no_grad():
        clone.zero_()
    assert source.tolist() == [1.0, 1.0]
    assert clone.device == source.device
    assert clone.requires_grad


def test_deepcopy_of_a_module_keeps_sharing() -> None:
    net = nn.Linear(2, 2).to("dipu")
    pair = copy.deepcopy([net.weight, net.weight])
    assert pair[0] is pair[1]
    assert pair[0] is not net.weight


def test_shallow_copy_shares_memory() -> None:
    source = torch.ones(2, device="dipu")
    copy.copy(source).zero_()
    assert source.tolist() == [0.0, 0.0]


def test_a_storage_moves_and_copies() -> None:
    storage = torch.arange(4, dtype=torch.uint8, device="dipu").untyped_storage()
    assert storage.device.type == "dipu"
    assert storage.cpu().tolist() == [0, 1, 2, 3]
    assert storage.clone().device == storage.device
    assert copy.deepcopy(storage).cpu().tolist() == [0, 1, 2, 3]


def test_safe_globals_are_not_needed() -> None:
    loaded = torch.load(_saved(nn.Linear(1, 1).to("dipu").state_dict()), weights_only=True)
    assert loaded["weight"].device.type == "dipu"
