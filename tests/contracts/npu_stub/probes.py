"""What CUDA code does, tried on the real torch_npu over the stub: one function per behaviour.

A program of its own: `python -m tests.contracts.npu_stub.probes TOOL FILE` redirects CUDA by
ditorch or by torch_npu's own tool, and writes each probe's error, or nothing.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import io
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.contracts.npu_stub import host_kernels

TOOLS = {"ditorch": "ditorch", "transfer_to_npu": "torch_npu.contrib.transfer_to_npu"}
FILTERS = list(warnings.filters)
VALUES = torch.arange(6.0).reshape(2, 3)

Probe = Callable[[], None]


# The defects of torch_npu's own tool, in the order of their numbers.


def load_a_path_that_says_cuda() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/cuda_checkpoint.pt"
        torch.save({"w": VALUES}, path)
        assert torch.equal(torch.load(path)["w"], VALUES)


def tensor_cuda_of_a_name() -> None:
    moved = VALUES.cuda("cuda:1")
    assert moved.is_cuda and moved.get_device() == 1
    assert torch.equal(moved.cpu(), VALUES)


def tensor_cuda_of_a_device() -> None:
    moved = VALUES.cuda(torch.device("cuda"))
    assert moved.is_cuda and moved.get_device() == 0
    assert torch.equal(moved.cpu(), VALUES)


def tensor_type_by_its_old_name() -> None:
    moved = VALUES.double().type("torch.cuda.FloatTensor")
    assert moved.is_cuda and moved.dtype == torch.float32
    assert torch.equal(moved.cpu(), VALUES)


def asarray() -> None:
    made = torch.asarray([1.0, 2.0], device="cuda")
    assert made.is_cuda and made.cpu().tolist() == [1.0, 2.0]


def nested_tensor() -> None:
    made = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], device="cuda")
    assert made.is_cuda
    assert [part.cpu().tolist() for part in made.unbind()] == [[1.0, 1.0], [0.0, 0.0, 0.0]]


def stream_of_a_name() -> None:
    made = torch.Stream("cuda")
    assert made.device_index == 0 and made.query()


def aten_zeros() -> None:
    made = torch.ops.aten.zeros([2], device="cuda")
    assert made.is_cuda and made.cpu().tolist() == [0.0, 0.0]


def is_available_after_an_error_in_a_library() -> None:
    other = importlib.import_module("peft.utils.other")  # installation.py wrote it
    with contextlib.suppress(LookupError):
        other.infer_device()
    assert torch.cuda.is_available()


def double_tensor_keeps_its_dtype() -> None:
    made = torch.cuda.DoubleTensor([1e300])  # type: ignore[attr-defined]
    assert made.is_cuda and made.dtype == torch.float64
    assert made.item() == 1e300


def device_capability_is_a_pair() -> None:
    major, minor = torch.cuda.get_device_capability()
    assert isinstance(major, int) and isinstance(minor, int)


def nvtx_ranges() -> None:
    depth = torch.cuda.nvtx.range_push("outer")
    assert torch.cuda.nvtx.range_push("inner") == depth + 1
    assert torch.cuda.nvtx.range_pop() == depth + 1
    assert torch.cuda.nvtx.range_pop() == depth


def jit_script() -> None:
    layer = nn.Linear(3, 2)
    wanted = layer(VALUES)
    scripted = torch.jit.script(layer)
    assert isinstance(scripted, torch.jit.ScriptModule)
    assert torch.equal(scripted.cuda()(VALUES.cuda()).cpu(), wanted)


def device_says_cuda() -> None:
    made = VALUES.to("cuda")
    assert made.device.type == "cuda" and str(made.device) == "cuda:0"


def default_back_end() -> None:
    assert dist.get_default_backend_for_device("cuda") == "nccl"


def warning_filters_are_left_alone() -> None:
    assert list(warnings.filters) == FILTERS


DEFECTS: tuple[Probe, ...] = (
    load_a_path_that_says_cuda,
    tensor_cuda_of_a_name,
    tensor_cuda_of_a_device,
    tensor_type_by_its_old_name,
    asarray,
    nested_tensor,
    stream_of_a_name,
    aten_zeros,
    is_available_after_an_error_in_a_library,
    double_tensor_keeps_its_dtype,
    device_capability_is_a_pair,
    nvtx_ranges,
    jit_script,
    device_says_cuda,
    default_back_end,
    warning_filters_are_left_alone,
)


# What else programs do.


def training_gives_the_numbers_of_the_cpu() -> None:
    torch.manual_seed(0)
    inputs, labels = torch.randn(32, 8), torch.randint(0, 4, (32,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    wanted = _losses(copy.deepcopy(model), inputs, labels)
    found = _losses(model, inputs, labels, "cuda")
    assert next(model.parameters()).is_cuda
    assert wanted[-1] < wanted[0]  # it learns
    assert found == wanted


def _losses(
    model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, device: str = "cpu"
) -> list[float]:
    """The optimizer is made before the model moves: its parameters must stay the same objects."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.to(device)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def mixed_precision_with_a_scaler() -> None:
    model = nn.Linear(3, 2).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda", 8)
    before = model.weight.detach().cpu()
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(VALUES.cuda())
    scaler.scale(out.float().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert out.dtype == torch.float16 and scaler.get_scale() == 8
    assert torch.allclose(model.weight.cpu(), before - 0.1 * VALUES.sum(0), atol=1e-3)


def arguments_by_cudas_names() -> None:
    assert torch.cuda.get_device_name(device=0) == "Ascend910B3"
    assert torch.cuda.get_device_properties(device="cuda:1").total_memory == 64 << 30
    assert torch.cuda.can_device_access_peer(device=0, peer_device="cuda:1") is True
    assert torch.cuda.can_device_access_peer(device=1, peer_device=1) is False


def functions_without_arguments_answer() -> None:
    for name in torch.cuda.__all__:
        function = getattr(torch.cuda, name)
        if inspect.isfunction(function) and not _needed(function):
            try:
                function()
            except (AttributeError, TypeError) as error:  # the mapping's own
                raise AssertionError(f"torch.cuda.{name}()") from error
            except RuntimeError:  # the stub's, or that there is no equivalent
                pass


def _needed(function: Callable[..., object]) -> list[str]:
    stars = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in stars]


