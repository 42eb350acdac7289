"""Autograd: first and higher order, hooks, in-place on views, custom functions, checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.torch_dipu.interpreter import run_python


def test_backward_fills_grad_on_the_device() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="dipu", requires_grad=True)
    (x**2).sum().backward()
    assert x.grad is not None
    assert x.grad.device == x.device
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


def test_the_device_may_come_after_a_first_backward_pass() -> None:
    done = run_python(
        """
import torch
torch.ones(1, requires_grad=True).sum().backward()
import torch_dipu
x = torch.ones(2, device="dipu:1", requires_grad=True)
(3 * x).sum().backward()
print(x.grad.tolist())
"""
    )
    assert (done.stdout, done.stderr) == ("[3.0, 3.0]\n", "")


def test_gradients_accumulate() -> None:
    x = torch.ones(2, device="dipu", requires_grad=True)
    for _ in range(3):
        (2 * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 6.0]


def test_double_backward() -> None:
    x = torch.tensor([2.0], device="dipu", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), x)
    assert (first.item(), second.item(), third.item()) == (12.0, 12.0, 6.0)


@pytest.mark.parametrize("name", ["conv2d", "layer_norm", "softmax", "matmul", "batch_norm"])
def test_gradgradcheck_in_float64(name: str) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "conv2d": lambda x, w: torch.conv2d(x.view(1, 1, 3, 3), w.view(1, 1, 3, 3), padding=1),
        "layer_norm": lambda x, w: torch.layer_norm(x, (3,), w[0]),
        "softmax": lambda x, w: (x * w).softmax(1),
        "matmul": lambda x, w: x @ w,
        "batch_norm": lambda x, w: torch.batch_norm(
            x, w[0], w[1], None, None, True, 0.1, 1e-5, False
        ),
    }
    x, w = (torch.randn(3, 3, dtype=torch.float64, device="dipu") for _ in range(2))
    inputs = (x.requires_grad_(), w.requires_grad_())
    assert torch.autograd.gradcheck(functions[name], inputs)
    assert torch.autograd.gradgradcheck(functions[name], inputs)


def test_tensor_hooks_see_and_change_the_gradient() -> None:
    x = torch.ones(2, device="dipu", requires_grad=True)
    seen: list[list[float]] = []
    x.register_hook(lambda grad: (seen.append(grad.tolist()), grad * 10)[1])
    (3 * x).sum().backward()
    assert seen == [[3.0, 3.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [30.0, 30.0]


def test_post_accumulate_hooks_and_retain_grad() -> None:
    x = torch.ones(2, device="dipu", requires_grad=True)
    calls: list[str] = []
    x.register_post_accumulate_grad_hook(lambda tensor: calls.append(str(tensor.grad.device)))
    y = x * 2
    y.retain_grad()
    (y * 5).sum().backward()
    assert calls == ["dipu:0"]
    assert y.grad is not None
    assert y.grad.tolist() == [5.0, 5.0]


def test_module_hooks_run() -> None:
    layer = nn.Linear(2, 2).to("dipu")
    calls: list[str] = []
    layer.register_forward_hook(lambda *_: calls.append("forward"))
    layer.register_full_backward_hook(lambda *_: calls.append("backward"))
    layer(torch.ones(1, 2, device="dipu", requires_grad=True)).sum().backward()
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("device", ["cpu", "dipu"])
def test_an_in_place_op_on_a_view_changes_the_gradient_of_the_base(device: str) -> None:
    x = torch.ones(4, device=device, requires_grad=True)
    y = x * 2
    y[1:3].mul_(3)
    y.view(2, 2)[1].pow_(2)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 6.0, 72.0, 8.0]


def test_an_in_place_op_on_a_leaf_is_refused() -> None:
    x = torch.ones(2, device="dipu", requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)


def test_a_saved_tensor_that_was_modified_is_noticed() -> None:
    x = torch.ones(2, device="dipu", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class _Cube(torch.autograd.Function):
    """x cubed, with a derivative written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


def test_a_custom_function_has_first_and_second_derivatives() -> None:
    x = torch.tensor([2.0], device="dipu", requires_grad=True)
    (first,) = torch.autograd.grad(_Cube.apply(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (12.0, 12.0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients_and_repeats_dropout(reentrant: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()).to("dipu")
    grads = []
    for wrapped in (False, True):
        torch.manual_seed(7)
        x = torch.ones(2, 4, device="dipu", requires_grad=True)
        y = checkpoint(net, x, use_reentrant=reentrant) if wrapped else net(x)
        y.sum().backward()
        assert x.grad is not None
        grads.append(x.grad.cpu())
    assert torch.equal(grads[1], grads[0])


def test_sequential_checkpointing_gives_the_same_gradients() -> None:
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))).to("dipu")
    x = torch.ones(2, 4, device="dipu", requires_grad=True)
    (plain,) = torch.autograd.grad(net(x).sum(), x)
    y = checkpoint_sequential(net, 2, x, use_reentrant=False)
    (checked,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(checked.cpu(), plain.cpu())


def test_no_grad_and_inference_mode() -> None:
    x = torch.ones(2, device="dipu", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        y.add_(1)
    assert y.is_inference()
    assert y.tolist() == [3.0, 3.0]


def test_saved_tensor_hooks_can_offload_to_the_host() -> None:
    x = torch.tensor([3.0], device="dipu", requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0]


def test_anomaly_mode_names_the_operator_that_made_the_nan() -> None:
    x = torch.zeros(1, device="dipu", requires_grad=True)
    with (
        pytest.warns(UserWarning, match="Anomaly Detection has been enabled|Error detected"),
        pytest.raises(RuntimeError, match="SqrtBackward0' returned nan values"),
        torch.autograd.detect_anomaly(),
    ):
        (x.sqrt() * 0).sum().backward()


# torch 2.11 warns of a graph over two devices, later ones do not
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_gradients_cross_devices_in_one_graph() -> None:
    first = torch.ones(2, device="dipu:0", requires_grad=True)
    second = torch.full((2,), 3.0, device="dipu:1", requires_grad=True)
    (first.to("dipu:1") * second).cpu().sum().backward()
    assert first.grad is not None
    assert second.grad is not None
    assert (first.grad.device.index, second.grad.device.index) == (0, 1)
    assert (first.grad.tolist(), second.grad.tolist()) == ([3.0, 3.0], [1.0, 1.0])


# torch scripts its own decompositions when the first dual tensor is made
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.filterwarnings("ignore:`torch.jit.")  # torch's own
def test_forward_mode_derivatives() -> None:
    import torch.autograd.forward_ad as forward_ad

    x = torch.tensor([2.0], device="dipu")
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(dual**3).tangent
    assert tangent.tolist() == [12.0]
