"""The choice of the kernel: the vendor's, else the reference, with one report or an error."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

import dlinfer
from deeplink import vendor as vendors
from deeplink.errors import BuildError, DeeplinkError, NoKernelError, NoVendorError, SignatureError
from deeplink.vendor import Found, Vendor
from diopi.resolve import limited
from dlinfer import fused, kernels, weights
from dlinfer.conformance import __main__ as command
from dlinfer.conformance import guest

X, W = torch.ones(2, 4), torch.full((4,), 3.0)


class Toy(ModuleType):
    """A vendor's module: one kernel, which records its calls, for two dimensions."""

    CACHE = dlinfer.Layout("NHBD", (16, 64))

    @staticmethod
    @limited(lambda x: x.dim() == 2)
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.full_like(x, 7.0)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Toy]:
    """The vendor `toy`, which serves the CPU, wanted for every op."""
    module = Toy("toy_fused")
    monkeypatch.setitem(sys.modules, "toy_fused", module)
    row = Found("toy", Vendor("toy", "cpu", lambda: True, fused="toy_fused"), "available", "", "")
    monkeypatch.setattr(vendors, "discover", lambda: [row])
    monkeypatch.setattr(vendors, "find", lambda name: row)
    monkeypatch.setattr(kernels, "_fallbacks", {})
    caches = (kernels._served, kernels._loaded)
    for cache in caches:
        cache.cache_clear()
    with dlinfer.using("toy"):
        yield module
    for cache in caches:
        cache.cache_clear()


def test_the_vendors_kernel_runs_and_the_routes_say_so(toy: Toy) -> None:
    assert fused.rms_norm(X, W, 1e-6).eq(7).all()
    routes = dlinfer.routes("cpu")
    assert (routes["rms_norm"], routes["rotary"]) == ("toy", "reference")


def test_what_a_vendor_lacks_runs_by_its_reference_and_is_reported_once(
    toy: Toy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dlinfer"):
        for _ in range(3):
            assert fused.silu_and_mul(X).shape == (2, 2)
        fused.rms_norm(X[None], W, 1e-6)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "silu_and_mul runs by its reference, not by toy: it has no kernel for it",
        "rms_norm runs by its reference, not by toy: its kernel does not take "
        "float32[1, 2, 4], float32[4], 1e-06",
    ]
    assert sorted(dlinfer.fallbacks().values()) == [1, 3]


