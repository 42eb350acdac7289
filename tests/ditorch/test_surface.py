"""CUDA names outside of torch.cuda."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch_dipu.interpreter import output_of

pytestmark = pytest.mark.usefixtures("active")


def test_device_names_resolve_everywhere() -> None:
    assert torch.device("cuda:1") == torch.device("dipu:1")
    assert torch.device("cuda", 1).index == 1
    made = {
        "zeros": torch.zeros(1, device="cuda"),
        "tensor": torch.tensor([1.0], device="cuda:0"),
        "as_tensor": torch.as_tensor([1.0], device="cuda"),
        "asarray": torch.asarray([1.0], device="cuda"),
        "to": torch.zeros(1).to("cuda"),
        "to keyword": torch.zeros(1).to(device="cuda"),
        "to int": torch.zeros(1).to(0),
        "new": torch.zeros(1).new_zeros(1, device="cuda"),
        "like": torch.zeros_like(torch.zeros(1), device="cuda"),
        "ops": torch.ops.aten.zeros([1], device="cuda"),
        "nested": torch.nested.nested_tensor([torch.ones(1)], device="cuda", layout=torch.jagged),
    }
    assert {name: tensor.is_cuda for name, tensor in made.items()} == dict.fromkeys(made, True)
    assert torch.Generator("cuda").device == torch.device("dipu:0")
    assert torch.Stream("cuda").device.type == "cuda"
    assert torch.UntypedStorage(4, device="cuda").device.type == "cuda"


def test_with_torch_device_and_the_default_device() -> None:
    with torch.device("cuda"):
        assert torch.zeros(1).is_cuda
    torch.set_default_device("cuda:1")
    try:
        assert torch.zeros(1).device.index == 1
    finally:
        torch.set_default_device(None)


def test_the_vendors_own_code_sees_true_names() -> None:
    a = torch.arange(6.0).view(2, 3).cuda()
    with torch.dipu.quirk("ignore_strides", "add"):  # it selects tensors of its own device
        wrong = (a.t() + torch.zeros(3, 2).cuda()).tolist()
    assert wrong == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_user_code_sees_cuda_and_torch_sees_true_names() -> None:
    tensor = torch.ones(1, device="cuda:1")
    assert tensor.device.type == "cuda"
    assert str(tensor.device) == "cuda:1"
    assert repr(tensor.device) == "device(type='cuda', index=1)"
    assert f"{tensor.device}" == "cuda:1"
    assert torch.get_device_module(tensor.device) is torch.dipu  # torch itself queries the type
    assert not torch.ones(1).is_cuda
    assert str(torch.device("cpu")) == "cpu"


def test_the_identity_can_be_switched_off() -> None:
    text = output_of(
        'import torch, ditorch; x = torch.ones(1, device="cuda"); print(x.device, x.is_cuda)',
        DITORCH_SHOW_DEVICE_AS_CUDA="0",
        DITORCH_QUIET="1",
    )
    assert text.split() == ["dipu:0", "False"]


@pytest.mark.parametrize("device", [None, 1, "cuda:1", torch.device("cpu")])
def test_tensor_cuda_takes_what_cuda_takes(device: object) -> None:
    tensor = torch.arange(3.0)
    if isinstance(device, torch.device):
        assert tensor.cuda(device).device.type == "cpu"
        return
    moved = tensor.cuda(device)
    assert moved.is_cuda
    assert moved.device.index == (0 if device is None else 1)
    assert moved.cpu().tolist() == [0.0, 1.0, 2.0]
    assert moved.cuda(moved.device) is moved


def test_legacy_type_names() -> None:
    tensor = torch.ones(2)
    assert tensor.type("torch.cuda.FloatTensor").is_cuda
    assert tensor.type("torch.cuda.DoubleTensor").dtype is torch.float64
    assert tensor.cuda().type() == "torch.cuda.FloatTensor"
    assert tensor.cuda().half().type() == "torch.cuda.HalfTensor"
    assert tensor.cuda().to_sparse().type() == "torch.cuda.sparse.FloatTensor"
    assert tensor.type() == "torch.FloatTensor"
    assert tensor.type(torch.int64).dtype is torch.int64


@pytest.mark.parametrize("vendor", ["reference", "cpu"])
def test_the_type_of_a_tensor_says_cuda_where_is_cuda_does(vendor: str, active: ModuleType) -> None:
    active.undo()
    active.activate(vendor)
    tensor = torch.ones(2).cuda()
    assert tensor.is_cuda
    assert tensor.type() == "torch.cuda.FloatTensor"
    assert tensor.type(tensor.type()).is_cuda
    assert isinstance(tensor, torch.cuda.FloatTensor)


def test_module_cuda_after_the_optimizer_trains() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.cuda()
    before = model.weight.detach().cpu().clone()
    model(torch.ones(2, 3).cuda()).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.1 * 2)


def test_autocast_and_grad_scaler_named_cuda() -> None:
    model = nn.Linear(4, 4).cuda()
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    with torch.autocast("cuda", dtype=torch.float16), torch.amp.autocast(device_type="cuda"):
        assert torch.is_autocast_enabled("cuda")
        loss = model(torch.ones(2, 4, device="cuda")).float().sum()
    assert loss.is_cuda
    scaler.scale(loss).backward()
    torch.testing.assert_close(
        model.bias.grad.cpu() / scaler.get_scale(), torch.full((4,), 2.0), check_dtype=False
    )


def test_a_checkpoint_carries_cuda_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "cuda_checkpoint.pt"  # the path contains cuda, too, and is unchanged
    torch.save({"w": torch.arange(3.0, device="cuda:1")}, path)
    assert torch.load(path)["w"].device == torch.device("dipu:1")
    assert torch.load(path, map_location="cuda:0")["w"].device.index == 0
    assert torch.load(path, map_location={"cuda:1": "cuda:0"})["w"].device.index == 0
    assert torch.load(path, map_location="cpu")["w"].tolist() == [0.0, 1.0, 2.0]
    assert torch.load(path, map_location=lambda storage, _: storage)["w"].device.type == "cpu"
    assert b"dipu" not in path.read_bytes()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_distributed_checkpoint_holds_the_values(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    values = torch.arange(4.0)
    dcp.save({"w": values.cuda()}, checkpoint_id=tmp_path, no_dist=True)
    found = {"w": torch.zeros(4, device="cuda")}
    dcp.load(found, checkpoint_id=tmp_path, no_dist=True)
    assert found["w"].is_cuda
    assert torch.equal(found["w"].cpu(), values)


def test_the_checkpoint_opens_where_ditorch_is_not() -> None:
    buffer = io.BytesIO()
    torch.save(nn.Linear(2, 2).cuda().state_dict(), buffer)
    source = f"""
