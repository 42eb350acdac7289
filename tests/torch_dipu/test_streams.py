"""Streams and events."""

from __future__ import annotations

import pytest
import torch


def test_the_current_stream_is_the_default_stream_at_first() -> None:
    assert torch.dipu.current_stream() == torch.dipu.default_stream()
    assert torch.dipu.current_stream(1).device == torch.device("dipu", 1)


def test_a_stream_context_changes_the_current_stream_and_back() -> None:
    stream = torch.dipu.Stream()
    default = torch.dipu.current_stream()
    with torch.dipu.stream(stream):
        assert torch.dipu.current_stream() == stream
    assert torch.dipu.current_stream() == default


def test_a_stream_context_with_none_does_nothing() -> None:
    with torch.dipu.stream(None):
        assert torch.dipu.current_stream() == torch.dipu.default_stream()


def test_a_stream_of_another_device_brings_its_device() -> None:
    stream = torch.dipu.Stream(device=1)
    with torch.dipu.stream(stream):
        assert torch.dipu.current_device() == 1
        assert torch.zeros(1, device="dipu").device.index == 1
    assert torch.dipu.current_device() == 0


def test_set_stream_holds_until_it_is_set_again() -> None:
    stream = torch.dipu.Stream()
    torch.dipu.set_stream(stream)
    try:
        assert torch.dipu.current_stream() == stream
    finally:
        torch.dipu.set_stream(torch.dipu.default_stream())


def test_torch_stream_is_a_context_too() -> None:
    stream = torch.Stream(device="dipu")
    with stream:
        assert torch.dipu.current_stream() == stream
    assert isinstance(torch.dipu.Stream(), torch.Stream)
    assert isinstance(torch.dipu.Event(), torch.Event)


def test_different_streams_are_different() -> None:
    assert torch.dipu.Stream() != torch.dipu.Stream()


def test_a_priority_is_accepted() -> None:
    assert torch.dipu.Stream(priority=-1).device.type == "dipu"


def test_work_on_two_streams_is_ordered_by_wait_stream() -> None:
    first, second = torch.dipu.Stream(), torch.dipu.Stream()
    with torch.dipu.stream(first):
        a = torch.ones(1000, device="dipu") * 3
    second.wait_stream(first)
    with torch.dipu.stream(second):
        b = a + 1
    second.synchronize()
    assert b.cpu().unique().tolist() == [4.0]


def test_work_is_ordered_by_an_event() -> None:
    producer, event = torch.dipu.Stream(), torch.dipu.Event()
    with torch.dipu.stream(producer):
        a = torch.full((10,), 2.0, device="dipu")
        event.record()
    torch.dipu.current_stream().wait_event(event)
    event.wait()
    assert (a * 2).tolist() == [4.0] * 10


def test_an_event_is_done_after_synchronize() -> None:
    event = torch.dipu.Event()
    torch.ones(10, device="dipu").add_(1)
    event.record()
    event.synchronize()
    assert event.query()


def test_an_event_that_was_never_recorded_is_done() -> None:
    assert torch.dipu.Event().query()


def test_elapsed_time_between_two_events() -> None:
    start, end = (torch.dipu.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(300, 300, device="dipu") @ torch.ones(300, 300, device="dipu")
    end.record()
    torch.dipu.synchronize()
    assert start.elapsed_time(end) > 0


def test_elapsed_time_needs_timing() -> None:
    start, end = torch.dipu.Event(), torch.dipu.Event()
    start.record()
    end.record()
    torch.dipu.synchronize()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        start.elapsed_time(end)


def test_a_stream_records_an_event() -> None:
    stream = torch.dipu.Stream()
    event = stream.record_event()
    stream.synchronize()
    assert event.query()
    assert stream.query()


def test_record_stream_keeps_the_memory_until_the_stream_is_done() -> None:
    stream = torch.dipu.Stream()
    tensor = torch.ones(10, device="dipu")
    tensor.record_stream(stream)
    with torch.dipu.stream(stream):
        result = tensor * 2
    del tensor
    stream.synchronize()
    assert result.tolist() == [2.0] * 10


def test_synchronize_takes_a_device() -> None:
    torch.dipu.synchronize()
    torch.dipu.synchronize(1)
    torch.dipu.synchronize("dipu:0")


def test_backward_runs_on_the_stream_of_its_forward() -> None:
    stream = torch.dipu.Stream()
    x = torch.ones(3, device="dipu", requires_grad=True)
    seen = []
    with torch.dipu.stream(stream):
        y = x * 2
        y.register_hook(lambda grad: seen.append(torch.dipu.current_stream() == stream))
        loss = y.sum()
    loss.backward()
    torch.dipu.synchronize()
    assert seen == [True]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
