"""One op of torch's op_db in one dtype: the device's results and gradients against the CPU's."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

SEED = 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64}

# Their values are whatever the memory held: only dtype and shape can be compared.
UNINITIALISED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)

# Tensors among these positional arguments are read by the host, on CUDA too.
STAYS_ON_HOST = {"tensor_split": frozenset({0})}


@dataclass(frozen=True)
class Failure:
    """One sample that went wrong: in which stage, which sample, and how."""

    stage: str
    sample: int
    message: str


@dataclass(frozen=True)
class Outcome:
    """What became of one op in one dtype; totals count only what the CPU itself can run."""

    op: str
    dtype: str
    forward: tuple[int, int] = (0, 0)
    backward: tuple[int, int] = (0, 0)
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0
    unknown: bool = False  # this torch has no such op, or not in this dtype

    @property
    def passed(self) -> bool:
        return not self.failures


def load_ops() -> dict[str, Any]:
    """Every entry of op_db by its full name, "linalg.norm.subgradients_at_zero" for a variant."""
    with warnings.catch_warnings():
        # op_db scripts and deprecates while it is imported; none of that is ours to judge
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        from torch.testing._internal.common_methods_invocations import op_db
    ops: dict[str, Any] = {}
    for op in op_db:
        ops.setdefault(op.full_name, op)
    return ops


def supports(op: Any, dtype: str) -> bool:
    """Whether the CPU has this op in this dtype at all."""
    return DTYPES[dtype] in op.supported_dtypes("cpu")


def check(op: Any, dtype: str, device: str = "dipu", limit: int | None = None) -> Outcome:
    """Run the samples of `op` (at most `limit`) on the CPU and on `device` and compare."""
    started = time.perf_counter()
    outcome = Outcome(op.full_name, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what an op or its samples warn of is not compared
        for index, sample in enumerate(itertools.islice(_samples(op, dtype), limit)):
            outcome = _add(outcome, index, _check_sample(op, sample, device))
    return replace(outcome, seconds=time.perf_counter() - started)


@dataclass(frozen=True)
class _Verdict:
    """One sample: an error, or "" for a pass, or None where the CPU does not go."""

    forward: str | None = None
    backward: str | None = None


@dataclass(frozen=True)
class _Run:
    """One forward: outputs, the inputs that want gradients, whether random numbers were drawn."""

    outputs: Any
    leaves: list[Tensor]
    random: bool


def _add(outcome: Outcome, index: int, verdict: _Verdict) -> Outcome:
    for stage in ("forward", "backward"):
        message = getattr(verdict, stage)
        if message is None:
            continue
        passed, total = getattr(outcome, stage)
        counts: Any = (passed + (not message), total + 1)
        failures = outcome.failures
        if message:
            failures = (*failures, Failure(stage, index, message))
        outcome = replace(outcome, failures=failures, **{stage: counts})
    return outcome


def _samples(op: Any, dtype: str) -> Iterator[Any]:
    wants_grad = op.supports_autograd and DTYPES[dtype] in op.supported_backward_dtypes("cpu")
    torch.manual_seed(SEED)
    return iter(list(op.sample_inputs("cpu", DTYPES[dtype], requires_grad=wants_grad)))


def _check_sample(op: Any, sample: Any, device: str) -> _Verdict:
    try:
        expected = _forward(op, sample, "cpu")
    except Exception:  # the CPU's own limits are not the device's
        return _Verdict()
    exact = op.name not in UNINITIALISED and not expected.random
    try:
        actual = _forward(op, sample, device)
        _compare(actual.outputs, expected.outputs, device, exact)
    except Exception as error:  # anything an op raises is this sample's result
        return _Verdict(forward=_describe(error))
    return _Verdict("", _backward(sample, actual, expected, device, exact))


def _forward(op: Any, sample: Any, device: str) -> _Run:
    move = _Mover(device)
    host = STAYS_ON_HOST.get(op.name, frozenset[int]())
    value = move(sample.input)
    args = [arg if at in host else move(arg) for at, arg in enumerate(sample.args)]
    kwargs = {
        key: device if key == "device" and arg is not None else move(arg)
        for key, arg in sample.kwargs.items()
    }
    if op.is_factory_function:
        kwargs["device"] = device  # some samples leave it out and would stay on the CPU
    torch.manual_seed(SEED)
    before = torch.get_rng_state()
    outputs = op(value, *args, **kwargs)
    random = not torch.equal(before, torch.get_rng_state())
    return _Run(outputs, move.leaves, random)


def _backward(sample: Any, actual: _Run, expected: _Run, device: str, exact: bool) -> str | None:
    try:
        torch.manual_seed(SEED)
        wanted_outputs = _differentiable(sample, expected.outputs)
        if not wanted_outputs or not expected.leaves:
            return None
        seeds = [torch.randn_like(out) for out in wanted_outputs]
        wanted = torch.autograd.grad(wanted_outputs, expected.leaves, seeds, allow_unused=True)
    except Exception:  # the CPU's own limits are not the device's
        return None
    try:
        outputs = _differentiable(sample, actual.outputs)
        moved = [seed.to(device) for seed in seeds]
        grads = torch.autograd.grad(outputs, actual.leaves, moved, allow_unused=True)
        _compare(grads, wanted, device, exact)
    except Exception as error:  # anything an op raises is this sample's result
        return _describe(error)
    return ""


def _differentiable(sample: Any, outputs: Any) -> list[Tensor]:
    process: Callable[[Any], Any] = sample.output_process_fn_grad
    leaves = pytree.tree_leaves(process(outputs))
    return [out for out in leaves if isinstance(out, Tensor) and out.requires_grad]


class _Mover:
    """Copies arguments to a device; tensors that share storage share it there as well."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.leaves: list[Tensor] = []
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, value: Any) -> Any:
        return pytree.tree_map(self._one, value)

    def _one(self, value: Any) -> Any:
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return torch.device(self.device)
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(SEED)
        if not isinstance(value, Tensor):
            return value
        with torch.no_grad():
            moved = self._tensor(value.detach())
        if value.requires_grad:
            self.leaves.append(moved.requires_grad_())
        return moved

    def _tensor(self, tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.is_quantized:
            return tensor.clone() if self.device == "cpu" else tensor.to(self.device)
        if tensor.is_conj():
            return self._tensor(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._tensor(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
            copy = data.clone() if self.device == "cpu" else data.to(self.device)
            self._storages[storage._cdata] = copy.untyped_storage()
        return torch.empty(0, dtype=tensor.dtype, device=self.device).set_(
            self._storages[storage._cdata],
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )


def _compare(actual: Any, expected: Any, device: str, exact: bool) -> None:
    got, shape = pytree.tree_flatten(actual)
    want, wanted_shape = pytree.tree_flatten(expected)
    if shape != wanted_shape:
        raise AssertionError(f"result is {shape}, the CPU's is {wanted_shape}")
    for mine, cpu in zip(got, want, strict=True):
        if isinstance(cpu, Tensor):
            _compare_tensors(mine, cpu, device, exact)
        elif exact and isinstance(cpu, float | complex):
            torch.testing.assert_close(mine, cpu, equal_nan=True)
        elif exact and isinstance(cpu, bool | int | str | torch.dtype | torch.Size):
            _equal(mine, cpu)


def _equal(actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"result is {actual!r}, the CPU's is {expected!r}")


def _compare_tensors(actual: Any, expected: Tensor, device: str, exact: bool) -> None:
    if not isinstance(actual, Tensor):
        raise AssertionError(f"result is {type(actual).__name__}, the CPU's is a tensor")
    if actual.device.type != torch.device(device).type:
        raise AssertionError(f"result is on {actual.device}, not on {device}")
    for name in ("dtype", "layout", "shape"):
        _equal(getattr(actual, name), getattr(expected, name))
    if exact:
        host = actual.detach().cpu().resolve_conj().resolve_neg()
        wanted = expected.detach().resolve_conj().resolve_neg()
        torch.testing.assert_close(host, wanted, equal_nan=True)


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def select(names: Sequence[str], count: int) -> list[str]:
    """`count` of `names`, evenly spread over the alphabet, the same ones every time."""
    ordered = sorted(names)
    step = max(1.0, len(ordered) / count)
    return [ordered[int(at * step)] for at in range(min(count, len(ordered)))]
