"""torch.cuda on the reference device and on plain CPU: values, signatures, undo."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.cuda.gds
from torch.cuda import Event as EventBefore
from torch.cuda import is_available as is_available_before
from torch.cuda import manual_seed as manual_seed_before

from deeplink import choose
from tests import warm

MODULES = [
    "torch.cuda", "torch.cuda.amp", "torch.cuda.gds", "torch.cuda.graphs",
    "torch.cuda.green_contexts", "torch.cuda.jiterator", "torch.cuda.memory", "torch.cuda.nccl",
    "torch.cuda.nvtx", "torch.cuda.profiler", "torch.cuda.random", "torch.cuda.sparse",
    "torch.cuda.streams", "torch.cuda.tunable", "torch.cuda._utils",
]  # fmt: skip


def prepare(vendor: str) -> SimpleNamespace:
    """The parts of ditorch, with nothing applied."""
    import ditorch

    ditorch.undo()
    from ditorch import calls, cuda_namespace, table
    from ditorch.patches import Patches
    from ditorch.target import load

    target = load(choose(vendor).vendor)
    return SimpleNamespace(
        target=target,
        patches=Patches(),
        calls=calls,
        table=table,
        device=target.device,
        apply=cuda_namespace.apply,
    )


@pytest.fixture(params=["reference", "cpu"])
def parts(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    made = prepare(request.param)
    yield made
    made.patches.undo()


@pytest.fixture
def mapped(parts: SimpleNamespace) -> SimpleNamespace:
    """torch.cuda is mapped, and nothing else is."""
    parts.apply(parts.patches, parts.target)
    return parts


@pytest.fixture
def reference() -> Iterator[SimpleNamespace]:
    made = prepare("reference")
    made.apply(made.patches, made.target)
    yield made
    torch.dipu.set_device(0)
    made.patches.undo()


@pytest.fixture
def cpu() -> Iterator[SimpleNamespace]:
    made = prepare("cpu")
    made.apply(made.patches, made.target)
    yield made
    made.patches.undo()


def snapshot() -> dict[tuple[str, str], Any]:
    """Every object of torch.cuda, its code, and what classes hold."""
    found: dict[tuple[str, str], Any] = {}
    for module in MODULES:
        for name, value in vars(importlib.import_module(module)).items():
            found[module, name] = (value, getattr(value, "__code__", None))
            if isinstance(value, type) and value.__module__.startswith("torch.cuda"):
                for attribute, held in vars(value).items():
                    if attribute not in ("__dict__", "__weakref__"):
                        found[f"{module}.{name}", attribute] = (held, None)
    return found


def signature(value: Any) -> str | None:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):
        return None


def test_undo_restores_every_object(parts: SimpleNamespace) -> None:
    before = snapshot()
    handles = vars(parts.target.module.Stream).copy()
    parts.apply(parts.patches, parts.target)
    assert torch.cuda.is_available()
    parts.patches.undo()
    after = snapshot()
    assert set(after) == set(before)
    changed = [
        key
        for key, (value, code) in before.items()
        if after[key][0] is not value or after[key][1] is not code
    ]
    assert changed == []
    assert vars(parts.target.module.Stream) == handles


def test_signatures_stay(parts: SimpleNamespace) -> None:
    def signatures() -> dict[str, str | None]:
        found = {}
        for name in parts.table.rows():
            value: Any = torch.cuda
            for part in name.split("."):
                value = getattr(value, part, None)
            found[name] = signature(value) if callable(value) else None
        return found

    before = signatures()
    parts.apply(parts.patches, parts.target)
    after = signatures()
    known = {name: text for name, text in before.items() if text is not None}
    assert len(known) > 150
    assert {name: after[name] for name in known} == known


def test_functions_stay_the_same_objects(parts: SimpleNamespace) -> None:
    functions = {n: v for n, v in vars(torch.cuda).items() if inspect.isfunction(v)}
    parts.apply(parts.patches, parts.target)
    moved = {n for n, v in functions.items() if getattr(torch.cuda, n) is not v}
    # lambdas and functions made by decorators cannot be changed in place
    assert moved <= {
        "_is_in_bad_fork", "_use_uvm", "caching_allocator_disabled", "use_mem_pool",
    }  # fmt: skip
    assert pickle.loads(pickle.dumps(torch.cuda.memory_allocated)) is torch.cuda.memory_allocated
    assert pickle.loads(pickle.dumps(torch.cuda.Stream)) is torch.cuda.Stream


def test_names_taken_beforehand_see_it(mapped: SimpleNamespace) -> None:
    assert is_available_before()
    manual_seed_before(3)
    assert torch.cuda.initial_seed() == 3
    assert EventBefore is torch.cuda.Event
    assert torch.cuda.streams.Event is torch.cuda.Event


def test_device_counts(mapped: SimpleNamespace) -> None:
    assert torch.cuda.is_available() is True
    assert torch.cuda.device_count() == (2 if mapped.device == "dipu" else 1)
    assert torch.cuda.current_device() == 0
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.is_bf16_supported(including_emulation=False)
    assert not torch.cuda.is_tf32_supported()
    assert torch.cuda.get_arch_list() == []


@pytest.mark.parametrize("device", [1, "dipu:1", "cuda:1", torch.device("cuda", 1)])
def test_a_device_by_any_name(reference: SimpleNamespace, device: Any) -> None:
    with torch.cuda.device(device):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(device)
    assert torch.cuda.current_device() == 1
    torch.cuda.synchronize(device)


@pytest.mark.parametrize("device", [0, None, "cuda", "cuda:0", torch.device("cuda", 0)])
def test_cudas_names_reach_the_vendors_functions(mapped: SimpleNamespace, device: Any) -> None:
    torch.cuda.synchronize(device)
    assert torch.cuda.get_device_name(device) == torch.cuda.get_device_properties(device).name
    assert torch.cuda.memory_allocated(device) >= 0
    assert torch.cuda.current_stream(device) == torch.cuda.default_stream(device)


def test_the_second_device_by_cudas_name(reference: SimpleNamespace) -> None:
    with torch.cuda.device("cuda:1"):
        assert torch.ones(1, device="dipu").device.index == 1
        inner = torch.cuda.Stream()
        assert inner.device_index == 1
    with torch.cuda.device_of(torch.ones(1, device="dipu:1")):
        assert torch.cuda.current_device() == 1
    with torch.cuda.device_of(torch.ones(1)):
        assert torch.cuda.current_device() == 0
    assert torch.cuda.Stream(device="cuda:1").device_index == 1
    assert torch.cuda.can_device_access_peer("cuda:0", torch.device("cuda", 1))


def test_properties_have_cudas_fields(mapped: SimpleNamespace) -> None:
    properties = torch.cuda.get_device_properties(0)
    assert (properties.major, properties.minor) == torch.cuda.get_device_capability()
    assert properties.total_memory == torch.cuda.mem_get_info()[1] > 0
    assert properties.multi_processor_count > 0
    assert properties.warp_size == 32
    assert properties.gcnArchName == properties.name  # inductor reads it, on a torch without CUDA


def test_capability_where_the_vendor_has_none(cpu: SimpleNamespace) -> None:
    assert torch.cuda.get_device_capability() == (7, 0)


def test_memory_is_counted_on_the_device(reference: SimpleNamespace) -> None:
    before = torch.cuda.memory_allocated()
    tensor = torch.empty(1024, 1024, device="dipu")
    assert torch.cuda.memory_allocated() - before == tensor.nbytes
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
    assert torch.cuda.memory.memory_reserved() >= tensor.nbytes
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated()
    del tensor
    assert torch.cuda.memory_allocated() == before
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    with pytest.warns(FutureWarning, match="memory_reserved"):
        assert torch.cuda.memory_cached() == torch.cuda.memory_reserved()


def test_memory_on_plain_cpu_is_not_counted(cpu: SimpleNamespace) -> None:
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
    assert torch.cuda.memory_stats() == {}
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    torch.cuda.empty_cache()
    assert "cpu memory summary" in torch.cuda.memory_summary()


def test_seeds_are_the_vendors(reference: SimpleNamespace) -> None:
    torch.cuda.manual_seed(5)
    first = torch.rand(4, device="dipu").cpu()
    torch.dipu.manual_seed(5)
    assert torch.equal(torch.rand(4, device="dipu").cpu(), first)


def test_seeds_on_plain_cpu_are_torchs_own(cpu: SimpleNamespace) -> None:
    torch.cuda.manual_seed_all(5)
    first = torch.rand(4)
    torch.default_generator.manual_seed(5)
    assert torch.equal(torch.rand(4), first)


def test_rng_state_goes_around(mapped: SimpleNamespace) -> None:
    state, states = torch.cuda.get_rng_state(), torch.cuda.get_rng_state_all()
    first = torch.rand(3, device=mapped.device).cpu()
    torch.cuda.set_rng_state(state, device="cuda")
    assert torch.equal(torch.rand(3, device=mapped.device).cpu(), first)
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device=mapped.device).cpu(), first)
    assert len(states) == len(torch.cuda.default_generators) == torch.cuda.device_count()


def test_streams_and_events(mapped: SimpleNamespace) -> None:
    stream = torch.cuda.Stream(priority=-1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    assert isinstance(stream, torch.cuda.Stream)
    assert isinstance(start, torch.cuda.Event)
    assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream)
    assert not isinstance(object(), torch.cuda.Stream)
    with torch.cuda.stream(stream=stream):
        assert torch.cuda.current_stream() == stream
        start.record()
        total = torch.ones(100, 100, device=mapped.device).sum()
        end.record()
    assert torch.cuda.current_stream() != stream
    torch.cuda.current_stream().wait_stream(stream)
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert float(total) == 10000
    total.record_stream(torch.cuda.current_stream())
    assert isinstance(stream.cuda_stream, int)
    with torch.cuda.stream(None):
        pass


def test_a_programs_own_stream_class(mapped: SimpleNamespace) -> None:
    class Mine(torch.cuda.Stream):
        pass

    assert isinstance(Mine(), torch.cuda.Stream)
    assert not isinstance(torch.cuda.Stream(), Mine)
    assert issubclass(Mine, torch.cuda.Stream)


def test_an_argument_that_the_vendor_lacks_is_reported(reference: SimpleNamespace) -> None:
    torch.cuda.Event(external=False)
    with pytest.warns(reference.calls.DitorchWarning, match="external"):
        torch.cuda.Event(external=True)


def test_legacy_tensor_types(mapped: SimpleNamespace) -> None:
    sized, listed = torch.cuda.FloatTensor(2, 3), torch.cuda.FloatTensor([1.0, 2.0])
    assert sized.shape == (2, 3)
    assert listed.tolist() == [1.0, 2.0]
    assert (listed.dtype, listed.device.type) == (torch.float32, mapped.device)
    assert torch.cuda.FloatTensor().numel() == 0
    assert torch.cuda.LongTensor(torch.Size([4])).shape == (4,)
    big = torch.cuda.DoubleTensor([1e300])
    assert (big.dtype, big.item()) == (torch.float64, 1e300)
    assert torch.cuda.BFloat16Tensor.dtype is torch.bfloat16


def test_instances_of_legacy_types(mapped: SimpleNamespace) -> None:
    tensor = torch.ones(2, device=mapped.device)
    assert isinstance(tensor, torch.cuda.FloatTensor)
    assert not isinstance(tensor.double(), torch.cuda.FloatTensor)
    assert not isinstance([1.0], torch.cuda.FloatTensor)
    assert isinstance(tensor, torch.cuda.FloatTensor | torch.cuda.HalfTensor)
    assert issubclass(torch.cuda.FloatTensor, torch.cuda.FloatTensor)
    assert not issubclass(torch.cuda.FloatTensor, torch.cuda.HalfTensor)
    if mapped.device != "cpu":
        assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)


def test_legacy_storage_types(mapped: SimpleNamespace) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")
        storage = torch.cuda.FloatStorage([1.0, 2.0])
        assert storage.tolist() == [1.0, 2.0]
        assert storage.device.type == mapped.device
        assert isinstance(storage, torch.cuda.FloatStorage)
        assert not isinstance(storage, torch.cuda.IntStorage)


def test_a_call_without_an_equivalent_warns_once_per_site(mapped: SimpleNamespace) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        values = [torch.cuda.utilization() for _ in range(2)]
        torch.cuda.utilization(device="cuda")
    assert values == [0, 0]
    assert [w.category for w in seen] == [mapped.calls.DitorchWarning] * 2
    assert {w.filename for w in seen} == {__file__}
    assert [m.count for m in mapped.calls.report().missed] == [2, 1]


def test_strict_names_call_place_and_alternative(
    mapped: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped.calls, "strict", lambda: True)
    with pytest.raises(mapped.calls.Unsupported) as raised:
        torch.cuda.temperature()
    assert "torch.cuda.temperature" in str(raised.value)
    assert f"{__file__}:" in str(raised.value)
    assert "the vendor's own monitor" in raised.value.hint


@pytest.mark.parametrize("call", ["GreenContext", "current_blas_handle"])
def test_what_would_give_wrong_results_raises_always(mapped: SimpleNamespace, call: str) -> None:
    with pytest.raises(mapped.calls.Unsupported, match=f"torch.cuda.{call} has no equivalent"):
        getattr(torch.cuda, call)()


@pytest.mark.parametrize("call", ["CUDAGraph", "MemPool"])
def test_graphs_raise_on_a_device_without_them(cpu: SimpleNamespace, call: str) -> None:
    with pytest.raises(cpu.calls.Unsupported, match=f"torch.cuda.{call} has no equivalent"):
        getattr(torch.cuda, call)()


def test_graphed_callables_are_the_callables_without_graphs(cpu: SimpleNamespace) -> None:
    layer = torch.nn.Linear(2, 2)
    with pytest.warns(cpu.calls.DitorchWarning, match="captures no graphs"):
        assert torch.cuda.make_graphed_callables(layer, (torch.ones(1, 2),)) is layer
    assert not torch.cuda.is_current_stream_capturing()


def test_a_cuda_graph_replays_on_the_reference_device(reference: SimpleNamespace) -> None:
    x = torch.zeros(3, device=reference.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        assert torch.cuda.is_current_stream_capturing()
        y = x * 2 + 1
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    graph.replay()
    torch.cuda.synchronize()
    assert isinstance(graph, torch.cuda.CUDAGraph)
    assert y.cpu().tolist() == [3.0, 5.0, 7.0]


def test_graphed_callables_follow_new_inputs_on_the_reference_device(
    reference: SimpleNamespace,
) -> None:
    layer = torch.nn.Linear(3, 2).to(reference.device)
    sample = torch.ones(4, 3, device=reference.device)
    graphed = torch.cuda.make_graphed_callables(layer, (sample.clone(),))
    found = graphed(2 * sample)
    assert torch.equal(found, torch.nn.functional.linear(2 * sample, layer.weight, layer.bias))


def test_nvtx_counts_depth(mapped: SimpleNamespace) -> None:
    assert [torch.cuda.nvtx.range_push(name) for name in "ab"] == [0, 1]
    assert [torch.cuda.nvtx.range_pop() for _ in "ab"] == [1, 0]
    with torch.cuda.nvtx.range("step {}", 3):
        torch.cuda.nvtx.mark("here")
    handle = torch.cuda.nvtx.range_start("a")
    torch.cuda.nvtx.range_end(handle)


def test_cudart(mapped: SimpleNamespace) -> None:
    runtime = torch.cuda.cudart()
    assert runtime.cudaMemGetInfo(0)[1] == torch.cuda.mem_get_info()[1]
    torch.cuda.check_error(0)
    with pytest.raises(torch.cuda.CudaError, match="2"):
        torch.cuda.check_error(2)
    with pytest.raises(mapped.calls.Unsupported, match=r"cudart\(\).cudaHostRegister"):
        runtime.cudaHostRegister(0, 0, 0)


def test_every_neutral_call_is_reported(mapped: SimpleNamespace) -> None:
    """Every function of torch.cuda.tunable raises or warns."""
    with pytest.warns(mapped.calls.DitorchWarning, match="TunableOp"):
        torch.cuda.tunable.enable(True)
    assert torch.cuda.tunable.is_enabled() is False


def test_lazy_calls_run_at_once(mapped: SimpleNamespace) -> None:
    done = []
    torch.cuda._lazy_call(lambda: done.append(1))
    torch.cuda._lazy_init()
    assert done == [1]
    assert not torch.cuda._is_in_bad_fork()


def test_used_names_are_reported(mapped: SimpleNamespace) -> None:
    torch.cuda.device_count()
    torch.cuda.memory.empty_cache()
    assert mapped.calls.report().used == ("torch.cuda.device_count", "torch.cuda.empty_cache")
    mapped.patches.undo()
    assert mapped.calls.report().used == ()


def test_torch_compile_folds_what_it_folds_with_cuda(mapped: SimpleNamespace) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def program(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return x + 1 + torch.cuda.current_device()
        return x

    torch.cuda.current_device()
    torch.ones(1, device=mapped.device)  # the device is initialised
    assert program(torch.ones(2)).tolist() == [2.0, 2.0]
    torch.cuda.device_count()
    assert program(torch.zeros(2)).tolist() == [1.0, 1.0]
    assert len(graphs) == 1


def test_torch_compile_breaks_where_torch_does(mapped: SimpleNamespace) -> None:
    """torch itself does not trace this call: the graph breaks, and the answer is right."""

    @torch.compile(backend="eager")
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16() if torch.cuda.is_bf16_supported() else x

    assert program(torch.ones(2)).dtype is torch.bfloat16


def test_names_of_another_torch_are_passed_over(
    parts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cuda, "power_draw")
    monkeypatch.setitem(sys.modules, "torch.cuda.green_contexts", None)
    parts.apply(parts.patches, parts.target)
    assert not hasattr(torch.cuda, "power_draw")
    assert torch.cuda.is_available()


def test_amp_runs_on_the_target(active: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        scaler = torch.cuda.amp.GradScaler()
        with torch.cuda.amp.autocast():
            product = torch.ones(2, 2, device="dipu") @ torch.ones(2, 2, device="dipu")
    assert product.dtype is torch.float16
    assert scaler.is_enabled()


def test_triton_sees_no_cuda_driver(active: ModuleType, tmp_path: Path) -> None:
    """Query as `triton.backends.nvidia.driver` does, in a small package in the place of triton.

    With triton 3.9 itself torch.compile was tried by hand.
    """
    driver = ModuleType("triton.backends.nvidia.driver")
    source = "import torch\ndef is_active(): return torch.cuda.is_available()"
    exec(compile(source, str(tmp_path / "driver.py"), "exec"), driver.__dict__)
    assert driver.is_active() is False
    assert torch.cuda.is_available() is True


@pytest.mark.parametrize("vendor", ["reference", "cpu"])
def test_the_random_state_of_cuda_is_read_and_set(vendor: str, active: ModuleType) -> None:
    active.undo()
    active.activate(vendor)
    torch.cuda.manual_seed(4)
    state = torch.cuda.get_rng_state()
    first = torch.rand(3, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(3, device="cuda").tolist() == first


def test_the_random_state_of_cuda_has_an_offset(active: ModuleType) -> None:
    torch.cuda.manual_seed(4)
    assert torch.cuda.get_rng_state().numel() == 16
    first, second = (torch.rand(3, device="cuda").tolist() for _ in range(2))
    assert torch.cuda._get_rng_state_offset() == 8
    torch.cuda._set_rng_state_offset(4)
    assert torch.rand(3, device="cuda").tolist() == second != first


@pytest.mark.parametrize("vendor", ["reference", "cpu"])
def test_every_public_function_works_or_raises_what_the_table_says(
    vendor: str, tmp_path: Path
) -> None:
    """In a process of its own, in which a crash has the name of the call."""
    script = Path(__file__).with_name("every_cuda_name.py")
    here = {**os.environ, "DITORCH_QUIET": "1", "DEEPLINK_VENDOR": vendor}
    done = warm.run([str(script), str(tmp_path)], here, warn="ignore")
    found = {name: (did, wanted) for name, did, wanted in map(json.loads, done.stdout.splitlines())}
    assert len(found) > 150, done.stderr
    assert {name: did for name, (did, wanted) in found.items() if did != wanted} == {}
    assert done.returncode == 0, done.stderr


class Graph:
    """A vendor's graph: it records what is called."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.calls: list[Any] = [keep_graph]

    def replay(self) -> None:
        self.calls.append("replay")


