"""A vendor's kernels under the device: who runs an overload, in which form, and what is counted."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torch_dipu
from deeplink.errors import NoKernelError
from diopi import implementation
from diopi.implementation import Implementation
from diopi.resolve import limited
from torch_dipu import routes
from torch_dipu.routes import Counts

REFERENCE = "deeplink_vendors.reference.kernels"
BEST_106 = (Path(__file__).parents[2] / "diopi" / "kernels_110.txt").read_text().split()


@pytest.fixture(autouse=True)
def without_routes() -> Iterator[None]:
    """A test's kernels are gone after it."""
    yield
    routes.unbind()


def bind(**kernels: Any) -> Counts:
    return routes.bind(implementation.of(kernels, "mine"))


def reference(*names: str) -> Implementation:
    """The reference vendor's kernels, or those of them that are named."""
    found = implementation.of(importlib.import_module(REFERENCE), "reference")
    if not names:
        return found
    return Implementation("reference", {name: found.kernels[name] for name in names})


def calls(overload: str) -> dict[str, int]:
    return torch.dipu.operator_calls().get(f"aten::{overload}", {})


def new_calls(overload: str, before: dict[str, int]) -> dict[str, int]:
    return {by: n - before.get(by, 0) for by, n in calls(overload).items() if n > before.get(by, 0)}


def on_host(*tensors: Any) -> list[Any]:
    return [torch.dipu.host_view(t) if isinstance(t, Tensor) else t for t in tensors]


