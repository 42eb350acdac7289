"""OpAutoCompare on large calls: a slice of each is judged, and a suspect is judged again."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from op_tools import OpAutoCompare
from op_tools.compare import budget, host_verdicts, slices
from op_tools.compare import tool as tool_module
from op_tools.compare.host_verdicts import Differed, Item, RecordedCall
from op_tools.compare.judging import Job
from op_tools.compare.slices import Chooser
from op_tools.core import tool_errors
from op_tools.core.call import Call
from op_tools.core.worker import Background
from op_tools.tensors import statistics
from tests.op_tools.compare.test_autocompare import rows

aten = torch.ops.aten


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


mask = numbers(4, 1, 60, 60)
heads = [numbers(200, 9, 40) for _ in range(3)]
three = [numbers(4, 8, 60, 50) for _ in range(3)]
kernel = aten._scaled_dot_product_flash_attention_for_cpu.default
attended = *three, *kernel(*three, 0.0, True)
masked = *three, *kernel(*three, attn_mask=mask)

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
    ("_foreach_norm", torch._foreach_norm, ([numbers(300, 200), numbers(90, 80), numbers(9)],), {}),
    ("relu", F.relu, (numbers(300, 400),), {"inplace": True}),
    ("zeros_like", torch.zeros_like, (numbers(300, 400),), {}),
    ("softplus_backward", aten.softplus_backward.default,
     (numbers(300, 400), numbers(300, 400), 1, 20), {}),
    ("native_dropout_backward", aten.native_dropout_backward.default,
     (numbers(300, 400), numbers(300, 400) > 0, 2.0), {}),
    ("_safe_softmax", aten._safe_softmax.default, (numbers(900, 100), -1), {}),
    ("_fused_rms_norm", aten._fused_rms_norm.default,
     (numbers(900, 100), [100], numbers(100), 1e-5), {}),
    ("glu", F.glu, (numbers(900, 100),), {}),
    ("topk", torch.topk, (numbers(900, 100), 5), {}),
    ("sort", torch.sort, (numbers(900, 100),), {"descending": True}),
    ("argmax", torch.argmax, (numbers(900, 100), -1), {}),
    ("max", torch.max, (numbers(900, 100), 1), {}),
    ("flip", torch.flip, (numbers(40, 50, 60), (1,)), {}),
    ("roll", torch.roll, (numbers(40, 50, 60), 3, -1), {}),
    ("pad", F.pad, (numbers(9, 8, 40, 40), (1, 2, 3, 4)), {}),
    ("repeat_interleave", torch.repeat_interleave, (numbers(40, 50, 60), 2, 1), {}),
    ("repeat", torch.Tensor.repeat, (numbers(40, 50, 60), 3, 1, 1, 2), {}),
    ("repeat", torch.Tensor.repeat, (numbers(40, 50, 60), (1, 2, 1)), {}),
    ("stack", torch.stack, ([numbers(300, 200), numbers(300, 200)], 1), {}),
    ("reshape", torch.reshape, (numbers(300, 400).t(), (200, 600)), {}),
    ("flatten", torch.flatten, (numbers(30, 40, 80).transpose(0, 1), 0, 1), {}),
    ("_unsafe_view", aten._unsafe_view.default, (numbers(300, 400), [600, 200]), {}),
    ("new_zeros", aten.new_zeros.default, (numbers(300, 400), [600, 300]), {}),
    ("select_backward", aten.select_backward.default,
     (numbers(300, 400), [300, 3, 400], 1, 2), {}),
    ("slice_backward", aten.slice_backward.default,
     (numbers(300, 400), [300, 900], 1, 9, 409, 1), {}),
    ("index_select", torch.index_select,
     (numbers(40, 50, 60), 1, torch.randint(0, 50, (70,))), {}),
    ("index", aten.index.Tensor, (numbers(40, 50, 60), [None, torch.randint(0, 50, (70, 2))]), {}),
    ("__getitem__", torch.Tensor.__getitem__, (numbers(900, 100), torch.randint(0, 900, (800,))),
     {}),
    ("__getitem__", torch.Tensor.__getitem__,
     (numbers(40, 50, 60), (slice(None), torch.randint(0, 50, (7, 9)))), {}),
    ("gather", torch.gather, (numbers(40, 50, 60), 1, torch.randint(0, 50, (40, 30, 60))), {}),
    ("scatter_add", torch.scatter_add,
     (numbers(40, 50, 60), 1, torch.randint(0, 50, (40, 30, 60)), numbers(40, 30, 60)), {}),
    ("index_add", torch.index_add,
     (numbers(900, 100), 0, torch.randint(0, 900, (300,)), numbers(300, 100)), {}),
    ("index_add", torch.index_add,
     (numbers(40, 50, 60), -2, torch.randint(0, 50, (30,)), numbers(40, 30, 60)), {"alpha": 2}),
    ("index_put", aten.index_put.default,
     (numbers(900, 100), [torch.randint(0, 900, (300,))], numbers(300, 100), True), {}),
    ("embedding_dense_backward", aten.embedding_dense_backward.default,
     (numbers(40, 50, 100), torch.randint(0, 900, (40, 50)), 900, 3, False), {}),
    ("embedding_dense_backward", aten.embedding_dense_backward.default,
     (numbers(2000, 100), torch.randint(0, 900, (2000,)), 900, -1, True), {}),
    ("nll_loss_forward", aten.nll_loss_forward.default,
     (numbers(900, 100), torch.randint(0, 100, (900,)), None, 1, 7), {}),
    ("nll_loss2d_forward", aten.nll_loss2d_forward.default,
     (numbers(9, 100, 90, 1), torch.randint(0, 100, (9, 90, 1)), None, 0, 7), {}),
    ("nll_loss_backward", aten.nll_loss_backward.default,
     (numbers(1)[0], numbers(900, 100), torch.randint(0, 100, (900,)), None, 1, 7, numbers(1)[0]),
     {}),
    ("nll_loss2d_backward", aten.nll_loss2d_backward.default,
     (numbers(9, 90, 1), numbers(9, 100, 90, 1), torch.randint(0, 100, (9, 90, 1)), None, 0, 7,
      numbers(1)[0]), {}),
    ("cross_entropy", F.cross_entropy, (numbers(900, 100), torch.randint(0, 100, (900,))),
     {"reduction": "none"}),
    ("convolution_backward", aten.convolution_backward.default,
     (numbers(9, 16, 40, 40), numbers(9, 8, 40, 40), numbers(16, 8, 3, 3), [16], [1, 1], [1, 1],
      [1, 1], False, [0, 0], 1, [True, True, True]), {}),
    ("convolution_backward", aten.convolution_backward.default,
     (numbers(9, 8, 40, 40), numbers(9, 8, 40, 40), numbers(8, 1, 3, 3), None, [1, 1], [1, 1],
      [1, 1], False, [0, 0], 8, [True, True, False]), {}),
    ("conv_transpose2d", F.conv_transpose2d,
     (numbers(9, 8, 40, 40), numbers(8, 16, 2, 2), numbers(16)), {"stride": 2}),
    ("convolution", aten.convolution.default,
     (numbers(9, 8, 40, 40), numbers(8, 16, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
     {}),
    ("instance_norm", F.instance_norm,
     (numbers(9, 64, 20, 20), None, None, numbers(64), numbers(64)), {}),
    ("native_batch_norm", aten.native_batch_norm.default,
     (numbers(9, 64, 20, 20), numbers(64), None, numbers(64), numbers(64).abs(), False, 0.1, 1e-5),
     {}),
    ("native_batch_norm", aten.native_batch_norm.default,
     (numbers(9, 64, 20, 20), numbers(64), numbers(64), None, None, True, 0.1, 1e-5), {}),
    ("native_batch_norm_backward", aten.native_batch_norm_backward.default,
     (numbers(9, 64, 20, 20), numbers(9, 64, 20, 20), numbers(64), None, None, numbers(64),
      numbers(64).abs(), True, 1e-5, [True, True, True]), {}),
    ("group_norm", F.group_norm, (numbers(9, 64, 20, 20), 8, numbers(64), numbers(64)), {}),
    ("native_group_norm", aten.native_group_norm.default,
     (numbers(9, 64, 20, 20), numbers(64), numbers(64), 9, 64, 400, 8, 1e-5), {}),
    ("native_group_norm_backward", aten.native_group_norm_backward.default,
     (numbers(9, 64, 20, 20), numbers(9, 64, 20, 20), numbers(9, 8), numbers(9, 8).abs(),
      numbers(64), 9, 64, 400, 8, [True, True, True]), {}),
    ("max_pool2d", F.max_pool2d, (numbers(9, 64, 20, 20), 3, 2, 1), {}),
    ("max_pool2d_with_indices", aten.max_pool2d_with_indices.default,
     (numbers(9, 64, 20, 20), [3, 3], [2, 2], [1, 1]), {}),
    ("avg_pool2d_backward", aten.avg_pool2d_backward.default,
     (numbers(9, 64, 10, 10), numbers(9, 64, 20, 20), [2, 2], [2, 2], [0, 0], False, True, None),
     {}),
    ("adaptive_avg_pool2d", F.adaptive_avg_pool2d, (numbers(9, 64, 20, 20), 1), {}),
    ("interpolate", F.interpolate, (numbers(9, 64, 20, 20),),
     {"scale_factor": 2, "mode": "bilinear"}),
    ("upsample_bilinear2d_backward", aten.upsample_bilinear2d_backward.default,
     (numbers(9, 64, 40, 40), [40, 40], [9, 64, 20, 20], False), {}),
    ("scaled_dot_product_attention", F.scaled_dot_product_attention,
     (numbers(4, 8, 60, 50), numbers(4, 8, 60, 50), numbers(4, 8, 60, 50),
      numbers(4, 1, 60, 60)), {}),
    ("_scaled_dot_product_flash_attention_for_cpu",
     aten._scaled_dot_product_flash_attention_for_cpu.default,
     (numbers(4, 8, 60, 50), numbers(4, 8, 60, 50), numbers(4, 8, 60, 50), 0.0, True),
     {"scale": 0.5}),
    ("_scaled_dot_product_flash_attention_for_cpu_backward",
     aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
     (numbers(4, 8, 60, 50), *attended, 0.0, True), {}),
    ("_scaled_dot_product_flash_attention_for_cpu_backward",
     aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
     (numbers(4, 8, 60, 50), *masked, 0.0, False), {"attn_mask": mask}),
    ("multi_head_attention_forward", F.multi_head_attention_forward,
     (*heads, 40, 4, numbers(120, 40), numbers(120), None, None, False, 0.0, numbers(40, 40),
      numbers(40)), {"key_padding_mask": torch.randn(9, 200) > 1, "training": True}),
    ("tril", torch.tril, (numbers(300, 400), -20), {}),
    ("triu", torch.triu, (numbers(40, 50, 60), 3), {}),
    ("one_hot", F.one_hot, (torch.randint(0, 9, (300, 400)), 9), {}),
    ("einsum", torch.einsum, ("bld,bln->bdn", numbers(9, 20, 400), numbers(9, 20, 300)), {}),
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
        small = sum(t.numel() for t in Call(1, full, func, part.args, part.kwargs).inputs)
        assert small < sum(t.numel() for t in call.inputs)
        found = (part.func or func)(*part.args, **part.kwargs)
        wanted = part.result(func(*args, **kwargs))
        found, wanted = _compared(found, wanted)
        torch.testing.assert_close(found, wanted)


def _compared(found: Any, wanted: Any) -> tuple[Any, Any]:
    if type(wanted) is tuple:  # None where a slice does not apply
        kept = [at for at, value in enumerate(wanted) if value is not None]
        return [found[at] for at in kept], [wanted[at] for at in kept]
    return found, wanted


def test_consecutive_calls_take_every_element_of_a_region() -> None:
    chooser, taken = Chooser(), torch.zeros(40, 60, dtype=torch.bool)
    for _ in range(200):
        chooser.next_call()
        rows, columns = chooser.indices(40, 4, 0), chooser.indices(60, 6, 1)
        taken[rows[:, None], columns] = True
    assert taken.all()


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


def training(dtype: torch.dtype | None = None) -> Callable[[], Net]:
    torch.manual_seed(0)
    net = Net().to("dipu")
    optimizer = torch.optim.AdamW(net.parameters())
    words = torch.randint(0, 600, (2, 160)).to("dipu")

    def step() -> Net:
        with torch.autocast("dipu", dtype=dtype, enabled=dtype is not None):
            loss = net(words).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return net

    return step


def train(steps: int = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    step = training(dtype)
    net = [step() for _ in range(steps)][-1]
    return [weight.detach().cpu() for weight in net.parameters()]


@pytest.mark.parametrize("level", ["api", "aten"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_a_healthy_training_has_no_suspect(level: Any, dtype: torch.dtype | None) -> None:
    wanted = train(dtype=dtype)
    with OpAutoCompare(level=level) as tool:
        found = train(dtype=dtype)
    assert tool.failures == []
    assert tool.samples()[1:] == []
    assert tool_errors.problems() == []
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


def test_once_per_signature_a_suspect_is_confirmed_by_its_own_call() -> None:
    x = torch.randn(400, 300).to("dipu")
    with torch.dipu.quirk("wrong_epsilon"), OpAutoCompare(mode="signature") as tool:
        F.layer_norm(x, (300,))
    assert [failure.item for failure in tool.failures] == ["output"]


def test_a_suspect_that_comes_again_later_is_judged_as_a_whole_again() -> None:
    x = torch.randn(400, 300).to("dipu")
    with OpAutoCompare(background=False) as tool:
        for is_faulty in (True, False, False, True, True):
            with torch.dipu.quirk("wrong_epsilon") if is_faulty else nullcontext():
                F.layer_norm(x, (300,))
    assert [failure.item for failure in tool.failures] == ["output"]
    assert tool.samples()[1:] == []


def test_calls_are_judged_in_another_thread_and_all_of_them_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[str] = []
    forward = host_verdicts.forward

    def heard(taken: RecordedCall, standard: str) -> list[Item]:
        threads.append(threading.current_thread().name)
        return forward(taken, standard)

    monkeypatch.setattr(host_verdicts, "forward", heard)
    x = torch.randn(400, 300).to("dipu")
    with OpAutoCompare(bitwise=False) as tool:
        for _ in range(5):
            torch.exp(x)
            x.mul_(2)
    assert tool.compared == 10 and tool.failures == []
    assert threads == ["op_tools"] * 10


def test_a_call_is_counted_as_not_checked_where_too_many_are_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 0.0)
    go_on = threading.Event()
    items = Job.items

    def judged(job: Job, differed: Differed) -> list[Item]:
        go_on.wait(10)
        return items(job, differed)

    monkeypatch.setattr(Job, "items", judged)
    x = torch.randn(400, 300).to("dipu")
    with OpAutoCompare() as tool:
        for _ in range(400):
            torch.exp(x)
        go_on.set()
    assert tool.compared + tool.skipped[tool_module.BEHIND, "torch.exp"] == 400
    assert 0 < tool.compared < 400


def test_the_gradients_of_a_narrow_product_are_judged_in_float64() -> None:
    x, weight = torch.randn(400, 300).bfloat16(), torch.randn(200, 300).bfloat16()
    leaves = [one.to("dipu").requires_grad_() for one in (x, weight)]
    with OpAutoCompare(bitwise=False):
        F.linear(*leaves).sum().backward()
    found = {row["name"].split()[-1]: row["error_info"] for row in rows()}
    assert all("torch.float64" in found[item] for item in ("output", "grad[0]", "grad[1]"))


@pytest.mark.parametrize("func", [torch.mul, torch.mm, F.scaled_dot_product_attention])
def test_a_tensor_that_is_given_twice_has_the_sum_of_both_gradients(func: Any) -> None:
    shape = (4, 8, 60, 50) if func is F.scaled_dot_product_attention else (300, 300)
    x = torch.randn(shape).to("dipu").requires_grad_()
    count = 3 if func is F.scaled_dot_product_attention else 2
    with OpAutoCompare() as tool:
        for _ in range(2):
            func(*[x] * count).sum(-1).sum().backward()
    assert tool.failures == []
    assert tool.samples()[1:] == []


def test_the_gradients_of_a_large_loss_are_judged_by_rows() -> None:
    x = torch.randn(900, 100).to("dipu").requires_grad_()
    targets = torch.arange(900).remainder(100).masked_fill(torch.arange(900) % 3 == 0, -100)
    targets = targets.to("dipu")
    with OpAutoCompare() as tool:
        F.cross_entropy(x, targets, label_smoothing=0.1).backward()
    assert tool.failures == []
    assert tool.samples()[1:] == []
    assert (tool.items, tool.skipped) == (1, {})


def test_an_operator_called_by_its_aten_name_has_the_rule_of_the_operator() -> None:
    x = torch.randn(300, 300).to("dipu")
    with OpAutoCompare() as tool:
        torch.ops.aten.mm.default(x, x)
    assert (tool.compared, tool.skipped) == (1, {})


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (torch.outer, (numbers(300), numbers(400))),
        (torch.mul, (numbers(300, 1), numbers(400))),
        (torch.mm, (numbers(300, 2), numbers(2, 400))),
        (F.linear, (numbers(300, 2), numbers(400, 2))),
        (torch.addmm, (numbers(400), numbers(300, 2), numbers(2, 400))),
    ],
    ids=["outer", "mul", "mm", "linear", "addmm"],
)
def test_a_large_result_of_small_arguments_is_sampled(
    func: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    call = Call(1, f"torch.{func.__name__}", func, args, {})
    assert slices.is_large(call)
    part = slices.slice_of(call, Chooser())
    assert part is not None
    found = func(*part.args, **part.kwargs)
    assert found.numel() < func(*args).numel()
    torch.testing.assert_close(found, part.result(func(*args)))


def test_a_wrong_shape_is_not_large() -> None:
    call = Call(1, "torch.mul", torch.mul, (numbers(300, 7), numbers(400)), {})
    assert not slices.is_large(call)


@pytest.mark.parametrize(
    ("kernel", "func", "shapes"),
    [
        ("gelu", F.gelu, [(400, 300)]),
        ("gelu", F.gelu, [(1200, 1000)]),
        ("_softmax", torch.softmax, [(1200, 1000)]),
        ("mm", torch.mm, [(400, 300), (300, 200)]),
        ("_scaled_dot_product.*", F.scaled_dot_product_attention, [(4, 8, 60, 50)] * 3),
    ],
    ids=["small", "gelu", "softmax", "mm", "attention"],
)
def test_one_nan_is_reported_at_once_where_it_cannot_be_right(
    kernel: str, func: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    args = [torch.randn(shape).to("dipu") for shape in shapes]
    with OpAutoCompare(background=False) as tool, torch.dipu.quirk("nan", kernel):
        func(*args, **({"dim": -1} if func is torch.softmax else {}))
    assert [failure.item for failure in tool.failures] == ["output"]


@pytest.mark.parametrize("size", [300, 1000], ids=["judged as a whole", "judged at a place"])
@pytest.mark.parametrize("level", ["api", "aten"])
def test_one_wrong_element_of_a_product_is_found_by_a_projection(level: Any, size: int) -> None:
    bias, x, weight = (torch.randn(size, size).to("dipu") for _ in range(3))
    with OpAutoCompare(background=False, level=level) as tool:
        for _ in range(2):
            with torch.dipu.quirk("bit_flip", "addmm", p=1.0, seed=3):
                torch.addmm(bias, x, weight)
    assert [failure.item for failure in tool.failures] == ["output"]


def test_one_wrong_element_of_a_gradient_is_found_by_a_projection() -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(1000, 1000).to("dipu").requires_grad_() for _ in range(2))
    with OpAutoCompare(background=False) as tool:
        for _ in range(2):
            result = torch.mm(x, weight)
            flown = torch.randn(1000, 1000).to("dipu")
            with torch.dipu.quirk("bit_flip", "mm", p=0.03, seed=1537):  # the first of 60 products
                result.backward(flown)
    assert len(tool.failures) == 1 and tool.failures[0].item.startswith("grad")


def test_copies_that_arrive_late_are_waited_for() -> None:
    x = torch.randn(400, 300).to("dipu")
    with torch.dipu.quirk("late_copy"), OpAutoCompare(bitwise=False, background=True) as tool:
        for _ in range(20):
            torch.exp(x)
            torch.softmax(x, -1)
            x[:10].mul_(2)
    assert (tool.failures, tool.samples()[1:], tool.compared) == ([], [], 80)


WAITS = ("Pageable", "aten::item", "aten::nonzero")


def waits_of(step: Callable[[], object]) -> Counter[str]:
    """What a step does that waits for the device, in the program's threads."""
    kinds = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
    with profile(activities=kinds) as found:
        step()
    names = [event.name for event in found.events()]
    return Counter(name for name in names if any(word in name for word in WAITS))


