# SPDX-License-Identifier: Apache-2.0
"""Factorisations have no unique result: their product is compared with the factorised matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from deeplink.judge.formats import FORMATS
from diopi.conformance.cases.case import Finding
from diopi.conformance.cases.sample import Sample
from diopi.conformance.execution.running import host

SLACK = 40.0  # factor on size times roundoff, far above the errors of stable algorithms

# Two tensors that should be equal, and a description.
Equation = tuple[str, Tensor, Tensor]


def _qr(a: Tensor, out: list[Tensor], sample: Sample) -> Iterator[Equation]:
    q, r = out
    if q.numel():
        yield "QR = A", q[..., : r.shape[-2]] @ r, a
        yield "QᵀQ = 1", q.mH @ q, _eye(q.shape[-1], q)
    yield "R is upper triangular", r, r.triu()


def _eigh(a: Tensor, out: list[Tensor], sample: Sample) -> Iterator[Equation]:
    w, v = out
    lower = sample.kwargs.get("UPLO", "L").upper() == "L"
    half = a.tril() if lower else a.triu()
    rest = (a.tril(-1) if lower else a.triu(1)).mH
    whole = half + rest
    if a.is_complex():
        whole = whole - torch.diag_embed(1j * whole.diagonal(0, -2, -1).imag)
    yield "AV = VW", whole @ v, v * w.unsqueeze(-2)
    yield "VᵀV = 1", v.mH @ v, _eye(v.shape[-1], v)


def _svd(a: Tensor, out: list[Tensor], sample: Sample) -> Iterator[Equation]:
    u, s, v = out
    if u.shape[-1] and v.shape[-1] and u.shape[-2] and a.numel():
        k = s.shape[-1]
        yield "USV = A", (u[..., :k] * s.unsqueeze(-2)) @ v.mH[..., :k, :], a
        yield "UᵀU = 1", u.mH @ u, _eye(u.shape[-1], u)


def _linalg_svd(a: Tensor, out: list[Tensor], sample: Sample) -> Iterator[Equation]:
    u, s, vh = out
    yield from _svd(a, [u, s, vh.mH], sample)


RESIDUALS: dict[str, Callable[[Tensor, list[Tensor], Sample], Iterator[Equation]]] = {
    "linalg.qr": _qr,
    "qr": _qr,
    "linalg.eigh": _eigh,
    "svd": _svd,
    "linalg.svd": _linalg_svd,
}


def check(name: str, sample: Sample, result: Any) -> list[Finding]:
    """Return one finding for each equation that does not hold."""
    a = sample.tensors[0].detach()
    out = [host(t) for t in result]
    roundoff = FORMATS[a.dtype].roundoff
    wide = torch.complex128 if a.is_complex() else torch.float64
    outs = [t.to(wide) if t.is_complex() or not a.is_complex() else t.double() for t in out]
    size = max([*a.shape[-2:], 1])
    found = []
    for text, left, right in RESIDUALS[name](a.to(wide), outs, sample):
        scale = max(float(right.abs().max()) if right.numel() else 0.0, 1e-30)
        error = float((left - right).abs().max()) if left.numel() else 0.0
        allowed = SLACK * size * roundoff * scale
        if not error <= allowed:
            message = f"{text} is off by {error:.3g}, allowed {allowed:.3g}"
            found.append(Finding("values", message))
    return found


def _eye(size: int, like: Tensor) -> Tensor:
    shape = (*like.shape[:-2], size, size)
    return torch.eye(size, dtype=like.dtype).expand(shape)