def plus_hundred(input: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    a, b = on_host(input, other)
    return (a + alpha * b + 100).to("dipu")


def test_a_kernel_in_python_serves_every_form_of_its_op() -> None:
    x = torch.ones(3, device="dipu")
    bind(add=plus_hundred)
    out = torch.empty(0, device="dipu")
    torch.add(x, x, out=out)
    assert (x + x).tolist() == out.tolist() == x.add(x, alpha=1).tolist() == [102.0] * 3
    assert x.add_(x).tolist() == [102.0] * 3


def test_a_form_that_the_vendor_gives_is_the_one_that_runs() -> None:
    def add_(input: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        return input.copy_(torch.full(input.shape, 7.0))

    x = torch.ones(3, device="dipu")
    bind(add=plus_hundred, add_=add_)
    assert x.add_(x).tolist() == [7.0] * 3
    assert (x + x).tolist() == [114.0] * 3


def test_a_number_reaches_a_kernel_as_a_number() -> None:
    seen: list[Any] = []

    def mul(input: Tensor, other: Any) -> Tensor:
        seen.append(other)
        return input.clone()

    x = torch.ones(3, device="dipu")
    bind(mul=mul)
    _ = x * 3, x * x, x * torch.tensor(2.0)
    assert seen[0] == 3
    assert seen[1] is x
    assert (
        seen[2].device.type == "dipu"
    )  # a host tensor without dimensions is brought to the device
    seen.clear()


def test_what_a_kernel_does_not_take_the_host_does_and_it_is_counted() -> None:
    @limited(lambda input: input.dtype == torch.float32)
    def add(input: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        return plus_hundred(input, other, alpha=alpha)

    floats, ints = torch.ones(2, device="dipu"), torch.ones(2, dtype=torch.int64, device="dipu")
    bind(add=add)
    before = calls("add.Tensor")
    assert (floats + floats).tolist() == [102.0] * 2
    assert (ints + ints).tolist() == [2, 2]
    assert new_calls("add.Tensor", before) == {"kernel": 1, "host": 1}


def test_a_kernel_that_refuses_leaves_the_call_to_the_host() -> None:
    def exp(input: Tensor) -> Tensor:
        raise NoKernelError("not today")

    x = torch.zeros(2, device="dipu")
    bind(exp=exp)
    assert x.exp().tolist() == [1.0, 1.0]


def test_an_error_of_a_kernel_is_the_callers() -> None:
    def exp(input: Tensor) -> Tensor:
        raise ValueError("the kernel is broken")

    x = torch.zeros(2, device="dipu")
    bind(exp=exp)
    with pytest.raises(ValueError, match="the kernel is broken"):
        x.exp()


def test_an_op_without_a_kernel_runs_by_its_decomposition_onto_the_others() -> None:
    x = torch.randn(3, 5)
    kernels = reference("exp", "sub", "amax", "sum", "div")
    counts = routes.bind(kernels)
    before = calls("_softmax")
    torch.testing.assert_close(torch.softmax(x.to("dipu"), -1).cpu(), torch.softmax(x, -1))
    assert new_calls("_softmax", before) == {"decomposition": 1}
    assert counts.decomposition > 0


def test_more_kernels_run_more_of_the_device_natively() -> None:
    found = [routes.bind(reference(*BEST_106[:60])), routes.bind(reference(*BEST_106))]
    found.append(routes.bind(reference()))
    native = [counts.kernel + counts.decomposition for counts in found]
    assert native == sorted(native)
    assert [counts.kernel for counts in found] == sorted(counts.kernel for counts in found)
    # measured with torch 2.13, of 60, 106 and all kernels: 219, 654 and 1128
    assert native[0] > 180
    assert native[1] > 550
    assert native[2] > 1000
    assert found[2].host < found[1].host < found[0].host


def test_a_model_trains_on_the_reference_kernels_as_on_the_cpu() -> None:
    def losses(device: str) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(144, 5)
        ).to(device)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        x, y = torch.randn(8, 1, 8, 8).to(device), torch.arange(8).remainder(5).to(device)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses("cpu")
    routes.bind(reference())
    before = calls("convolution")
    assert losses("dipu") == pytest.approx(expected, abs=1e-5)
    assert new_calls("convolution", before) == {"kernel": 3}


def test_random_kernels_draw_from_the_generator_of_the_device() -> None:
    routes.bind(reference())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = torch.randn(4, device="dipu"), nn.functional.dropout(torch.ones(9, device="dipu"))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(5)
    again = torch.randn(4, device="dipu"), nn.functional.dropout(torch.ones(9, device="dipu"))
    assert [t.tolist() for t in first] == [t.tolist() for t in again]
    routes.unbind()
    torch.manual_seed(5)
    assert torch.randn(4, device="dipu").tolist() == first[0].tolist()  # as without kernels


def test_views_in_place_stay_the_devices_own() -> None:
    routes.bind(reference())
    x = torch.arange(6.0, device="dipu").reshape(2, 3)
    assert x.transpose_(0, 1).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert not x.is_contiguous()


def test_lists_of_tensors_are_written_in_place() -> None:
    routes.bind(reference())
    tensors = [torch.ones(2, device="dipu"), torch.zeros(3, device="dipu")]
    torch._foreach_add_(tensors, 2.0)
    assert [t.tolist() for t in tensors] == [[3.0, 3.0], [2.0, 2.0, 2.0]]


def test_a_fault_stays_on_whatever_runs_the_operator() -> None:
    x = torch.ones(4, device="dipu")
    bind(add=plus_hundred)
    with torch.dipu.quirk("nan", "add", call=1):
        assert (x + x).isnan().sum().item() == 1


def test_tensors_of_two_places_are_refused_as_without_kernels() -> None:
    x = torch.ones(3, device="dipu")
    bind(add=plus_hundred)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        _ = x + torch.ones(3)


def test_what_keeps_torchs_default_does_not_ask_the_vendor(monkeypatch: Any) -> None:
    monkeypatch.setenv("DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "add.out")
    x = torch.ones(3, device="dipu")
    bind(add=plus_hundred)
    before = calls("add.Tensor")
    assert (x + x).tolist() == [2.0] * 3
    assert new_calls("add.Tensor", before) == {"composite": 1}  # torch's own: by add.out


@pytest.mark.parametrize("switch", ["ENABLE", "DISABLE"])
def test_the_interface_can_be_switched_off(monkeypatch: Any, switch: str) -> None:
    monkeypatch.setenv("DIPU_KERNELS", REFERENCE)
    monkeypatch.setenv("DIPU_WITH_DIOPI_LIBRARY", switch)
    routes.register(torch_dipu.VENDOR)
    by = {row.overload: row for row in torch.dipu.operator_table()}["aten::add.Tensor"]
    assert (by.by, by.who) == (("kernel", "diopiAdd") if switch == "ENABLE" else ("host", ""))


def test_a_composite_that_a_vendor_had_a_kernel_of_is_torchs_own_again() -> None:
    def refuses(input: list[Tensor], scalar: Any) -> Any:
        raise NoKernelError("not these")

    def product() -> list[float]:
        values = torch.ones(3, device="dipu", requires_grad=True)
        with torch.no_grad():
            torch._foreach_mul_([values], 2.0)
        return values.tolist()

    bind(foreach_mul_scalar=refuses)
    assert product() == [2.0] * 3
    names = ["aten::_foreach_mul_.Scalar"]
    torch_dipu._C.set_forced(names, 1)
    try:
        assert product() == [2.0] * 3
    finally:
        torch_dipu._C.set_forced(names, 0)
    routes.unbind()
    assert product() == [2.0] * 3


def test_kernels_bound_after_others_run_as_if_they_were_bound_first() -> None:
    first = routes.bind(reference("uniform"))
    routes.bind(reference())  # it has rand, which the device otherwise makes of uniform_
    assert routes.bind(reference("uniform")) == first
    before = calls("uniform_")
    assert torch.rand(4, device="dipu").is_dipu
    assert new_calls("uniform_", before) == {"kernel": 1}