import io, torch
state = torch.load(io.BytesIO({buffer.getvalue()!r}), map_location="cpu", weights_only=True)
print(sorted(state), state["weight"].device)
"""
    assert output_of(source).strip() == "['bias', 'weight'] cpu"


def test_data_parallel_gives_the_numbers_of_one_device() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
    batch = torch.randn(6, 4).cuda()
    alone = model(batch)
    alone.sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    both = nn.DataParallel(model, device_ids=[0, 1])(batch)
    both.sum().backward()
    torch.testing.assert_close(both.cpu(), alone.cpu())
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad.cpu(), grad.cpu())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_jit_script_and_compile_go_on_working() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2).cuda())
    assert isinstance(scripted, torch.jit.ScriptModule)
    assert scripted(torch.ones(1, 2).cuda()).is_cuda

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cuda() + torch.ones(2, device="cuda")

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).cpu().tolist() == [2.0, 2.0]


def made_by_name() -> torch.Tensor:
    return torch.ones(2, device="cuda:1")


def made_by_object() -> torch.Tensor:
    return torch.ones(2, device=torch.device("cuda", 1))


def moved() -> torch.Tensor:
    return torch.ones(2).to("cuda:1")


class Moves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = x.cuda()
        return moved + 1 if moved.is_cuda else moved


@pytest.mark.filterwarnings("ignore:.torch.jit.*. is deprecated")
@pytest.mark.parametrize("function", [made_by_name, made_by_object, moved])
def test_torchscript_serves_a_literal_device(function: Callable[[], torch.Tensor]) -> None:
    assert torch.jit.script(function)().device == torch.device("cuda:1")


@pytest.mark.filterwarnings("ignore:.torch.jit.*. is deprecated")
def test_torchscript_serves_cuda_and_is_cuda_in_modules_also_read_from_a_file() -> None:
    scripted = torch.jit.script(nn.Sequential(Moves(), nn.ReLU()))
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    for module in (scripted, torch.jit.load(file)):
        made = module(torch.ones(2))
        assert made.is_cuda and made.tolist() == [2.0, 2.0]


def test_fork_rng_and_checkpoint_know_the_device() -> None:
    torch.manual_seed(0)
    first = torch.rand(2, device="cuda").cpu()
    torch.manual_seed(0)
    with torch.random.fork_rng([0], device_type="cuda"):
        torch.rand(2, device="cuda")
    assert torch.equal(torch.rand(2, device="cuda").cpu(), first)
    layer = nn.Dropout(0.5)
    x = torch.ones(64, device="cuda", requires_grad=True)
    out = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    out.sum().backward()
    assert torch.equal(x.grad.cpu(), out.detach().cpu())


def test_the_profiler_takes_the_cuda_activity() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        torch.ones(4, device="cuda").add(1)
    rows = {event.key: event for event in profile.key_averages()}
    assert rows["aten::add"].self_device_time_total > 0
    assert "dipu_add_tensor" in profile.key_averages().table(sort_by="self_cuda_time_total")


@pytest.mark.filterwarnings("ignore:.*use_cuda.*")
@pytest.mark.parametrize("profile", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_the_profilers_older_words_for_cuda_are_understood(profile: Any) -> None:
    version = tuple(map(int, torch.__version__.split(".")[:2]))  # ditorch hides the signature
    if version >= (2, 14):
        pytest.skip(f"torch {torch.__version__} has no use_cuda; torch 2.13 has it")
    a = torch.ones(4, device="cuda")
    with profile(use_cuda=True, acc_events=True) as recorded:
        a.exp()
    rows = {event.key: event for event in recorded.key_averages()}
    assert rows["aten::exp"].self_device_time_total > 0


def test_the_history_of_memory_has_cudas_names(tmp_path: Path) -> None:
    torch.cuda.memory._record_memory_history(stacks="python", clear_history=True)
    try:
        kept = torch.ones(1 << 20, device="cuda:1")
        torch.cuda.memory._dump_snapshot(str(tmp_path / "memory.pickle"))
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(None)
    trace = snapshot["device_traces"][1]
    assert kept.data_ptr() in [event["addr"] for event in trace if event["action"] == "alloc"]
    assert (tmp_path / "memory.pickle").stat().st_size > 0


@pytest.mark.parametrize("device", [(), (0,), ("cuda:0",), (torch.device("cpu"),)])
def test_packed_sequences_go_there_and_say_so(active: ModuleType, device: tuple[Any, ...]) -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]).cuda(*device)
    assert packed.is_cuda == packed.data.is_cuda == (device != (torch.device("cpu"),))


def test_an_event_has_a_handle(active: ModuleType) -> None:
    event = torch.cuda.Event()
    assert event.cuda_event == 0
    event.record()
    assert event.cuda_event != 0
    active.undo()
    assert not hasattr(torch.Event, "cuda_event")


def test_the_set_of_tensor_classes_has_those_of_cuda(active: ModuleType) -> None:
    ours = torch.cuda.FloatTensor
    assert ours in torch._tensor_classes
    active.undo()
    assert ours not in torch._tensor_classes and torch.cuda.FloatTensor in torch._tensor_classes


def test_without_the_native_hook_a_device_is_a_context_still() -> None:
    source = """
