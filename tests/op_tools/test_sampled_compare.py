"""OpAutoCompare on large calls: a slice of each is judged, and a suspect is judged again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from op_tools import OpAutoCompare, diagnostics
from op_tools.call import Call
from op_tools.check import slices
from op_tools.check.slices import Chooser

aten = torch.ops.aten


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# Calls that are large, by the name of their rule.
CALLS: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    ("gelu", F.gelu, (numbers(300, 400),), {}),
    ("add", torch.add, (numbers(40, 60, 50), numbers(60, 1)), {"alpha": 2}),
    ("where", torch.where, (numbers(300, 400) > 0, numbers(300, 400), numbers(400)), {}),
    ("masked_fill", torch.Tensor.masked_fill, (numbers(300, 400), numbers(400) > 0, 3.0), {}),
    ("silu_backward", aten.silu_backward.default, (numbers(300, 400), numbers(300, 400)), {}),
    ("linear", F.linear, (numbers(4, 70, 90), numbers(800, 90), numbers(800)), {}),
    ("linear", F.linear, (numbers(4, 70, 90), numbers(800, 90)), {"bias": numbers(800)}),
    ("mm", torch.mm, (numbers(700, 90), numbers(90, 800)), {}),
    ("matmul", torch.matmul, (numbers(3, 1, 190, 80), numbers(5, 80, 170)), {}),
    ("bmm", torch.bmm, (numbers(8, 90, 80), numbers(8, 80, 70)), {}),
    ("addmm", torch.addmm, (numbers(800), numbers(700, 90), numbers(90, 800)), {"beta": 0.5}),
    ("baddbmm", torch.baddbmm, (numbers(8, 90, 70), numbers(8, 90, 80), numbers(8, 80, 70)), {}),
    ("softmax", torch.softmax, (numbers(40, 50, 60), 1), {}),
    ("log_softmax", F.log_softmax, (numbers(900, 100),), {"dim": -1}),
    ("_softmax_backward_data", aten._softmax_backward_data.default,
     (numbers(900, 100), numbers(900, 100).softmax(-1), -1, torch.float64), {}),
    ("cumsum", torch.cumsum, (numbers(900, 100), 0), {}),
    ("layer_norm", F.layer_norm, (numbers(30, 40, 80), (80,), numbers(80), numbers(80)), {}),
    ("native_layer_norm", aten.native_layer_norm.default,
     (numbers(900, 100), [100], numbers(100), numbers(100), 1e-5), {}),
    ("native_layer_norm_backward", aten.native_layer_norm_backward.default,
     (numbers(900, 100), numbers(900, 100), [100], numbers(900, 1), numbers(900, 1).abs(),
      numbers(100), numbers(100), [True, True, True]), {}),
    ("sum", torch.sum, (numbers(90, 80, 70), 1), {}),
    ("mean", torch.mean, (numbers(90, 80, 70), (0, 2)), {"keepdim": True}),
    ("amax", torch.amax, (numbers(90, 80, 70), -1), {}),
    ("embedding", F.embedding, (torch.randint(0, 900, (40, 50)), numbers(900, 100)), {}),
    ("embedding", aten.embedding.default, (numbers(900, 100), torch.randint(0, 900, (2000,))), {}),
    ("conv2d", F.conv2d, (numbers(9, 8, 40, 40), numbers(16, 8, 3, 3), numbers(16)),
     {"padding": 1}),
    ("conv2d", F.conv2d, (numbers(9, 8, 40, 40), numbers(8, 1, 3, 3)), {"groups": 8}),
    ("batch_norm", F.batch_norm,
     (numbers(9, 64, 20, 20), numbers(64), numbers(64).abs(), numbers(64), numbers(64), True), {}),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention,
     (numbers(4, 8, 60, 50), numbers(4, 8, 60, 50), numbers(4, 8, 60, 50)), {"is_causal": True}),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention,
     (numbers(4, 8, 60, 50), numbers(4, 2, 60, 50), numbers(4, 2, 60, 50)), {"enable_gqa": True}),
    ("cat", torch.cat, ([numbers(300, 200), numbers(300, 100)], 1), {}),
    ("_foreach_add", torch._foreach_add,
     ([numbers(300, 200), numbers(90), numbers(70)],
      [numbers(300, 200), numbers(90), numbers(70)]), {}),
    ("_foreach_mul", torch._foreach_mul, ([numbers(300, 200), numbers(90, 80)], [2.0, 3.0]), {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "func", "args", "kwargs"), CALLS, ids=[c[0] for c in CALLS])
def test_a_slice_of_the_result_is_the_result_of_the_small_call(
    name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    is_kernel = isinstance(func, torch._ops.OpOverload)
    full = f"aten.{name}.default" if is_kernel else f"torch.{name}"
    call = Call(1, full, func, args, kwargs, "aten" if is_kernel else "api")
    assert slices.is_large(call)
    for seed in range(3):
        part = slices.slice_of(call, Chooser(seed))
        assert part is not None
        small = sum(t.numel() for t in Call(1, full, func, part.args, part.kwargs).given)
        assert small < sum(t.numel() for t in call.given)
        found = func(*part.args, **part.kwargs)
        wanted = part.result(func(*args, **kwargs))
        found, wanted = _compared(found, wanted)
        torch.testing.assert_close(found, wanted)


def _compared(found: Any, wanted: Any) -> tuple[Any, Any]:
    if isinstance(wanted, tuple):  # what a slice says nothing of is None
        kept = [at for at, value in enumerate(wanted) if value is not None]
        return [found[at] for at in kept], [wanted[at] for at in kept]
    return found, wanted


def test_indices_come_from_every_region_of_a_dimension() -> None:
    found = Chooser().indices(1000, 10)
    assert (found // 100).tolist() == list(range(10))


class Net(nn.Module):
    """Large enough that its products, norms and updates are sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(600, 256), nn.LayerNorm(256)
        self.up, self.down = nn.Linear(256, 512), nn.Linear(512, 256)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        query = x.view(2, 160, 4, 64).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(query, query, query).transpose(1, 2).reshape(x.shape)
        made: Tensor = x + self.down(F.gelu(self.up(self.norm(x))))
        return made


