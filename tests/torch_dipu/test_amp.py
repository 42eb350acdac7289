"""Autocast in bfloat16 and float16, and the gradient scaler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_matrix_products_run_in_the_lower_dtype(dtype: torch.dtype) -> None:
    a = torch.randn(4, 4, device="dipu")
    with torch.autocast("dipu", dtype=dtype):
        product = a @ a
        layer = nn.functional.linear(a, a)
    assert (product.dtype, layer.dtype) == (dtype, dtype)
    expected = a.cpu().to(dtype) @ a.cpu().to(dtype)
    torch.testing.assert_close(product.cpu(), expected)


def test_sensitive_ops_run_in_float32() -> None:
    a = torch.rand(4, 4, dtype=torch.bfloat16, device="dipu")
    with torch.autocast("dipu", dtype=torch.bfloat16):
        results = [a.softmax(1), a.log(), a.exp(), torch.layer_norm(a, (4,)), a.sum()]
    assert [result.dtype for result in results] == [torch.float32] * 5


def test_promoted_ops_take_the_widest_dtype() -> None:
    wide, narrow = torch.ones(2, device="dipu"), torch.ones(2, device="dipu").bfloat16()
    with torch.autocast("dipu", dtype=torch.bfloat16):
        assert torch.cat([wide, narrow]).dtype == torch.float32


def test_the_default_dtype_of_autocast_is_a_half() -> None:
    with torch.autocast("dipu"):
        assert torch.get_autocast_dtype("dipu") in HALVES
        assert torch.is_autocast_enabled("dipu")
    assert not torch.is_autocast_enabled("dipu")


def test_autocast_can_be_nested_and_switched_off() -> None:
    a = torch.ones(2, 2, device="dipu")
    with torch.autocast("dipu", dtype=torch.bfloat16):
        with torch.autocast("dipu", enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16


def test_autocast_of_another_device_type_leaves_this_one_alone() -> None:
    a = torch.ones(2, 2, device="dipu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.float32


def test_an_unsupported_autocast_dtype_warns_and_is_off() -> None:
    with (
        pytest.warns(UserWarning, match="supported"),
        torch.autocast("dipu", dtype=torch.float64),
    ):
        assert not torch.is_autocast_enabled("dipu")


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_training_under_autocast_keeps_float32_parameters(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("dipu")
    x, y = torch.randn(16, 4, device="dipu"), torch.randn(16, 1, device="dipu")
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("dipu", dtype=dtype):
            loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert losses[-1] < losses[0]


def test_custom_functions_follow_autocast() -> None:
    @torch.amp.custom_fwd(device_type="dipu", cast_inputs=torch.float32)
    def seen(_: object, x: torch.Tensor) -> torch.dtype:
        return x.dtype

    class Context:
        pass

    with torch.autocast("dipu", dtype=torch.bfloat16):
        assert seen(Context(), torch.ones(1, device="dipu").bfloat16()) == torch.float32


def test_the_scaler_scales_and_unscales() -> None:
    scaler = torch.amp.GradScaler("dipu", init_scale=8.0)
    parameter = nn.Parameter(torch.ones(2, device="dipu"))
    optimizer = torch.optim.SGD([parameter], 1.0)
    scaler.scale((3 * parameter).sum()).backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [24.0, 24.0]
    scaler.unscale_(optimizer)
    assert parameter.grad.tolist() == [3.0, 3.0]
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_with_an_infinite_gradient_is_skipped(fused: bool) -> None:
    scaler = torch.amp.GradScaler("dipu", init_scale=4.0)
    parameter = nn.Parameter(torch.ones(2, device="dipu"))
    optimizer = torch.optim.AdamW([parameter], 0.1, fused=fused)
    scaler.scale((parameter / 0).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 2.0


def test_the_scale_grows_after_enough_good_steps() -> None:
    scaler = torch.amp.GradScaler("dipu", init_scale=4.0, growth_interval=2)
    parameter = nn.Parameter(torch.ones(1, device="dipu"))
    optimizer = torch.optim.SGD([parameter], 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(parameter.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 8.0