def test_strict_names_vendor_op_and_reason(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLINFER_STRICT", "1")
    with pytest.raises(NoKernelError, match="'toy' does not run silu_and_mul: it has no kernel"):
        fused.silu_and_mul(X)


def test_a_kernel_with_other_arguments_is_refused(toy: Toy) -> None:
    toy.silu_and_mul = lambda x, beta: x  # type: ignore[attr-defined]
    with pytest.raises(SignatureError, match=r"silu_and_mul takes \(x, beta\), and its op \(x\)"):
        kernels.checked(toy, "toy")


def test_a_vendor_that_cannot_be_built_leaves_the_reference(toy: Toy) -> None:
    def native(refused: object) -> tuple[str, ...]:
        raise BuildError("no C++ compiler here.", "install one.")

    toy.native = native  # type: ignore[attr-defined]
    assert fused.rms_norm(X, W, 1e-6).allclose(torch.full((2, 4), 3.0))
    (row,) = dlinfer.fallbacks()
    assert row.reason == "no C++ compiler here"


def test_the_cache_is_laid_out_as_the_vendor_wants(toy: Toy) -> None:
    cache = dlinfer.new_cache(3, 16, 2, 8, dtype=torch.float32, device="cpu")
    assert cache.shape == (3, 16, 2, 8)
    assert cache.stride() == (256, 8, 128, 1)  # a head's places together
    with pytest.raises(DeeplinkError, match="no blocks of 5 tokens; allowed: 16, 64"):
        dlinfer.new_cache(3, 5, 2, 8, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("held", [False, True])
def test_weights_are_laid_out_as_the_vendor_wants_whatever_mode_made_them(held: bool) -> None:
    with torch.inference_mode(held):
        model = torch.nn.Sequential(torch.nn.Linear(8, 5))
    weight, x = model[0].weight, torch.randn(40, 8)
    undo = weights.lay_out(model, list(model))
    assert (weight.stride(), weight.is_inference()) == ((1, 5), held)
    with torch.inference_mode():
        for rows in (x, x[:2]):  # by torch's product, and by the kernel of few rows
            torch.testing.assert_close(fused.linear(rows, weight), rows @ weight.T)
    undo()
    assert weight.stride() == (8, 1)
    with dlinfer.using("reference"):
        weights.lay_out(model, list(model))
    assert weight.stride() == (8, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize(("inner", "outer"), [(3, 70), (29, 4096 + 2048 + 37), (16, 5)])
def test_few_rows_with_columns_of_any_number(
    rows: int, inner: int, outer: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(rows, inner).to(dtype), torch.randn(outer).to(dtype)
    around = torch.full((inner, outer + 3), torch.nan, dtype=dtype)  # what must not be read
    weight = around[:, :outer].normal_().t()
    expected = x.double() @ weight.double().t() + bias.double()
    torch.testing.assert_close(fused.linear(x, weight, bias), expected.to(dtype))


def test_an_unknown_vendor_is_an_error_with_the_known_ones() -> None:
    with dlinfer.using("nobody"), pytest.raises(NoVendorError, match=r"'nobody'; installed: .*cpu"):
        fused.rms_norm(X, W, 1e-6)


def test_a_native_kernel_falls_back_for_a_type_it_lacks_and_strict_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = X.half()
    assert fused.rms_norm(half, W.half(), 1e-6).dtype == torch.float16
    monkeypatch.setenv("DLINFER_STRICT", "1")
    with pytest.raises(NoKernelError, match=r"'cpu' does not run rms_norm: .*not Half"):
        fused.rms_norm(half, W.half(), 1e-6)


def test_the_setting_turns_native_kernels_off_while_the_program_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fused.rms_norm(X, W, 1e-6)  # loads them
    monkeypatch.setenv("DLINFER_VENDOR", "reference")
    monkeypatch.setenv("DLINFER_STRICT", "1")  # requested, so nothing is missing
    assert fused.rms_norm(X.half(), W.half(), 1e-6).dtype == torch.float16
    assert set(dlinfer.routes("cpu").values()) == {"reference"}


def test_one_rows_keys_are_divided_between_threads() -> None:
    q, cache = torch.randn(1, 3, 16), torch.randn(13, 16, 1, 16)
    table = torch.randperm(13, dtype=torch.int32)[None]
    threads = torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        for length in (1, 3, 200):
            given = (q, cache, cache, table, torch.tensor([length]), length, 0.25)
            found = fused.paged_decode_attention(*given)
            expected = dlinfer.OPS["paged_decode_attention"].meaning(*given)
            torch.testing.assert_close(found, expected)
    finally:
        torch.set_num_threads(threads)


def test_a_slot_or_block_outside_the_cache_is_an_error() -> None:
    k, cache = torch.ones(1, 2, 8), torch.zeros(2, 4, 2, 8)
    with pytest.raises(IndexError, match="slot 8 of token 0 is beyond the cache, which has 8"):
        fused.fill_kv_cache(k, k, cache, cache.clone(), torch.tensor([8]))
    table, length = torch.tensor([[5]], dtype=torch.int32), torch.tensor([3])
    with pytest.raises(IndexError, match="block 5 of row 0 is not in the cache, which has 2"):
        fused.paged_decode_attention(k, cache, cache, table, length, 3, 1.0)
    with pytest.raises(IndexError, match="row 0 has 9 keys, its block table room for 4"):
        fused.paged_decode_attention(k, cache, cache, table * 0, length * 3, 9, 1.0)


def test_the_table_and_the_guests_name_the_kernel_that_ran(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @limited(lambda x: x.dtype == torch.float32)
    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return fused.norm.rms_norm(x, weight, eps)

    monkeypatch.setattr(toy, "rms_norm", rms_norm, raising=False)
    monkeypatch.setattr(toy, "NOTE", "tried on a fake", raising=False)
    found = tmp_path / "found.json"
    assert command.main(["--vendor", "toy", "--ops", "rms_norm", "--json", str(found)]) == 0
    rows = {row["dtype"]: row["kernel"] for row in json.loads(found.read_text("utf-8"))}
    assert rows == {"float32": "toy (tried on a fake)", "bfloat16": "reference"}
    assert guest.dtypes("toy", "cpu") == {"dlinfer.rms_norm": ["float32"]}
