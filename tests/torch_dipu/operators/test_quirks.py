"""Faults of the reference device: each can be seen when it is on, and is gone when it is off."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import torch

from tests.torch_dipu.interpreter import output_of, run_python


def test_no_float64_refuses_float64_and_nothing_else() -> None:
    double = torch.ones(2, dtype=torch.float64, device="dipu")
    with torch.dipu.quirk("no_float64"):
        with pytest.raises(RuntimeError, match="does not support float64"):
            double.add(1)
        with pytest.raises(RuntimeError, match="Double tensors are not supported"):
            torch.ones(2, device="dipu").double()
        assert torch.ones(2, device="dipu").add(1).tolist() == [2.0, 2.0]
    assert double.add(1).tolist() == [2.0, 2.0]


def test_no_float64_for_one_operator_leaves_the_others_alone() -> None:
    with torch.dipu.quirk("no_float64", "exp"):
        double = torch.ones(2, dtype=torch.float64, device="dipu")
        with pytest.raises(RuntimeError, match="exp does not support float64"):
            double.exp()
        assert double.add(1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["mm", "sum"])
def test_bf16_accumulation_loses_digits(name: str) -> None:
    a = torch.rand(64, 4096, device="dipu")
    function = {"mm": lambda: a @ a.t(), "sum": lambda: a.sum(1)}[name]
    exact = function()
    with torch.dipu.quirk("bf16_accumulate"):
        error = (function() - exact).abs().max() / exact.abs().max()
    assert 1e-3 < error.item() < 0.2
    assert torch.equal(function().cpu(), exact.cpu())


def test_ignored_strides_give_a_wrong_result_for_a_transposed_input() -> None:
    a = torch.arange(6.0, device="dipu").view(2, 3)
    zero = torch.zeros(3, 2, device="dipu")
    with torch.dipu.quirk("ignore_strides", "add"):
        wrong = (a.t() + zero).tolist()
        right = (a + a).tolist()
    assert wrong == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert right == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert (a.t() + zero).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_a_wrong_epsilon_changes_a_normalisation() -> None:
    x = 1e-3 * torch.randn(4, 8, device="dipu")
    right = torch.layer_norm(x, (8,), eps=1e-5)
    with torch.dipu.quirk("wrong_epsilon", factor=100.0):
        wrong = torch.layer_norm(x, (8,), eps=1e-5)
    expected = torch.layer_norm(x.cpu(), (8,), eps=1e-3)
    torch.testing.assert_close(wrong.cpu(), expected)
    assert not torch.allclose(wrong.cpu(), right.cpu())


def test_a_nan_appears_at_the_chosen_call_only() -> None:
    x = torch.ones(4, device="dipu")
    with torch.dipu.quirk("nan", "exp", call=2):
        counts = [x.exp().isnan().sum().item() for _ in range(3)]
    assert counts == [0, 1, 0]
    assert x.exp().isnan().sum().item() == 0


def test_an_overrun_changes_the_bytes_after_the_output() -> None:
    room = torch.zeros(32, device="dipu")
    ones = torch.ones(4, device="dipu")
    with torch.dipu.quirk("overrun", "add", nbytes=8):
        torch.add(ones, ones, out=room[:4])
    assert room[:4].tolist() == [2.0] * 4
    assert room[4:6].isnan().tolist() == [True, True]
    assert room[6:].tolist() == [0.0] * 26


def in_time(seconds: float, ask: Callable[[], tuple[bool, ...]]) -> tuple[bool, ...]:
    """Return the answer within the time; retry where the machine delayed the host."""
    while True:
        torch.dipu.synchronize()
        begun = time.monotonic()
        found = ask()
        if time.monotonic() - begun < seconds:
            return found


def test_with_latency_a_launch_returns_before_the_work_is_done() -> None:
    x = torch.ones(4, device="dipu")
    start, end = (torch.dipu.Event(enable_timing=True) for _ in range(2))

    def launch() -> tuple[bool, ...]:
        start.record()
        x.mul(2)
        end.record()
        return end.query(), torch.dipu.current_stream().query()

    begun = time.monotonic()
    with torch.dipu.quirk("latency", "mul", ms=200.0):
        assert in_time(0.2, launch) == (False, False)
        torch.dipu.synchronize()
    assert end.query()
    assert 200 <= start.elapsed_time(end) <= 1000 * (time.monotonic() - begun)


def test_with_latency_another_stream_is_not_held_up() -> None:
    x = torch.ones(4, device="dipu")
    slow, fast = torch.dipu.Stream(), torch.dipu.Stream()

    def launch() -> tuple[bool, ...]:
        with torch.dipu.quirk("latency", "mul", ms=200.0), torch.dipu.stream(slow):
            x.mul(2)
        at_once = fast.query(), slow.query()
        fast.wait_stream(slow)
        with torch.dipu.stream(fast):
            x.add(1)
        return *at_once, fast.query()

    assert in_time(0.2, launch) == (True, False, False)
    torch.dipu.synchronize()
    assert fast.query()


def test_reading_a_value_waits_for_the_work() -> None:
    x = torch.ones(4, device="dipu")
    with torch.dipu.quirk("latency", "mul", ms=100.0):
        before = time.perf_counter()
        assert x.mul(2).sum().item() == 8.0
    assert time.perf_counter() - before > 0.09


def test_a_late_copy_read_too_early_is_stale() -> None:
    source = torch.ones(4, device="dipu")
    target = torch.zeros(4).pin_memory()
    with torch.dipu.quirk("late_copy"):
        target.copy_(source, non_blocking=True)
        early = target.tolist()
        torch.dipu.synchronize()
    assert early == [0.0] * 4
    assert target.tolist() == [1.0] * 4


def test_a_late_copy_is_right_after_its_event() -> None:
    source = torch.ones(4, device="dipu")
    target = torch.zeros(4).pin_memory()
    event = torch.dipu.Event()
    with torch.dipu.quirk("late_copy"):
        target.copy_(source, non_blocking=True)
        event.record()
        event.synchronize()
        assert target.tolist() == [1.0] * 4


def test_a_blocking_copy_is_never_late() -> None:
    source = torch.ones(4, device="dipu")
    with torch.dipu.quirk("late_copy"):
        assert source.cpu().tolist() == [1.0] * 4


def test_out_of_memory_at_the_chosen_call() -> None:
    x = torch.ones(4, device="dipu")
    with torch.dipu.quirk("out_of_memory", "exp", call=2):
        x.exp()
        with pytest.raises(torch.OutOfMemoryError, match=r"DIPU out of memory\."):
            x.exp()
        assert x.exp()[0].item() == pytest.approx(2.718282)


def test_a_bit_flip_changes_one_element_and_repeats_by_its_seed() -> None:
    x = torch.ones(64, device="dipu")
    results = []
    for _ in range(2):
        with torch.dipu.quirk("bit_flip", "mul", p=1.0, seed=3):
            results.append(x.mul(1).cpu())
    assert (results[0] != 1).sum().item() == 1
    assert torch.equal(results[0], results[1])
    assert (x.mul(1) != 1).sum().item() == 0


def test_a_quirk_reaches_backward() -> None:
    x = torch.ones(3, device="dipu", requires_grad=True)
    loss = x.exp().sum()
    with torch.dipu.quirk("nan", "mul", call=1):
        loss.backward()
    assert x.grad is not None
    assert x.grad.isnan().sum().item() == 1


def test_quirks_can_be_nested_and_end_with_their_blocks() -> None:
    x = torch.ones(2, dtype=torch.float64, device="dipu")
    with torch.dipu.quirk("nan", "exp"):
        with torch.dipu.quirk("no_float64"), pytest.raises(RuntimeError, match="float64"):
            x.exp()
        assert x.exp().isnan().sum().item() == 1
    assert x.exp().isnan().sum().item() == 0


def test_the_environment_switches_quirks_on() -> None:
    text = output_of(
        """
