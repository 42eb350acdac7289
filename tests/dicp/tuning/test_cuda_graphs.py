"""Recordings of CUDA graphs: no result that is held is written over, and none is copied in vain."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deeplink_vendors.cuda import graph, replay
from dicp.dynamo_bridge.tuning import autotune, bypass

pytestmark = [  # inductor's own
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


class OnHost:
    """Records on the CPU: `x * weight`, written to one place by every run."""

    def __init__(self) -> None:
        self.ran = self.recorded = 0

    def lie(self, inputs: list[Any], places: list[int | None], numbers: list[int]) -> bool:
        return all(inputs[i].data_ptr() == places[i] for i in numbers)

    def run(self, inputs: list[Any]) -> list[Any]:
        self.ran += 1
        return [inputs[0] * inputs[1], 7]

    def record(self, inputs: list[Any]) -> tuple[Any, list[Any]]:
        self.recorded += 1
        weight, place = inputs[1], torch.empty_like(inputs[0])

        def replayed(inputs: list[Any]) -> None:
            torch.mul(inputs[0], weight, out=place)

        return replayed, [place, 7]


def ring(weight: Tensor) -> tuple[Any, OnHost]:
    """Return a graph that takes a number, and its counter of calls, after the first call."""
    recorder = OnHost()
    made = replay.Ring(lambda: recorder, [1])

    def call(value: float, *sizes: int, weight: Tensor = weight) -> Tensor:
        return made([torch.full((2,), value), weight, *sizes])[0]

    assert call(1.0).tolist() == [3.0, 3.0] and recorder.ran == 1
    return call, recorder


def test_a_result_that_is_not_held_frees_its_memory_for_the_next() -> None:
    call, recorder = ring(torch.full((2,), 3.0))
    places = {call(float(i)).data_ptr() for i in range(5)}
    assert len(places) == 1 and (recorder.ran, recorder.recorded) == (1, 1)


def test_a_loop_that_keeps_its_last_result_needs_two_recordings() -> None:
    call, recorder = ring(torch.full((2,), 3.0))
    last = call(1.0)
    for i in range(2, 6):
        last, before = call(float(i)), last
        assert (last[0], before[0]) == (3.0 * i, 3.0 * (i - 1))
        del before
    assert recorder.recorded == 2


def test_however_many_results_are_held_each_stays() -> None:
    call, recorder = ring(torch.full((2,), 3.0))
    held = [call(float(i)) for i in range(8)]
    views = [call(float(i))[1:] for i in range(8)]  # a view holds as much
    assert [x[0].item() for x in held] == [3.0 * i for i in range(8)]
    assert [x[0].item() for x in views] == [3.0 * i for i in range(8)]
    assert (recorder.ran, recorder.recorded) == (1, replay.MOST)


def test_weights_elsewhere_are_recorded_anew_but_not_without_end() -> None:
    call, recorder = ring(torch.full((2,), 3.0))
    call(1.0)
    weights = [torch.full((2,), float(i)) for i in range(replay.MOVES + 2)]
    for i, weight in enumerate(weights):
        assert [call(2.0, weight=weight)[0].item() for _ in range(2)] == [2.0 * i] * 2
    assert recorder.recorded == replay.MOVES < len(weights)


def test_other_sizes_have_recordings_of_their_own_up_to_a_number() -> None:
    call, recorder = ring(torch.full((2,), 3.0))
    for size in range(replay.SIZES + 2):
        for _ in range(3):
            assert call(float(size), size)[0] == 3.0 * size
    assert recorder.recorded == replay.SIZES


class Step:
    """The sum of `x * weight`, and a backward that reads that product where forward put it."""

    def __init__(self) -> None:
        self.weight = torch.full((8,), 3.0)
        self.recorders = Forward(), Forward()
        self.forward = replay.Ring(lambda: self.recorders[0], [1], "forward")
        self.backward = replay.Ring(lambda: self.recorders[1], [1], "backward")

    def both(self, value: float) -> tuple[Tensor, Tensor]:
        """The result of a step, and what backward needs."""
        result, kept = self.forward([torch.full((8,), value), self.weight])
        return result, kept

    def gradient(self, kept: Tensor) -> Tensor:
        found: Tensor = self.backward([torch.full((8,), 2.0), kept])[1]
        return found

    def recorded(self) -> tuple[int, int]:
        return self.recorders[0].recorded, self.recorders[1].recorded


class Forward(OnHost):
    """The sum of `x * y`, and the product; no recording keeps y, as none on CUDA does."""

    def run(self, inputs: list[Any]) -> list[Any]:
        self.ran += 1
        return [(inputs[0] * inputs[1]).sum(), inputs[0] * inputs[1]]

    def record(self, inputs: list[Any]) -> tuple[Any, list[Any]]:
        self.recorded += 1
        place, total = torch.empty_like(inputs[0]), torch.empty(())

        def replayed(inputs: list[Any]) -> None:
            torch.mul(*inputs, out=place)
            total.copy_(place.sum())

        return replayed, [total, place]


def test_training_is_one_recording_of_forward_and_one_of_backward() -> None:
    step = Step()
    for i in range(6):
        total, kept = step.both(float(i))
        assert (total.item(), step.gradient(kept)[0].item()) == (24.0 * i, 6.0 * i)
        del total, kept
    assert step.recorded() == (1, 1)


def test_losses_that_are_held_are_copies_and_the_rest_is_recorded_as_before() -> None:
    step, losses = Step(), []
    for i in range(8):
        total, kept = step.both(float(i))
        losses.append(total)
        assert step.gradient(kept)[0].item() == 6.0 * i
        del total, kept
    assert [loss.item() for loss in losses] == [24.0 * i for i in range(8)]
    assert step.recorded() == (2, 1)  # forward once more, when a loss was found to be held


def test_steps_under_way_at_once_have_recordings_of_their_own_up_to_a_number() -> None:
    step = Step()
    for many in (2, 2, 4, 4):
        for _ in range(3):
            made = [step.both(float(i))[1] for i in range(many)]
            assert [step.gradient(kept)[0].item() for kept in made] == [
                6.0 * i for i in range(many)
            ]
            del made
    assert step.recorded() == (replay.MOST_TRAINED, replay.MOST_TRAINED)


def test_without_memory_for_a_recording_a_step_runs_without_one() -> None:
    step = Step()

    def record(inputs: list[Any]) -> Any:
        raise torch.OutOfMemoryError("none left")

    step.recorders[0].record = record  # type: ignore[method-assign]
    assert [step.both(float(i))[0].item() for i in range(4)] == [0.0, 24.0, 48.0, 72.0]
    assert step.recorders[0].ran == 4


@cuda
def test_results_of_a_model_stay_on_cuda() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
    inputs = [torch.randn(4, 64, device="cuda") for _ in range(8)]
    with torch.no_grad():
        compiled = torch.compile(model, backend=graph.backend, fullgraph=True)
        held = [compiled(x) for x in inputs]
        for x, result in zip(inputs, held, strict=True):
            torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
        del held, result
        assert len({compiled(x).data_ptr() for x in inputs}) == 1
        model[0].weight.mul_(2)
        torch.testing.assert_close(compiled(inputs[0]), model(inputs[0]), rtol=1e-4, atol=1e-5)
        model[0].weight = nn.Parameter(torch.randn(64, 64, device="cuda"))
        for x in inputs:
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@cuda
def test_a_buffer_is_written_once_a_call_on_cuda() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + self.count

    model = Counting().cuda()
    x = torch.zeros(4, device="cuda")
    with torch.no_grad():
        compiled = torch.compile(model, backend=graph.backend, fullgraph=True)
        assert [compiled(x)[0].item() for _ in range(6)] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@cuda
def test_sizes_that_change_and_odd_inputs_on_cuda() -> None:
    model = nn.Linear(16, 16).cuda()
    data = torch.randn(4096, device="cuda")
    with torch.no_grad():
        compiled = torch.compile(model, backend=graph.backend, dynamic=True)
        for rows in (2, 3, 5, 2, 3, 5, 2, 3, 5):
            x = data[rows : rows + rows * 16].view(rows, 16)  # some do not lie on 16 bytes
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            mine = compiled(data[:32].view(2, 16))
        torch.cuda.synchronize()
        torch.testing.assert_close(mine, model(data[:32].view(2, 16)), rtol=1e-4, atol=1e-5)


def _plain(run: Any, x: Any, held: list[Any]) -> None:
    run(x()).square().mean().backward()


def _holding(run: Any, x: Any, held: list[Any]) -> None:
    held.append(run(x()))
    held[-1].square().mean().backward()


def _accumulating(run: Any, x: Any, held: list[Any]) -> None:
    for _ in range(3):
        run(x()).square().mean().backward()


def _two_at_once(run: Any, x: Any, held: list[Any]) -> None:
    (run(x()) * run(x())).mean().backward()


def _without_backward(run: Any, x: Any, held: list[Any]) -> None:
    held.append(run(x()).sum())
    run(x()).square().mean().backward()


def _retaining(run: Any, x: Any, held: list[Any]) -> None:
    loss = run(x()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


@cuda
@pytest.mark.parametrize(
    "program", [_plain, _holding, _accumulating, _two_at_once, _without_backward, _retaining]
)
def test_training_by_recordings_is_as_eager_on_cuda(program: Any) -> None:
    def train(model: nn.Module, run: Any) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        generator, held = torch.Generator("cuda").manual_seed(1), list[Any]()
        for _ in range(10):
            optimizer.zero_grad()
            program(run, lambda: torch.randn(32, 64, device="cuda", generator=generator), held)
            optimizer.step()
        return [x.detach() for x in (*model.parameters(), *model.buffers(), *held)]

    torch.manual_seed(3)
    layers = nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Linear(256, 64)
    model = nn.Sequential(*layers).cuda()
    same = copy.deepcopy(model)
    compiled = torch.compile(model, backend=graph.backend, fullgraph=True)
    for mine, plain in zip(train(model, compiled), train(same, same), strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-4)


@cuda
def test_graphs_one_after_another_on_cuda() -> None:
    first, second = nn.Linear(16, 16).cuda(), nn.Linear(16, 16).cuda()

    def model(x: Tensor) -> Tensor:
        x = torch.relu(first(x))
        torch._dynamo.graph_break()
        return second(x) + x

    x = torch.randn(4, 16, device="cuda")
    with torch.inference_mode():
        compiled = torch.compile(model, backend=graph.backend)
        mine, plain = x, x
        for _ in range(8):
            mine, plain = compiled(mine), model(plain)
            torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-4)


@cuda
@pytest.mark.parametrize(("compiled", "eager"), [(1, 8), (8, 1)])
def test_steps_are_distinguished_by_what_the_device_does_after_a_call(
    compiled: int, eager: int
) -> None:
    x, told = torch.ones(1, device="cuda"), list[autotune.Decision]()
    whole = bypass.Shortcut(lambda x: compiled, lambda x: eager)
    whole.measure(bypass._key((x,), {}), told.append, training=True)
    call = whole.call()
    while not told:
        torch.cuda._sleep(100_000 * call(x))  # no call waits for it
    assert told[0].winner == ("compiled" if compiled < eager else "eager")
