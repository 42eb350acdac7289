"""Graphs of the device: capture, replay, their memory, and what a capture refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.torch_dipu.interpreter import output_of


def _captured(function: Callable[[], object]) -> torch.dipu.Graph:
    graph = torch.dipu.Graph()
    with torch.dipu.graph(graph):
        function()
    return graph


def test_a_replay_repeats_the_calls_on_new_input() -> None:
    x = torch.arange(4.0, device="dipu")
    graph = torch.dipu.Graph()
    with torch.dipu.graph(graph):
        y = (x * 2 + 1).sum()
    for start in (10.0, 20.0):
        x.copy_(torch.arange(start, start + 4))
        graph.replay()
        assert y.item() == (torch.arange(start, start + 4) * 2 + 1).sum().item()


def test_a_capture_changes_no_memory_of_the_program() -> None:
    x, norm = torch.ones(3, device="dipu"), nn.BatchNorm1d(3).to("dipu")
    before = copy.deepcopy(norm.state_dict())

    def step() -> None:
        x.add_(1)
        norm(torch.randn(8, 3, device="dipu"))

    graph = _captured(step)
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    graph.replay()
    graph.replay()
    assert x.tolist() == [3.0, 3.0, 3.0]
    assert norm.num_batches_tracked.item() == 2


def test_the_graph_of_torch_accelerator_captures_and_replays() -> None:
    if not hasattr(torch.accelerator, "Graph"):
        pytest.skip("torch.accelerator.Graph is of torch 2.13")
    x = torch.zeros(2, device="dipu")
    graph = torch.accelerator.Graph()
    with torch.Stream("dipu"), graph:
        x += 1
    graph.replay()
    graph.replay()
    assert x.tolist() == [2.0, 2.0]
    second = torch.accelerator.Graph(pool=graph.pool())
    graph.reset()
    with pytest.raises(RuntimeError, match="holds nothing to replay"):
        graph.replay()
    with pytest.raises(RuntimeError, match="holds nothing to instantiate"):
        second.instantiate()


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(144, 8)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layers(x), 0.25)


def _training(optimizer: str) -> tuple[_Net, torch.optim.Optimizer, Tensor, Tensor]:
    torch.manual_seed(0)
    net = _Net().to("dipu")
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, 0.01, capturable=True),
    }
    x, y = torch.zeros(5, 1, 8, 8, device="dipu"), torch.zeros(5, dtype=torch.long, device="dipu")
    return net, kinds[optimizer](net.parameters()), x, y


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_ten_replays_of_a_training_step_equal_eager_bit_for_bit(optimizer: str) -> None:
    # a DataLoader with pinned memory has set another number for threads that start later
    torch.set_num_threads(torch.get_num_threads())
    data = torch.Generator().manual_seed(1)
    batches = [
        (torch.randn(5, 1, 8, 8, generator=data), torch.randint(8, (5,), generator=data))
        for _ in range(13)
    ]
    results: list[list[Tensor]] = []
    for graphed in (False, True):
        net, optim, x, y = _training(optimizer)
        losses = []
        with torch.dipu.stream(torch.dipu.Stream()):
            for images, labels in batches[:3]:  # states of the optimizer are allocated here
                x.copy_(images)
                y.copy_(labels)
                _step(net, optim, x, y)
        graph = torch.dipu.Graph()
        if graphed:
            with torch.dipu.graph(graph):
                loss = _step(net, optim, x, y)
        for images, labels in batches[3:]:
            x.copy_(images)
            y.copy_(labels)
            if graphed:
                graph.replay()
            else:
                loss = _step(net, optim, x, y)
            losses.append(loss.cpu())
        results.append([*losses, *(value.cpu() for value in net.state_dict().values())])
    assert len(set(results[0][:10])) == 10
    for eager, replayed in zip(*results, strict=True):
        assert torch.equal(eager, replayed)


def test_random_numbers_advance_as_without_a_graph() -> None:
    own = torch.Generator("dipu").manual_seed(5)

    def draw() -> tuple[Tensor, Tensor]:
        return torch.rand(3, device="dipu"), torch.randn(2, device="dipu", generator=own)

    torch.manual_seed(7)
    eager = [[t.tolist() for t in draw()] for _ in range(3)]
    own.manual_seed(5)
    torch.manual_seed(7)
    state = torch.dipu.get_rng_state()
    graph = torch.dipu.Graph()
    with torch.dipu.graph(graph):
        drawn = draw()
    assert torch.equal(torch.dipu.get_rng_state(), state)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append([t.tolist() for t in drawn])
    assert replayed == eager


def test_memory_of_a_capture_is_private_until_the_graph_is_reset() -> None:
    x = torch.ones(1 << 20, device="dipu")
    torch.dipu.empty_cache()
    graph = torch.dipu.Graph()
    with torch.dipu.graph(graph):
        y = x + 1
        y = y + 1  # the first sum is freed: its memory stays the graph's
    outside = [torch.zeros(1 << 20, device="dipu") for _ in range(3)]
    graph.replay()
    assert all(t.count_nonzero().item() == 0 for t in outside)
    assert y.mean().item() == 3.0
    segments = [s for s in torch.dipu.memory_snapshot() if s["segment_pool_id"] == graph.pool()]
    assert segments
    del y
    torch.dipu.empty_cache()
    reserved = torch.dipu.memory_reserved()
    graph.reset()
    torch.dipu.empty_cache()
    assert torch.dipu.memory_reserved() < reserved


def test_graphs_share_a_pool() -> None:
    x = torch.ones(1 << 20, device="dipu")
    first, second = torch.dipu.Graph(), torch.dipu.Graph()
    with torch.dipu.graph(first):
        y = x * 2
    with torch.dipu.graph(second, pool=first.pool()):
        z = y + 1
    assert second.pool() == first.pool()
    x.fill_(5)
    first.replay()
    second.replay()
    assert z.mean().item() == 11.0


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "synchronize": lambda x: torch.dipu.synchronize(),
    "stream.synchronize": lambda x: torch.dipu.current_stream().synchronize(),
    "stream.query": lambda x: torch.dipu.current_stream().query(),
    "event.synchronize": lambda x: torch.dipu.current_stream().record_event().synchronize(),
    "cpu": lambda x: x.cpu(),
    "to device": lambda x: torch.ones(3).to("dipu"),
    "nonzero": lambda x: x.nonzero(),
    "masked_select": lambda x: x[x > 0],
    "host_view": lambda x: torch.dipu.host_view(x),
    "sparse": lambda x: torch.ones(2, 2, device="dipu").to_sparse(),
}


@pytest.mark.parametrize("call", REFUSED)
def test_a_capture_refuses_what_a_replay_could_not_repeat(call: str) -> None:
    x = torch.ones(3, device="dipu")
    graph = torch.dipu.Graph()
    with (
        pytest.raises(RuntimeError, match=r"(?s)not permitted while a graph\s+captures.*Hint:"),
        torch.dipu.graph(graph),
    ):
        REFUSED[call](x)
    assert not torch.dipu.is_current_stream_capturing()
    assert x.add(1).tolist() == [2.0, 2.0, 2.0]


def test_the_default_stream_cannot_be_captured() -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.dipu.Graph().capture_begin()


def test_a_replay_whose_input_is_gone_says_so() -> None:
    held = [torch.ones(3, device="dipu")]
    graph = _captured(lambda: held[0].mul(2))
    held.clear()
    with pytest.raises(RuntimeError, match=r"the captured mul.* uses was freed.*Hint: keep"):
        graph.replay()


def test_pinned_memory_is_copied_in_each_replay() -> None:
    source, back = torch.ones(4).pin_memory(), torch.zeros(4).pin_memory()
    x = torch.zeros(4, device="dipu")

    def step() -> None:
        x.copy_(source, non_blocking=True)
        back.copy_(x * 2, non_blocking=True)

    graph = _captured(step)
    source.fill_(3)
    graph.replay()
    torch.dipu.synchronize()
    assert back.tolist() == [6.0, 6.0, 6.0, 6.0]


def test_a_side_stream_joins_the_capture_by_an_event() -> None:
    x = torch.ones(3, device="dipu")
    side = torch.dipu.Stream()
    graph = torch.dipu.Graph()
    with torch.dipu.graph(graph):
        side.wait_stream(torch.dipu.current_stream())
        with torch.dipu.stream(side):
            y = x + 1
        torch.dipu.current_stream().wait_stream(side)
        z = y * 2
    x.fill_(4)
    graph.replay()
    assert z.tolist() == [10.0, 10.0, 10.0]


def test_calls_on_other_streams_are_not_captured() -> None:
    x, y = torch.zeros(2, device="dipu"), torch.zeros(2, device="dipu")
    graph = torch.dipu.Graph()
    with torch.dipu.graph(graph):
        x += 1
        with torch.dipu.stream(torch.dipu.Stream()):
            y += 1
    graph.replay()
    assert (x.tolist(), y.tolist()) == ([1.0, 1.0], [1.0, 1.0])


@pytest.mark.filterwarnings("ignore:`torch.jit.")
def test_a_compiled_function_is_captured() -> None:
    compiled = torch.compile(lambda t: (t.sin() * 2).softmax(-1))
    x = torch.randn(4, 8, device="dipu")
    compiled(x)
    graph = torch.dipu.Graph()
    with torch.dipu.graph(graph):
        y = compiled(x)
    x.copy_(torch.arange(32.0).view(4, 8))
    graph.replay()
    expected = (torch.arange(32.0).view(4, 8).sin() * 2).softmax(-1)
    torch._dynamo.reset()
    torch.testing.assert_close(y.cpu(), expected)


def test_the_calls_of_a_graph_are_dumped(tmp_path: Path) -> None:
    x = torch.ones(2, device="dipu")
    graph = _captured(lambda: x.mul_(2).add_(1))
    graph.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    assert text.index("mul_") < text.index("add_")


def test_make_graphed_callables_trains_as_eager_does() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to("dipu")
    replaced = copy.deepcopy(plain)
    sample = torch.zeros(3, 4, device="dipu", requires_grad=True)
    graphed = torch.dipu.make_graphed_callables(replaced, (sample,))
    assert graphed is replaced
    for _ in range(3):
        x = torch.randn(3, 4, device="dipu")
        grads = []
        for net in (plain, graphed):
            given = x.clone().requires_grad_()
            net.zero_grad()
            loss = net(given).square().sum()
            loss.backward()
            grads.append([loss.detach(), given.grad, *(p.grad for p in net.parameters())])
        for one, other in zip(*grads, strict=True):
            assert torch.equal(one, other)
    graphed.eval()
    assert torch.equal(graphed(x), plain(x))


def test_make_graphed_callables_takes_several_functions() -> None:
    first, second = torch.dipu.make_graphed_callables(
        (lambda a: a * 2, lambda a, b: {"sum": a + b}),
        (
            (torch.ones(2, device="dipu", requires_grad=True),),
            (torch.ones(2, device="dipu", requires_grad=True), torch.ones(2, device="dipu")),
        ),
    )
    x = torch.tensor([1.0, 5.0], device="dipu", requires_grad=True)
    result = second(first(x), torch.tensor([1.0, 1.0], device="dipu"))
    result["sum"].sum().backward()
    assert result["sum"].tolist() == [3.0, 11.0]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_mem_pool_holds_the_tensors_of_its_block() -> None:
    pool = torch.dipu.MemPool()
    with torch.dipu.use_mem_pool(pool):
        inside = torch.ones(100, device="dipu")
    outside = torch.ones(100, device="dipu")
    ranges = [(s["address"], s["address"] + s["total_size"]) for s in pool.snapshot()]
    assert any(low <= inside.data_ptr() < high for low, high in ranges)
    assert not any(low <= outside.data_ptr() < high for low, high in ranges)


def test_a_chip_in_python_records_and_replays_host_calls() -> None:
    source = """
import ctypes
from torch_dipu import runtime
log = []
class Chip:
    def __getattr__(self, name):
        if name in runtime.OPTIONAL:
            raise AttributeError(name)
        return lambda *a: 0
    def capture_host(self, device, stream, call): log.append(call)
table = runtime._Table.from_address(runtime.table_address(Chip()))
ran, released = [], []
run = runtime._CHostCall._fields_[0][1](lambda data: ran.append(data) or 0)
release = runtime._CHostCall._fields_[1][1](released.append)
call = runtime._CHostCall(run, release, 7)
print(table.capture_host(0, 1, ctypes.pointer(call)))
log[0](); log[0]()
print(ran, released)
log.clear()
print(released)
"""
    assert output_of(source).splitlines() == ["0", "[7, 7] []", "[7]"]
