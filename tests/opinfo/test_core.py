"""The comparison itself: what it must notice, what it must not count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import torch_dipu  # noqa: F401
from tests.opinfo.core import as_near, check, select
from tests.opinfo.outcome import Outcome


@dataclass(frozen=True)
class _Sample:
    input: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    output_process_fn_grad: Callable[[Any], Any] = lambda out: out


@dataclass(frozen=True)
class _Op:
    """The part of an OpInfo that the check reads."""

    function: Callable[..., Any]
    samples: tuple[_Sample, ...] = (_Sample(torch.tensor([1.0, 2.0, 3.0])),)
    supports_autograd: bool = True
    is_factory_function: bool = False
    name: str = "made_up"
    full_name: str = "made_up"

    def supported_backward_dtypes(self, device_type: str) -> set[torch.dtype]:
        return {torch.float32}

    def sample_inputs(self, device: str, dtype: torch.dtype, requires_grad: bool) -> list[_Sample]:
        for sample in self.samples:
            sample.input.requires_grad_(requires_grad)
        return list(self.samples)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _on_device(there: Callable[[Tensor], Any], here: Callable[[Tensor], Any]) -> _Op:
    return _Op(lambda x: there(x) if x.device.type == "dipu" else here(x))


def _messages(outcome: Outcome) -> str:
    return " | ".join(f"{fail.stage}: {fail.message}" for fail in outcome.failures)


def test_equal_results_pass_forward_and_backward() -> None:
    outcome = check(_Op(torch.exp), "float32")
    assert (outcome.passed, outcome.forward, outcome.backward) == (True, (1, 1), (1, 1))


def test_a_wrong_value_is_noticed() -> None:
    outcome = check(_on_device(lambda x: x + 0.01, lambda x: x), "float32")
    assert outcome.forward == (0, 1)
    assert "forward: AssertionError: Tensor-likes are not close" in _messages(outcome)


def test_a_wrong_dtype_is_noticed() -> None:
    outcome = check(_on_device(lambda x: x.double(), lambda x: x), "float32")
    assert "dtype is torch.float64, the CPU's is torch.float32" in _messages(outcome)


def test_a_wrong_shape_is_noticed() -> None:
    outcome = check(_on_device(lambda x: x[:2], lambda x: x), "float32")
    assert "shape is torch.Size([2]), the CPU's is torch.Size([3])" in _messages(outcome)


def test_a_result_that_stayed_on_the_host_is_noticed() -> None:
    outcome = check(_on_device(lambda x: x.cpu(), lambda x: x), "float32")
    assert "result is on cpu, not on dipu" in _messages(outcome)


def test_a_missing_result_is_noticed() -> None:
    outcome = check(_on_device(lambda x: [x], lambda x: [x, x]), "float32")
    assert "the CPU's is" in _messages(outcome)


def test_a_wrong_gradient_is_noticed() -> None:
    outcome = check(_on_device(lambda x: x * 2 - x.detach(), lambda x: x * 1), "float32")
    assert (outcome.forward, outcome.backward) == ((1, 1), (0, 1))
    assert _messages(outcome).startswith("backward: AssertionError")


def test_an_error_on_the_device_is_that_samples_failure() -> None:
    def refuse(_: Tensor) -> Tensor:
        raise NotImplementedError("no such kernel")

    outcome = check(_on_device(refuse, lambda x: x), "float32")
    assert _messages(outcome) == "forward: NotImplementedError: no such kernel"


def test_what_the_cpu_cannot_run_is_not_counted() -> None:
    def refuse(_: Tensor) -> Tensor:
        raise RuntimeError("not on the CPU")

    outcome = check(_on_device(lambda x: x, refuse), "float32")
    assert (outcome.passed, outcome.forward, outcome.backward) == (True, (0, 0), (0, 0))


def test_random_results_are_compared_by_dtype_and_shape() -> None:
    assert check(_Op(torch.rand_like), "float32").forward == (1, 1)
    outcome = check(_on_device(lambda x: torch.rand(2, device="dipu"), torch.rand_like), "float32")
    assert outcome.forward == (0, 1)


def test_inputs_that_share_memory_share_it_on_the_device() -> None:
    base = torch.arange(6.0)
    sample = _Sample(base[:4], (base[2:],))

    def write(x: Tensor, y: Tensor) -> Tensor:
        y.zero_()
        return x.clone()

    outcome = check(_Op(write, (sample,), supports_autograd=False), "float32")
    assert outcome.forward == (1, 1)
    assert base.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_strides_conjugates_and_negatives_arrive_as_they_are() -> None:
    value = torch.tensor([[1 + 2j, 3 - 1j], [0j, 1j]])
    samples = (_Sample(value.t()), _Sample(value.conj()), _Sample(value.conj().imag))

    def layout(x: Tensor) -> Any:
        return x.clone(), str(x.stride()), x.is_conj(), x.is_neg()

    assert check(_Op(layout, samples, supports_autograd=False), "float32").forward == (3, 3)


def test_a_limit_stops_after_the_first_samples() -> None:
    samples = tuple(_Sample(torch.ones(1)) for _ in range(5))
    assert check(_Op(torch.exp, samples), "float32", limit=2).forward == (2, 2)


def test_a_selection_is_spread_and_repeatable() -> None:
    names = [f"op{at:03}" for at in range(100)]
    assert select(names, 4) == ["op000", "op025", "op050", "op075"]
    assert select(names[:3], 10) == names[:3]


def test_a_result_as_near_to_float64_as_the_cpus_is_right() -> None:
    wide = torch.tensor([1.0, 100.0], dtype=torch.float64)
    cpu = (wide + torch.tensor([0.0, 1e-4])).float()
    near = (wide - torch.tensor([1e-4, 0.0])).float()
    assert as_near((near, None), (cpu, None), (wide, None))
    assert not as_near(near - 1e-3, cpu, wide)
    assert not as_near(near.double(), cpu, wide)


def test_a_device_may_be_as_far_off_as_its_rules_say() -> None:
    rough = _on_device(lambda x: x * 1.001, lambda x: x)
    assert check(rough, "float32", bound=2e-3).passed
    assert not check(rough, "float32").passed


def test_what_is_infinite_in_float64_has_to_be_infinite() -> None:
    wide = torch.tensor([1.0, -torch.inf, torch.nan], dtype=torch.float64)
    cpu = (wide + 1e-4).float()
    assert as_near((wide - 1e-4).float(), cpu, wide)
    assert not as_near(torch.tensor([1.0, torch.inf, torch.nan]), cpu, wide)
    assert not as_near(torch.tensor([1.0, 0.0, torch.nan]), cpu, wide)