def current_device_is_set_and_restored() -> None:
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        made = torch.zeros(1, device="cuda")
    assert made.get_device() == 1
    assert torch.cuda.current_device() == 0


def streams_and_events() -> None:
    stream, start = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(stream=stream):
        assert torch.cuda.current_stream() == stream
        end.record()
    stream.synchronize()
    assert start.elapsed_time(end) >= 0.0
    assert isinstance(stream, torch.cuda.Stream) and isinstance(end, torch.cuda.Event)


def memory_is_counted() -> None:
    before = torch.cuda.memory_allocated()
    made = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before >= made.nbytes
    del made
    assert torch.cuda.memory_allocated() == before


def checkpoints_say_cuda() -> None:
    buffer = io.BytesIO()
    torch.save({"w": VALUES.cuda()}, buffer)
    assert b"cuda:0" in buffer.getvalue() and b"npu:0" not in buffer.getvalue()
    for location, index in ((None, 0), ("cuda:1", 1), ({"cuda:0": "cuda:1"}, 1)):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)["w"]
        assert loaded.is_cuda and loaded.get_device() == index
        assert torch.equal(loaded.cpu(), VALUES)


def random_states_are_restored() -> None:
    torch.cuda.manual_seed_all(7)
    state = torch.cuda.get_rng_state()
    assert torch.cuda.initial_seed() == 7
    torch.cuda.manual_seed(8)
    assert not torch.equal(torch.cuda.get_rng_state(), state)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def loaders_pin_memory() -> None:
    loader = DataLoader(TensorDataset(VALUES), pin_memory=True)
    assert [batch.is_pinned() for (batch,) in loader] == [True, True]


def data_parallel() -> None:
    layer = nn.Linear(3, 2)
    wanted = layer(VALUES)
    assert torch.equal(nn.DataParallel(layer.cuda())(VALUES.cuda()).cpu(), wanted)


OTHERS: tuple[Probe, ...] = (
    training_gives_the_numbers_of_the_cpu,
    mixed_precision_with_a_scaler,
    arguments_by_cudas_names,
    functions_without_arguments_answer,
    current_device_is_set_and_restored,
    streams_and_events,
    memory_is_counted,
    checkpoints_say_cuda,
    random_states_are_restored,
    loaders_pin_memory,
    data_parallel,
)


def said(probe: Probe) -> str:
    """Nothing, or the error with its line."""
    try:
        probe()
    except Exception:  # whatever it is: the other probes go on
        return traceback.format_exc()
    return ""


def main() -> None:
    """Redirects CUDA, runs every probe, writes their errors."""
    tool, file = sys.argv[1:]
    importlib.import_module(TOOLS[tool])
    kernels = host_kernels.install()
    everything = {probe.__name__: said(probe) for probe in (*DEFECTS, *OTHERS)}
    Path(file).write_text(json.dumps(everything), "utf-8")
    del kernels  # not before: they go with it


if __name__ == "__main__":
    main()