import torch, ditorch
with torch.device("meta"):
    print(torch.empty(2).device, torch.zeros(2, device="cuda").device.type)
"""
    assert output_of(source, DITORCH_QUIET="1", DITORCH_NATIVE_HOOK="0") == "meta dipu"


def test_undo_is_not_needed_for_cpu_code(active: ModuleType) -> None:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    with_it = (x @ x).sum()
    active.undo()
    assert torch.equal(with_it, (x @ x).sum())


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type:UserWarning")
def test_a_default_tensor_type_of_cuda_is_left_again(active: ModuleType) -> None:
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    assert torch.zeros(1).is_cuda and torch.zeros(1).dtype is torch.float64
    torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.zeros(1).is_cuda and torch.zeros(1).dtype is torch.float32
    torch.set_default_tensor_type(torch.cuda.FloatTensor)
    active.undo()
    assert torch.zeros(1).device.type == "cpu"


def test_on_plain_cpu_an_index_is_the_cpu_and_pinning_is_nothing() -> None:
    text = output_of(
        """
import torch, ditorch
device = torch.cuda.current_device()
model = torch.nn.Linear(2, 2).to(device)
batch = torch.ones(4, 2).pin_memory().to(device, non_blocking=True).to(device=0)
both = torch.nn.DataParallel(model, device_ids=[0])(batch)
also = torch.nn.parallel.data_parallel(model, batch, [0])
print(both.device, torch.equal(both, model(batch)), torch.equal(both, also))
ditorch.undo()
print(type(torch.Tensor.to).__name__)
""",
        DEEPLINK_VENDOR="cpu",
        DITORCH_QUIET="1",
    )
    assert text.split() == ["cpu", "True", "True", "method_descriptor"]


# torch's own, when inductor is imported
@pytest.mark.filterwarnings("ignore:`torch.jit.")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\):FutureWarning")
@pytest.mark.parametrize("backend", ["onnxrtgraph", "ascendgraph", "inductorgraph"])
def test_a_named_backend_of_torch_compile_serves_cuda(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dicp.dynamo_bridge import report

    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DICP_MEASURE", "0")
    torch.compiler.reset()
    x = torch.randn(3, 4, device="cuda")
    result = torch.compile(lambda x: (x @ x.t()).relu(), backend=backend)(x)
    torch.compiler.reset()
    assert result.is_cuda
    torch.testing.assert_close(result.cpu(), (x.cpu() @ x.cpu().t()).relu())
    assert report.RECORDS[-1].taken == report.RECORDS[-1].nodes > 0


def test_fused_ops_of_dlinfer_find_the_device_behind_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from dlinfer import fused, kernels

    seen: list[str] = []
    served = kernels.served
    monkeypatch.setattr(kernels, "served", lambda device: seen.append(device) or served(device))
    fused.rms_norm(torch.ones(2, 4, device="cuda"), torch.ones(4, device="cuda"), 1e-6)
    assert seen == ["dipu"]


def test_a_tensor_is_printed_with_the_name_of_its_device(active: ModuleType) -> None:
    for index in (0, 1):
        x = torch.ones(2, device=f"cuda:{index}")
        assert str(x) == repr(x) == f"{x}" == f"tensor([1., 1.], device='{x.device}')"
        assert f"device='cuda:{index}'" in repr(x)
    assert repr(torch.ones(2)) == "tensor([1., 1.])"
    parameter = torch.nn.Parameter(torch.ones(2, device="cuda"))
    assert repr(parameter).endswith("device='cuda:0', requires_grad=True)")
    assert "device='cuda:0'" in repr([torch.eye(2, device="cuda").to_sparse()])


def test_torch_prints_true_names(active: ModuleType) -> None:
    x = torch.ones(2, device="cuda")
    code = compile("text = repr(x)", f"{torch.__path__[0]}/a.py", "exec")
    names = {"x": x}
    exec(code, names)
    assert names["text"] == "tensor([1., 1.], device='dipu:0')"


def test_undo_prints_true_names(active: ModuleType) -> None:
    x = torch.ones(2, device="cuda")
    active.undo()
    assert repr(x) == "tensor([1., 1.], device='dipu:0')"


def test_where_devices_show_their_own_name_tensors_do_too(
    active: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    active.undo()
    monkeypatch.setenv("DITORCH_SHOW_DEVICE_AS_CUDA", "0")
    active.activate("reference")
    x = torch.ones(2, device="cuda")
    assert repr(x) == f"tensor([1., 1.], device='{x.device}')"
    assert x.device.type == "dipu"