def train(steps: int = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    torch.manual_seed(0)
    net = Net().to("dipu")
    optimizer = torch.optim.AdamW(net.parameters())
    words = torch.randint(0, 600, (2, 160)).to("dipu")
    for _ in range(steps):
        with torch.autocast("dipu", dtype=dtype, enabled=dtype is not None):
            loss = net(words).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [weight.detach().cpu() for weight in net.parameters()]


@pytest.mark.parametrize("level", ["api", "aten"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_a_healthy_training_has_no_suspect(level: Any, dtype: torch.dtype | None) -> None:
    wanted = train(dtype=dtype)
    with OpAutoCompare(level=level) as tool:
        found = train(dtype=dtype)
    assert tool.failures == []
    assert tool.samples()[1:] == []
    assert diagnostics.problems() == []
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("quirk", "ops", "name", "item"),
    [
        ("wrong_epsilon", None, "layer_norm", "output"),
        ("tf32", "addmm|mm|linear", "linear", "output"),
        ("tf32", "mm", "linear", "grad[1]"),
        ("bf16_accumulate", "mm", "linear", "grad[1]"),
    ],
)
def test_a_fault_in_large_calls_is_reported_after_two_steps(
    quirk: str, ops: str | None, name: str, item: str
) -> None:
    with torch.dipu.quirk(quirk, ops), OpAutoCompare() as tool:
        train(steps=3)
    named = {(failure.name.rpartition(".")[2], failure.item) for failure in tool.failures}
    assert (name, item) in named


def test_a_suspect_that_does_not_recur_is_reported_as_not_confirmed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x = torch.randn(400, 300).to("dipu")
    with torch.dipu.quirk("wrong_epsilon"), OpAutoCompare() as tool:
        F.layer_norm(x, (300,))
    assert tool.failures == []
    assert "suspect, not confirmed by a whole call: torch.nn.functional.layer_norm output" in (
        capsys.readouterr().out
    )


def test_whole_judges_every_element() -> None:
    x = torch.randn(400, 300).to("dipu")
    with torch.dipu.quirk("wrong_epsilon"), OpAutoCompare(whole=True) as tool:
        F.layer_norm(x, (300,))
    assert [failure.item for failure in tool.failures] == ["output"]


def test_a_large_call_without_a_rule_is_counted() -> None:
    x = torch.randn(400, 300).to("dipu")
    with OpAutoCompare() as tool:
        torch.sort(x)
        torch.narrow(x, 0, 0, 2)
    assert [reason for reason, _ in tool.skipped] == [
        "more than 65,536 elements and no rule to sample it"
    ]
