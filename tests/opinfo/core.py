"""One op of torch's op_db in one dtype: the device's results and gradients against the CPU's."""

from __future__ import annotations

import functools
import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torch_dipu
from deeplink import settings
from deeplink.testing.samples import SEED, UNINITIALISED, Run, call, compare, gradients, seeds
from tests.opinfo.outcome import Failure, Outcome

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int64": torch.int64}


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


def check(
    op: Any,
    dtype: str,
    device: str = "dipu",
    limit: int | None = None,
    bound: float | None = None,
) -> Outcome:
    """Run the samples of `op` (at most `limit`) on the CPU and on `device` and compare.

    `bound` is a device's own tolerance; None: torch's tolerance.
    """
    started = time.perf_counter()
    outcome = Outcome(op.full_name, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what an op or its samples warn of is not compared
        for index, sample in enumerate(itertools.islice(_samples(op, dtype), limit)):
            exact = op.name not in UNINITIALISED
            outcome = _add(outcome, index, _check_sample(op, sample, _How(device, exact, bound)))
    return replace(outcome, seconds=time.perf_counter() - started)


@dataclass(frozen=True)
class _How:
    """The comparison with the CPU's results: the device, whether values count, the tolerance."""

    device: str
    exact: bool
    bound: float | None


@dataclass(frozen=True)
class _Verdict:
    """Run one sample; return an error, "" for a pass, or None where the CPU fails."""

    forward: str | None = None
    backward: str | None = None


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


def _check_sample(op: Any, sample: Any, how: _How) -> _Verdict:
    try:
        expected = call(op, sample, "cpu")
    except Exception:  # the CPU's own limits are not the device's
        return _Verdict()
    how = replace(how, exact=how.exact and not expected.random)
    try:
        actual = call(op, sample, how.device)
        wide = functools.cache(lambda: call(op, _widened(sample), "cpu"))
        _hold(actual.outputs, expected.outputs, how, lambda: wide().outputs)
    except Exception as error:  # anything an op raises is this sample's result
        return _Verdict(forward=_describe(error))
    return _Verdict("", _backward(sample, actual, expected, how, wide))


def _hold(actual: Any, expected: Any, how: _How, wide: Callable[[], Any]) -> None:
    """`compare`; a device with kernels of its own may instead be as near to float64 as the CPU."""
    try:
        compare(actual, expected, how.device, how.exact, lambda dtype: how.bound)
    except AssertionError:
        if not _has_kernels():
            raise  # it runs the CPU's kernels: another result is a fault
        try:
            near = as_near(actual, expected, wide())
        except Exception:  # float64 cannot represent it
            near = False
        if not near:
            raise


def _has_kernels() -> bool:
    return bool(settings.DIPU_KERNELS.get() or torch_dipu.VENDOR.kernels)


def as_near(actual: Any, expected: Any, wide: Any) -> bool:
    """Whether `actual` is about as near to `wide`, the float64 result, as the CPU's `expected`."""
    triples = [pytree.tree_leaves(one) for one in (actual, expected, wide)]
    for found, other, best in zip(*triples, strict=True):
        if best is None and found is None:
            continue
        if not isinstance(best, torch.Tensor) or not best.is_floating_point():
            return False  # nothing was rounded here
        if found.dtype != other.dtype or found.shape != other.shape:
            return False
        mine, theirs = (one.detach().cpu().double() for one in (found, other))
        finite = best.isfinite()
        if not torch.equal(mine.isfinite(), finite):
            return False
        if not torch.equal(mine[~finite].nan_to_num(), best[~finite].nan_to_num()):
            return False
        errors = [(one - best)[finite].abs() for one in (mine, theirs)]
        if errors[0].numel() and errors[0].max() > 2 * errors[1].max():
            return False
    return True


def _widened(sample: Any) -> Any:
    """The sample in float64."""

    def wide(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return x.detach().double().requires_grad_(x.requires_grad)

    return sample.transform(wide)


def _backward(
    sample: Any, actual: Run, expected: Run, how: _How, wide: Callable[[], Run]
) -> str | None:
    try:
        given = seeds(sample, expected)
        wanted = gradients(sample, expected, given)
    except Exception:  # the CPU's own limits are not the device's
        return None
    if not wanted:
        return None
    try:
        found = gradients(sample, actual, [seed.to(how.device) for seed in given])
        best = [seed.double() for seed in given]
        _hold(found, wanted, how, lambda: gradients(sample, wide(), best))
    except Exception as error:  # anything an op raises is this sample's result
        return _describe(error)
    return ""


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def select(names: Sequence[str], count: int) -> list[str]:
    """`count` of `names`, evenly spread over the alphabet, the same ones every time."""
    ordered = sorted(names)
    step = max(1.0, len(ordered) / count)
    return [ordered[int(at * step)] for at in range(min(count, len(ordered)))]
