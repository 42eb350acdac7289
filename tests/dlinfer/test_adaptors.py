"""Vendors whose kernels are calls of their own library: each against a fake of the library.

This shows that arguments are mapped as documented; nothing here ran on such a chip.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch

import dlinfer
from deeplink import vendor as vendors
from deeplink.vendor import Found, Vendor
from dlinfer import kernels
from dlinfer.conformance import cases, paged, wrong
from dlinfer.conformance.case import Case
from tests.dlinfer.fakes import FakeFlash, FakeMlu, FakeNpu, Library

LIBRARIES: dict[str, tuple[str, type[Library]]] = {
    "ascend": ("torch_npu", FakeNpu),
    "camb": ("torch_mlu_ops", FakeMlu),
    "metax": ("flash_attn", FakeFlash),
}
PLAIN = (
    "rms_norm add_rms_norm silu_and_mul rotary fill_kv_cache prefill_attention dense_attention "
    "linear moe_gating fused_moe weight_quant_matmul dynamic_quant linear_w8a8 rms_norm_w8a8 "
    "add_rms_norm_w8a8"
).split()


@contextmanager
def _serving(vendor: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The vendor serves the CPU, over the fake of its library."""
    name, library = LIBRARIES[vendor]
    fake = library()
    fake.__spec__ = ModuleSpec(name, None)  # as an installed one has
    monkeypatch.setitem(sys.modules, name, fake)
    module = f"deeplink_vendors.{vendor}.fused"
    for loaded in [m for m in sys.modules if m.startswith(module)]:
        monkeypatch.delitem(sys.modules, loaded)
    row = Found(vendor, Vendor(vendor, "cpu", lambda: True, fused=module), "available", "", "")
    monkeypatch.setattr(vendors, "discover", lambda: [row])
    monkeypatch.setattr(vendors, "find", lambda name: row)
    monkeypatch.setattr(kernels, "_fallbacks", {})
    caches = (kernels._served, kernels._loaded)
    for cache in caches:
        cache.cache_clear()
    try:
        with dlinfer.using(vendor):
            yield fake
    finally:
        for cache in caches:
            cache.cache_clear()
        for loaded in [m for m in sys.modules if m.startswith(module)]:
            del sys.modules[loaded]


def _paged(op: str, block: int, order: str) -> Iterator[Case]:
    """Over blocks of a size that the libraries take; lengths around their borders."""
    size, lengths = 32, (1, block - 1, block, block + 1, 2 * block + 7)
    given = paged.paged(torch.bfloat16, lengths, 2, size, order) | {"scale": size**-0.5}
    if op == "paged_decode_attention":
        q = torch.randn(len(lengths), 4, size).bfloat16()
        yield Case(op, f"blocks of {block}", torch.bfloat16, {"q": q, **given})
        return
    new = (1, 3, block, 1, 5)
    q = torch.randn(sum(new), 4, size).bfloat16()
    given |= {"cu_q": paged.bounds(new), "max_q": max(new)}
    yield Case(op, f"blocks of {block}", torch.bfloat16, {"q": q, **given})
    yield Case(op, "not causal", torch.bfloat16, {"q": q, **given, "causal": False})


@pytest.mark.parametrize("op", PLAIN)
def test_arguments_are_mapped_for_torch_npu(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _serving("ascend", monkeypatch) as fake:
        assert [
            f"{case}: {what}" for case in cases(op, torch.bfloat16) if (what := wrong(case))
        ] == []
    assert fake.called or op == "linear"


@pytest.mark.parametrize(
    ("vendor", "op"),
    [("metax", op) for op in ("prefill_attention", "dense_attention")]
    + [
        ("camb", op)
        for op in (
            "rms_norm add_rms_norm silu_and_mul gelu_and_mul rotary fill_kv_cache "
            "prefill_attention paged_decode_attention linear"
        ).split()
    ],
)
def test_arguments_are_mapped_for_others(
    vendor: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "BLOCK", 16)  # the size that torch_mlu_ops takes
    with _serving(vendor, monkeypatch) as fake:
        assert [
            f"{case}: {what}" for case in cases(op, torch.bfloat16) if (what := wrong(case))
        ] == []
    assert fake.called


@pytest.mark.parametrize(
    ("vendor", "op", "block"),
    [
        ("ascend", "paged_decode_attention", 16),
        ("ascend", "paged_prefill_attention", 128),
        ("camb", "paged_decode_attention", 16),
        ("metax", "paged_decode_attention", 256),
        ("metax", "paged_prefill_attention", 256),
    ],
)
def test_caches_in_blocks_are_mapped(
    vendor: str, op: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "BLOCK", block)
    monkeypatch.setenv("DLINFER_STRICT", "1")
    torch.manual_seed(0)
    order = "NHBD" if vendor == "camb" else "NBHD"
    with _serving(vendor, monkeypatch):
        assert [
            f"{case}: {what}" for case in _paged(op, block, order) if (what := wrong(case))
        ] == []


def test_the_routes_say_how_far_it_was_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    with _serving("ascend", monkeypatch):
        routes = dlinfer.routes("cpu")
    assert routes["rms_norm"] == "ascend (tested against a fake of torch_npu, not on hardware)"
    assert routes["gelu_and_mul"] == "reference"