import torch, torch_dipu
x = torch.ones(3, device="dipu")
print(x.exp().isnan().sum().item(), x.exp().isnan().sum().item(), x.sin().isnan().sum().item())
""",
        DIPU_QUIRKS="nan:aten::exp:call=2;latency:aten.mm.default:ms=1",
    )
    assert text == "0 1 0"


def test_a_misspelt_quirk_in_the_environment_is_an_error() -> None:
    done = run_python("import torch_dipu", DIPU_QUIRKS="latncy")
    assert done.returncode == 1
    assert "no quirk 'latncy'" in done.stderr
    assert "'latency'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nann",), "no quirk 'nann'; there are: "),
        (("nan", "no_such_op"), "'no_such_op' matches no operator of the device"),
        (("nan", "["), "quirk 'nan'"),
    ],
)
def test_a_quirk_that_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(Exception, match=re.escape(message)), torch.dipu.quirk(*arguments):
        pass


def test_a_parameter_that_a_quirk_does_not_take_is_refused() -> None:
    with (
        pytest.raises(Exception, match="quirk 'nan' takes no probability; it takes: call"),
        torch.dipu.quirk("nan", probability=1),
    ):
        pass


def test_all_quirks_are_described() -> None:
    assert set(torch.dipu.quirks()) == {
        "no_float64",
        "bf16_accumulate",
        "tf32",
        "ignore_strides",
        "wrong_epsilon",
        "nan",
        "overrun",
        "leak",
        "double_free",
        "latency",
        "out_of_memory",
        "bit_flip",
        "late_copy",
    }


def test_a_fault_is_around_a_comparison_with_a_number() -> None:
    x = torch.arange(3.0, device="dipu")
    with torch.dipu.quirk("ignore_strides", "eq"):
        assert (x == 1).tolist() == [False, True, False]