class CapturesInto:
    """A vendor's context manager, with its own name of the graph and without later arguments."""

    def __init__(
        self, acme_graph: Graph, pool: Any = None, stream: Any = None, capture_error_mode: str = ""
    ) -> None:
        self.graph, self.pool = acme_graph, pool

    def __enter__(self) -> None:
        self.graph.calls.append(("capture", self.pool))

    def __exit__(self, *error: object) -> None:
        self.graph.calls.append("end")


class Pool:
    """A vendor's memory pool."""

    def __init__(self, allocator: Any = None) -> None:
        self.id = (0, 7)


@pytest.mark.parametrize("name", ["Graph", "DIPUGraph"])
def test_graphs_of_a_vendor_are_cudas(
    name: str, reference: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a device module that captures graphs, in the names of torch.cuda."""
    parts = reference
    parts.patches.undo()
    theirs: Any = {
        name: Graph,
        "graph": CapturesInto,
        "graph_pool_handle": lambda: (0, 3),
        "is_current_stream_capturing": lambda: True,
        "make_graphed_callables": lambda callables, sample_args: ("graphed", callables),
        "MemPool": Pool,
        "use_mem_pool": lambda pool, device=None: ("inside", pool.id, device),
    }
    for other in ("Graph", "DIPUGraph"):
        monkeypatch.delattr(torch.dipu, other, raising=False)
    for key, value in theirs.items():
        monkeypatch.setattr(torch.dipu, key, value, raising=False)
    parts.apply(parts.patches, parts.target)
    graph = torch.cuda.CUDAGraph()
    assert isinstance(graph, torch.cuda.CUDAGraph)
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        pass
    with torch.cuda.graph(cuda_graph=graph):
        pass
    graph.replay()
    captures = [("capture", (0, 3)), "end", ("capture", None), "end"]
    assert graph.calls == [False, *captures, "replay"]
    assert torch.cuda.is_current_stream_capturing()
    assert torch.cuda.make_graphed_callables("f", ()) == ("graphed", "f")
    pool = torch.cuda.MemPool()
    assert torch.cuda.use_mem_pool(pool, "cuda:1") == ("inside", (0, 7), "dipu:1")
    row = parts.table.find("CUDAGraph")
    from ditorch.cuda_namespace import missing

    assert missing(row, parts.target) is None
