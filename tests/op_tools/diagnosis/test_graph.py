"""From a loss that is not finite to its maker, by what autograd has saved."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torch_dipu  # noqa: F401
from op_tools.diagnosis.nan import autograd_search


class Net(nn.Module):
    """A norm, a mask and a softmax, two linear layers, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ x.t()).masked_fill(torch.eye(4, device=x.device) > 0, -math.inf)
        x = x + scores.softmax(-1) @ self.norm(x)
        made: Tensor = x + self.down(F.gelu(self.up(x)))
        return made


def found(
    change: Callable[[Net], object] = id, x: Tensor | None = None, device: str = "cpu"
) -> autograd_search.Origin:
    torch.manual_seed(0)
    net = Net().to(device)
    change(net)
    loss = net(torch.randn(4, 8).to(device) if x is None else x).pow(2).mean()
    made = autograd_search.origin(loss, {id(p): name for name, p in net.named_parameters()})
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("op", "call", "ops", "behind", "before"),
    [
        ("gelu", 1, ("gelu",), "up.bias", "down.bias"),
        ("addmm", 1, ("addmm",), "up.bias", ""),
        # a sum, and a product without gradients on one side, keep nothing: it, or who gave it
        ("addmm", 2, ("add", "addmm"), "down.bias", ""),
        ("native_layer_norm", 1, ("add", "mm", "native_layer_norm"), "norm.bias", "up.bias"),
    ],
)
def test_the_maker_of_a_nan_is_named_with_the_parameters_around_it(
    op: str, call: int, ops: tuple[str, ...], behind: str, before: str
) -> None:
    with torch.dipu.quirk("nan", op, call=call):
        made = found(device="dipu")
    assert (made.ops, made.behind, made.before) == (ops, behind, before)
    assert not any("up to nan" in text for text in made.given)


def test_of_an_inf_that_became_a_nan_the_inf_is_named() -> None:
    made = found(lambda net: net.up.weight.data.fill_(-1e38), torch.full((4, 8), 100.0))
    assert (made.kind, made.ops) == ("Inf", ("addmm",))


def test_a_parameter_or_data_that_are_bad_report_no_operator() -> None:
    made = found(lambda net: net.up.weight.data[0].fill_(math.nan))
    assert str(made).startswith("the NaN came from outside: the parameter up.weight is bad")
    made = found(lambda net: net.down.bias.data.fill_(math.inf))
    assert "the parameter down.bias" in made.outside
    made = found(x=torch.full((4, 8), math.nan))
    assert (made.ops, "an argument of" in made.outside) == ((), True)


def test_what_checkpointing_has_put_away_stays_there() -> None:
    """Reading it would compute it again, which the program then could not do."""
    torch.manual_seed(0)
    net, runs = Net(), list[int]()
    net.up.register_forward_hook(lambda *_: runs.append(1))
    x = torch.full((4, 8), math.nan, requires_grad=True)
    loss = checkpoint(net, x, use_reentrant=False).mean()
    assert autograd_search.origin(loss, {}) is not None
    assert len(runs) == 1
    loss.backward()
    assert len(runs) == 2


def test_numbers_among_saved_tensors_are_read_under_a_dispatch_mode() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = (weight.sum() * 2.0).exp() * math.inf
    with FlopCounterMode(display=False):
        made = autograd_search.origin(loss, {})
    assert made is not None
    assert made.kind == "Inf"