@pytest.mark.parametrize("level", ["api", "aten"])
def test_the_program_never_waits_for_its_device(
    level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as on a GPU, whose memory the host does not see
    monkeypatch.setattr(statistics, "kind_is_seen", lambda kind: kind == "cpu")
    monkeypatch.setattr(Background, "offer", lambda own, work, seconds: True)  # no judge runs
    step = training()
    for _ in range(2):
        step()
    plain = waits_of(step)
    with OpAutoCompare(level=level, budget="none") as tool:
        for _ in range(3):
            step()
        assert waits_of(step) == plain
    assert tool.counts.calls > 50
    assert tool_errors.problems() == []


def test_results_that_are_infinite_by_their_meaning_are_not_suspect() -> None:
    x = torch.randn(400, 300).to("dipu")
    with OpAutoCompare(background=False) as tool:
        for _ in range(2):
            x.masked_fill(x > 3, float("-inf"))
            torch.log(torch.zeros_like(x))
            1 / torch.zeros_like(x)
    assert tool.failures == []
    assert tool.samples()[1:] == []


def test_a_gradient_of_filters_alone_is_no_suspect() -> None:
    images, filters = torch.randn(8, 3, 64, 64).to("dipu"), torch.randn(64, 3, 7, 7).to("dipu")
    with OpAutoCompare(level="aten") as tool:
        filters.requires_grad_()
        F.conv2d(images, filters, stride=2, padding=3).sum().backward()
    assert (tool.failures, tool.samples()[1:], tool_errors.problems()) == ([], [], [])


def test_a_mask_of_infinities_makes_no_suspect() -> None:
    x = torch.randn(400, 300).to("dipu")
    mask = torch.zeros(400, 300).to("dipu").masked_fill(x > 0, float("-inf"))
    with OpAutoCompare() as tool:
        x + mask
    assert (tool.failures, tool.samples()[1:]) == ([], [])


def test_the_kernel_of_rms_norm_has_the_epsilon_of_its_type() -> None:
    x = (torch.randn(900, 100) * 1e-4).to("dipu")
    with OpAutoCompare() as tool:
        torch.ops.aten._fused_rms_norm.default(x, [100], None, None)
    assert (tool.compared, tool.failures, tool.samples()[1:]) == (1, [], [])


def test_a_copy_has_to_be_equal_bit_for_bit() -> None:
    x = torch.ones(64).to("dipu")
    with OpAutoCompare() as tool, torch.dipu.quirk("bit_flip", "cat", p=1.0, seed=15):
        assert 0 < (torch.cat([x, x]) - 1).abs().max() < 3e-7
    assert [failure.verdict.rule for failure in tool.failures] == ["copy"]


def test_whole_judges_every_element() -> None:
    x = torch.randn(400, 300).to("dipu")
    with torch.dipu.quirk("wrong_epsilon"), OpAutoCompare(whole=True) as tool:
        F.layer_norm(x, (300,))
    assert [failure.item for failure in tool.failures] == ["output"]


def test_a_large_call_without_a_rule_is_counted() -> None:
    x = torch.randn(400, 300).to("dipu")
    with OpAutoCompare() as tool:
        torch.cdist(x, x)
        torch.narrow(x, 0, 0, 2)
    assert [reason for reason, _ in tool.skipped] == [
        "more than 65,536 elements and no rule to sample it"
    ]


def test_arguments_of_large_calls_are_not_held_until_the_backward_pass() -> None:
    x = torch.randn(300, 300).to("dipu").requires_grad_()
    with OpAutoCompare(background=True):
        h = x + 1
        held = weakref.ref(h)
        y = h + 1  # autograd saves nothing of it
        del h
        assert held() is None
        y.sum().backward()
