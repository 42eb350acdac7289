"""torch.accelerator, PyTorch's interface for any device: every public name of it, on this one."""

from __future__ import annotations

import functools
import importlib
import json

import pytest
import torch

from tests.torch_dipu.interpreter import output_of, run_python

# The call of each name that needs more than `name()`.
CALLS = {
    "device_index": "accelerator.device_index(1).__enter__()",
    "set_device_idx": "accelerator.set_device_idx(1)",
    "set_device_index": "accelerator.set_device_index(1)",
    "set_stream": "accelerator.set_stream(torch.Stream())",
}

# Documented errors.
ERRORS = {
    "Graph": "Graph is not supported on device type",
    "graphs.Graph": "Graph is not supported on device type",
}

# Calls each name, and writes it before and its result after, so that a crash has a name.
CALL_EACH = """
import json, warnings
import torch, torch_dipu
from torch import accelerator
warnings.simplefilter("ignore", FutureWarning)
kept = torch.ones(3, device="dipu"), torch.ones(3).pin_memory()
for name, call in json.loads({calls!r}):
    print(json.dumps([name, "crashed"]), flush=True)
    try:
        exec(call, {{"torch": torch, "accelerator": accelerator}})
        result = "works"
    except Exception as error:
        result = f"{{type(error).__name__}}: {{error}}"
    print(json.dumps([name, result]), flush=True)
"""


def _public_names() -> list[str]:
    names = list(torch.accelerator.__all__)
    for part in ("memory", "random", "graphs"):  # random: torch 2.15
        try:
            module = importlib.import_module(f"torch.accelerator.{part}")
        except ModuleNotFoundError:
            continue
        names += [f"{part}.{name}" for name in module.__all__]
    return names


@functools.cache
def _results() -> dict[str, str]:
    calls = [[n, CALLS.get(n, f"accelerator.{n}()")] for n in _public_names()]
    results: dict[str, str] = {}
    while len(results) < len(calls):
        rest = json.dumps([call for call in calls if call[0] not in results])
        done = run_python(CALL_EACH.format(calls=rest))
        rows = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
        assert rows, done.stderr
        results |= rows
    return results


@pytest.mark.parametrize("name", _public_names())
def test_each_public_name_of_torch_accelerator_works(name: str) -> None:
    result = _results()[name]
    assert result == "works" or ERRORS.get(name, "\0") in result


def test_a_crash_in_one_call_is_reported_by_its_name() -> None:
    done = run_python(CALL_EACH.format(calls='[["abort", "import os; os.abort()"], ["next", "1"]]'))
    assert done.returncode != 0
    assert json.loads(done.stdout.splitlines()[-1]) == ["abort", "crashed"]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support:UserWarning")  # of torch
def test_the_capability_lists_types_that_the_device_holds() -> None:
    types = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool} <= types
    for dtype in types:
        if str(dtype).startswith("torch.q"):
            continue  # a quantized tensor needs a scale
        values = torch.zeros(16, dtype=torch.uint8).view(dtype)
        there = values.to("dipu")
        assert there.dtype == dtype
        assert torch.equal(there.cpu().view(torch.uint8), values.view(torch.uint8))


def test_the_capability_leaves_out_a_type_that_a_fault_refuses() -> None:
    source = """
import torch, torch_dipu
types = torch.accelerator.get_device_capability()["supported_dtypes"]  # torch caches it
print(torch.float32 in types, torch.float64 in types)
"""
    assert output_of(source, DIPU_QUIRKS="no_float64") == "True False"


def test_the_device_module_numbers_its_capability_as_cuda_does() -> None:
    assert torch.dipu.get_device_capability() == (8, 0)


def test_empty_host_cache_leaves_pinned_tensors_unchanged() -> None:
    pinned = torch.arange(1000.0).pin_memory()
    torch.accelerator.empty_host_cache()
    assert torch.equal(pinned, torch.arange(1000.0))
