"""DEEPLINK_VENDOR=cpu: the CPU as the one CUDA device of a program, by name and by number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.nn.utils.rnn import pack_sequence
x = torch.ones(2)
found = {}
def ask(texts, when):
    for text in json.loads(texts):
        try:
            found[when + text] = str(eval(text))
        except Exception as error:
            found[when + text] = f"{type(error).__name__}: {error}"
ask(sys.argv[2], "before: ")
import ditorch
ask(sys.argv[1], "")
ditorch.undo()
ask(sys.argv[2], "undone: ")
print(json.dumps(found))
"""

# an expression of a program, and its value
HEARD = {
    "torch.device(0)": "cpu",
    "torch.device('cuda', 0)": "cpu",
    "torch.device(type='cuda', index=1)": "cpu",
    "torch.device('cpu', 0)": "cpu:0",  # the CPU's own name is as it was
    "torch.device(0) == x.cuda().device": "True",
    "torch.zeros(1, device=0).device": "cpu",
    "torch.tensor([1], device=torch.cuda.current_device()).device": "cpu",
    "torch.empty_like(x, device=0).device": "cpu",
    "x.new_zeros(1, device=0).device": "cpu",
    "x.to(0).device": "cpu",
    "x.to(device=0, dtype=torch.float16).dtype": "torch.float16",
    "x.cuda(0).device": "cpu",
    "x.cuda(torch.device(0)).device": "cpu",
    "torch.nn.Linear(1, 1, device=0).weight.device": "cpu",
    "torch.nn.Linear(1, 1).to(0).weight.device": "cpu",
    "torch.Generator(device=0).device": "cpu",
    "torch.jit.script(torch.nn.utils.rnn.invert_permutation)(torch.tensor([1, 0]))": (
        "tensor([1, 0])"
    ),
    "torch.cuda.device(0).__enter__()": "None",
    "torch.cuda.set_device(0), torch.cuda.current_device()": "(None, 0)",
    "torch.cuda.device_count()": "1",
    "x.is_cuda, x.cuda().is_cuda, torch.nn.Linear(1, 1).cuda().weight.is_cuda": (
        "(True, True, True)"
    ),
    "pack_sequence([x]).cuda(0).is_cuda": "True",
    "torch.empty(2, pin_memory=True).shape": "torch.Size([2])",
    "torch.zeros(2, pin_memory=True, device='cpu').to('cuda', non_blocking=True).sum()": (
        "tensor(0.)"
    ),
    "torch.device('meta').__enter__() and torch.empty(2).device": "meta",
    "torch.device(-1)": "RuntimeError: Device index must not be negative",
}
TRUTH = {  # torch itself does not see cuda
    "torch.accelerator.current_accelerator()": "None",
    "torch.accelerator.is_available()": "False",
    "torch._C._accelerator_getAccelerator()": "None",
    "torch.utils._device.torch.empty(0).device.type": "cpu",
}
UNDONE = ("torch.device(0)", "x.is_cuda", "torch.device('cuda', 0)", "torch.device('cuda:1')")


def _ask(**environment: str) -> dict[str, Any]:
    texts = [*TRUTH, *HEARD]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(texts), json.dumps(UNDONE)],
        env={**os.environ, "DITORCH_QUIET": "1", "DEEPLINK_VENDOR": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return _ask()


@pytest.mark.parametrize("text", HEARD)
def test_a_number_is_the_one_device(text: str, found: dict[str, Any]) -> None:
    assert found[text] == HEARD[text]


@pytest.mark.parametrize("text", TRUTH)
def test_torch_sees_no_accelerator(text: str, found: dict[str, Any]) -> None:
    assert found[text] == TRUTH[text]


@pytest.mark.parametrize("text", UNDONE)
def test_undo_takes_it_back(text: str, found: dict[str, Any]) -> None:
    assert found[f"undone: {text}"] == found[f"before: {text}"]


def test_the_true_names_can_be_had() -> None:
    assert _ask(DITORCH_SHOW_DEVICE_AS_CUDA="0")["x.is_cuda, x.cuda().is_cuda, "
        "torch.nn.Linear(1, 1).cuda().weight.is_cuda"] == "(False, False, False)"  # fmt: skip


def test_without_the_native_hook_arguments_are_served_and_torch_device_is_not() -> None:
    found = _ask(DITORCH_NATIVE_HOOK="0")
    assert found["torch.zeros(1, device=0).device"] == "cpu"
    assert found["x.to(0).device"] == "cpu"
    assert found["torch.device('meta').__enter__() and torch.empty(2).device"] == "meta"
    assert found["torch.device(0)"] == found["before: torch.device(0)"]
