# SPDX-License-Identifier: Apache-2.0
"""Run a case on a device and judge its results, its mutated and its unchanged arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink import vendor as vendors
from deeplink.judge import envelope, judge
from deeplink.judge.formats import FORMATS
from dlinfer import kernels
from dlinfer.conformance.case import DTYPES, Case, cases
from dlinfer.registry import OPS, FusedOp

Arguments = dict[str, Any]
# Integers that are rounded, or chosen among values: their values depend on the type.
BY_TYPE = frozenset(
    "dynamic_quant rms_norm_w8a8 add_rms_norm_w8a8 moe_gating lightning_indexer fused_moe_w8a8 "
    "linear_w8a8_static".split()
)
SAMPLES = 3  # of the envelope, which most cases do not need
ONE_STEP = (1.0, 0.0)  # of int8: either neighbour of a half is correct


def wrong(case: Case, device: str = "cpu", kernel: Callable[..., Any] | None = None) -> str:
    """Return the error of a case on a device; "" when it is correct.

    A `kernel` is called instead of the op.
    """
    op = OPS[case.op]
    given = copied(case.arguments, device)
    return off(case, (kernel or op.overload)(**given), given)


def off(case: Case, result: Any, given: Arguments) -> str:
    """Return the error of a call's result, and of its arguments after it; "" when it is correct.

    The arguments of the case are those from before the call.
    """
    op = OPS[case.op]
    found = [*_results(result), *_written(op, given)]
    for name, value in given.items():
        before = case.arguments[name]
        if isinstance(value, Tensor) and name not in op.written and not _same(value, before):
            return f"it changed {name}"
    expected = _expected(op, case, torch.float64)
    if len(found) != len(expected):
        return f"{len(found)} results, expected {len(expected)}"
    plain = _expected(op, case, None)
    if case.op in BY_TYPE:
        expected = plain
    for at, (result, reference) in enumerate(zip(found, expected, strict=True)):
        if result.dtype != plain[at].dtype:
            return f"result {at} is {result.dtype}, expected {plain[at].dtype}"
        verdict = judge(
            result.cpu(),
            reference,
            tolerance=ONE_STEP if result.dtype == torch.int8 else None,
            run_plain=lambda at=at: plain[at],  # type: ignore[misc]
            run_envelope=lambda at=at: _sigma(op, case)[at],  # type: ignore[misc]
        )
        if not verdict.passed:
            return f"result {at}: {verdict}"
    return ""


def conformance(vendor: str, ops: tuple[str, ...] = ()) -> Callable[..., None]:
    """Create a test of a vendor's ops, parametrized by op and type."""
    import pytest

    chosen = vendors.choose(vendor).vendor
    device = chosen.device
    rows = [(op, dtype) for op in ops or tuple(OPS) for dtype in DTYPES]

    @pytest.mark.parametrize(("op", "dtype"), rows, ids=lambda v: str(v).removeprefix("torch."))
    def test(op: str, dtype: torch.dtype) -> None:
        vendors.load_device(chosen)
        with kernels.using(vendor):
            found = [f"{case}: {what}" for case, what in failures(op, dtype, device)]
        if found:
            pytest.fail("\n".join(found), pytrace=False)

    return test


def failures(op: str, dtype: torch.dtype, device: str) -> Iterator[tuple[Case, str]]:
    """Yield the cases of an op that are wrong on a device, with the errors."""
    for case in cases(op, dtype):
        what = wrong(case, device)
        if what:
            yield case, what


def _expected(op: FusedOp, case: Case, dtype: torch.dtype | None) -> list[Tensor]:
    arguments = copied(case.arguments)
    if dtype is not None:
        arguments = {name: _wide(value, dtype) for name, value in arguments.items()}
    return [*_results(op.meaning(**arguments)), *_written(op, arguments)]


def _sigma(op: FusedOp, case: Case) -> list[Tensor | None]:
    reference = [t if t.dtype in FORMATS else None for t in _expected(op, case, torch.float64)]

    def run() -> list[Tensor | None]:
        drawn = _expected(op, case, torch.float64)
        return [d if r is not None else None for d, r in zip(drawn, reference, strict=True)]

    return envelope(run, reference, between=FORMATS[case.dtype].roundoff, samples=SAMPLES)


def _wide(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.dtype):
        return dtype
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _results(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def _written(op: FusedOp, arguments: Arguments) -> list[Tensor]:
    return [arguments[name] for name in op.written]


def copied(arguments: Arguments, device: str = "cpu") -> Arguments:
    """Copy to a device with the layout preserved; memory between rows stays NaN."""
    return {
        name: _laid(value, device) if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }


def _laid(tensor: Tensor, device: str) -> Tensor:
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if not tensor.numel():
        return tensor.clone().to(device)
    memory = torch.as_strided(tensor, (reach,), (1,)).clone().to(device)
    return torch.as_strided(memory, tensor.shape, tensor.stride())


def _same(after: Tensor, before: Tensor) -> bool:
    after, before = after.cpu(), before.cpu()
    return bool(((after == before) | (after.isnan() & before.isnan())).all())
