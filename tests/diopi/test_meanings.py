"""The meanings that are ours, against another way to say the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import diopi
from tests.diopi import op_samples
from tests.diopi.op_samples import sample


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adadelta", "rmsprop"])
def test_an_optimizer_steps_like_torchs(name: str) -> None:
    given = sample(name)
    start = given["param"].clone()
    maker, states, options = OPTIMIZERS[name]
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = given["grad"].clone()
    optimizer = maker([parameter], **options(given))
    optimizer.state[parameter] = {k: given[v].clone() for k, v in states.items()}
    if "step" in given:
        optimizer.state[parameter]["step"] = torch.tensor(float(given["step"] - 1))
    elif name in ("adadelta", "rmsprop"):
        optimizer.state[parameter]["step"] = torch.tensor(0.0)
    optimizer.step()
    diopi.get(name)(**given)
    torch.testing.assert_close(given["param"], parameter.data)
    assert not torch.equal(given["param"], start)


def _adam_options(given: dict[str, Any]) -> dict[str, Any]:
    kept = {k: given[k] for k in ("lr", "eps", "weight_decay", "amsgrad")}
    return {**kept, "betas": (given["beta1"], given["beta2"])}


def _same_options(*names: str) -> Any:
    return lambda given: {name: given[name] for name in names}


MOMENTS = {n: n for n in ("exp_avg", "exp_avg_sq")} | {"max_exp_avg_sq": "max_exp_avg_sq"}
OPTIMIZERS: dict[str, Any] = {
    "adam": (torch.optim.Adam, MOMENTS, _adam_options),
    "adamw": (torch.optim.AdamW, MOMENTS, _adam_options),
    "sgd": (torch.optim.SGD, {"momentum_buffer": "buf"},
            _same_options("lr", "momentum", "dampening", "weight_decay", "nesterov")),
    "adadelta": (torch.optim.Adadelta, {"square_avg": "square_avg", "acc_delta": "acc_delta"},
                 _same_options("lr", "rho", "eps", "weight_decay")),
    "rmsprop": (torch.optim.RMSprop,
                {"square_avg": "square_avg", "grad_avg": "grad_avg",
                 "momentum_buffer": "momentum_buf"},
                _same_options("lr", "alpha", "eps", "weight_decay", "momentum", "centered")),
}  # fmt: skip


def test_flash_attention_is_torchs_attention() -> None:
    given = sample("flash_attention")
    given |= {"k": given["k"][:, :5], "v": given["v"][:, :5]}  # torch aligns the mask elsewhere
    out, lse = diopi.get("flash_attention")(**given)
    q, k, v = (given[n].transpose(1, 2) for n in "qkv")
    expected = functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=given["softmax_scale"], enable_gqa=True
    )
    torch.testing.assert_close(out.transpose(1, 2), expected)
    assert lse.shape == (2, 4, 5)


def test_packed_attention_is_attention_of_each_sequence() -> None:
    given = sample("flash_attention_var_len")
    out, _ = diopi.get("flash_attention_var_len")(**given)
    rest = {k: given[k] for k in ("gen", "alibi_slopes", *op_samples.HOW)}
    for low, high in ((0, 3), (3, 7)):
        part = {n: given[n][None, low:high] for n in "qkv"}
        alone, _ = diopi.get("flash_attention")(**part, **rest)
        torch.testing.assert_close(out[low:high], alone[0])


@pytest.mark.parametrize("layout", ["BSND", "BNSD", "BSH", "SBH"])
def test_the_layouts_of_attention_mean_the_same(layout: str) -> None:
    given = sample("customized_flash_attention")
    expected = diopi.get("customized_flash_attention")(**given)[0]
    turned = {n: _laid_out(given[n], layout) for n in "qkv"}
    found = diopi.get("customized_flash_attention")(**given | turned | {"input_layout": layout})[0]
    torch.testing.assert_close(found, _laid_out(expected, layout))


def _laid_out(tensor: Tensor, layout: str) -> Tensor:
    tensor = tensor if layout[0] == "B" else tensor.transpose(0, 1)
    tensor = tensor.transpose(1, 2) if layout == "BNSD" else tensor
    return tensor.flatten(2) if layout.endswith("H") else tensor


def test_paged_attention_reads_the_blocks_of_the_table() -> None:
    given = sample("paged_attention")
    out = diopi.get("paged_attention")(**given)
    keys, values = (given[n].view(16, 2, 8) for n in "kv")
    places = [8, 9, 10, 11, 12, 13]  # of the second row: block 2, then two tokens of block 3
    q = given["q"][1].view(1, 4, 1, 8)
    k, v = (t[places].repeat_interleave(2, 1).transpose(0, 1)[None] for t in (keys, values))
    expected = functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out[1], expected.flatten())


def test_synchronized_batch_norm_is_batch_norm_of_all_ranks() -> None:
    torch.manual_seed(0)
    x, grad, weight, bias = (torch.randn(s) for s in ((8, 3, 5), (8, 3, 5), (3,), (3,)))
    parts = x.chunk(2)
    stats = [diopi.get("batch_norm_stats")(part, 1e-5) for part in parts]
    means, invstds = (torch.stack([s[i] for s in stats]) for i in (0, 1))
    running = torch.zeros(3), torch.ones(3)
    counts = torch.tensor([20.0, 20.0])
    mean, invstd = diopi.get("batch_norm_gather_stats_with_counts")(
        x, means, invstds, *running, 0.1, 1e-5, counts
    )
    out = diopi.get("batch_norm_elemt")(x, weight, bias, mean, invstd, 1e-5)
    leaf = x.clone().requires_grad_()
    statistics = torch.zeros(3), torch.ones(3)
    expected = functional.batch_norm(leaf, *statistics, weight, bias, training=True)
    expected.backward(grad)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(running, statistics)
    sums = diopi.get("batch_norm_backward_reduce")(grad, x, mean, invstd, weight, True, True, True)
    back = diopi.get("batch_norm_backward_elemt")(
        grad, x, mean, invstd, weight, sums[0], sums[1], torch.tensor([20, 20])
    )
    torch.testing.assert_close(back, leaf.grad)


def test_rms_norm_is_torchs_and_so_is_its_gradient() -> None:
    given = sample("rms_norm") | {"bias": None}
    out, inv = diopi.get("rms_norm")(**given)
    leaf, weight = given["input"].clone().requires_grad_(), given["weight"].requires_grad_()
    expected = functional.rms_norm(leaf, [3], weight, 1e-5)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    expected.backward(grad)
    found = diopi.get("rms_norm_backward")(grad, leaf, weight, None, inv, [3], 1e-5)
    torch.testing.assert_close(found[:2], (leaf.grad, weight.grad))
    fused = diopi.get("fused_rms_norm_backward")(
        grad, leaf.detach(), [3], inv[:, None], weight.detach(), [True, True]
    )
    torch.testing.assert_close(fused, (leaf.grad, weight.grad))


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_general_pooling_is_the_one_it_names(n: int, mode: str, adaptive: bool) -> None:
    given = sample(f"pool{n}d") | {"mode": mode, "adaptive": adaptive, "output_size": [2] * n}
    leaf = given["input"].requires_grad_()
    kind = f"adaptive_{mode}" if adaptive else mode
    expected = getattr(functional, f"{kind}_pool{n}d")(leaf, 2)
    torch.testing.assert_close(diopi.get(f"pool{n}d")(**given), expected)
    grad = torch.randn_like(expected)
    expected.backward(grad)
    backward = sample(f"pool{n}d_backward") | {k: given[k] for k in ("input", "mode", "adaptive")}
    found = diopi.get(f"pool{n}d_backward")(**backward | {"grad_output": grad})
    torch.testing.assert_close(found, leaf.grad)


def test_nms_keeps_the_best_of_overlapping_boxes() -> None:
    assert diopi.get("nms")(**sample("nms")).tolist() == [1, 2]


def test_roi_align_of_a_whole_image_is_its_mean() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4)
    box = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]])
    found = diopi.get("roi_align")(image, box, 1.0, 1, 1, 4, True)
    assert found.item() == pytest.approx(7.5)
    # four equal regions, two by two samples each at the middle of the pixels
    quarters = diopi.get("roi_align")(image, box, 1.0, 2, 2, 2, True)
    assert quarters.flatten().tolist() == [2.5, 4.5, 10.5, 12.5]


def test_penalties_touch_only_tokens_that_were_seen() -> None:
    logits = torch.zeros(2, 4)
    diopi.get("apply_penalty")(
        logits, torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), torch.tensor([0, 3, 1]),
        torch.tensor([1, 2, 9]), torch.tensor([0, 2, 3]), 2,
    )  # fmt: skip
    assert logits.tolist() == [[-1.5, 0, 0, -2.0], [0, -2.0, 0, 0]]


def test_masked_softmax_and_its_gradient() -> None:
    given = sample("scaled_masked_softmax")
    leaf = given["input"].double().requires_grad_()
    out = diopi.get("scaled_masked_softmax")(**given | {"input": leaf})
    grad = torch.randn_like(out)
    out.backward(grad)
    found = diopi.get("scaled_masked_softmax_backward")(
        grad, out.detach(), given["mask"], given["scale"], False
    )
    torch.testing.assert_close(found, leaf.grad)


def test_ctc_loss_is_torchs_with_each_reduction() -> None:
    given = sample("ctc_loss")
    lengths = (given["targets"], given["input_lengths"], given["target_lengths"])
    for number, reduction in enumerate(("none", "mean", "sum")):
        leaf = given["log_probs"].clone().requires_grad_()
        expected = functional.ctc_loss(leaf, *lengths, reduction=reduction)
        found = diopi.get("ctc_loss")(**given | {"reduction": number})
        torch.testing.assert_close(found[0], expected)
        grad = torch.randn_like(expected)
        expected.backward(grad)
        back = diopi.get("ctc_loss_backward")(
            grad, given["log_probs"], *lengths, *found[1:], 0, number, False
        )
        torch.testing.assert_close(back, leaf.grad)


def test_token_attention_in_two_steps_is_attention() -> None:
    scores = diopi.get("token_attention_inference")(**sample("token_attention_inference"))
    given = sample("token_attention_inference")
    values = sample("token_softmax_reduce_v_inference")["v"]
    places = {k: given[k] for k in op_samples.PLACES}
    out = diopi.get("token_softmax_reduce_v_inference")(scores, values, **places, other_kv_index=0)
    seen = [[3, 4], [5, 6, 7, 8]]  # the ends of the rows of b_loc
    for row, tokens in enumerate(seen):
        q = given["q"][row][None, :, None]
        k, v = (t[tokens].transpose(0, 1)[None] for t in (given["k"], values))
        expected = functional.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(out[row], expected[0, :, 0])


def test_context_attention_is_causal_attention_of_each_sequence() -> None:
    given = sample("context_attention_inference")
    out = diopi.get("context_attention_inference")(**given)
    for low, high in ((0, 2), (2, 6)):
        q, k, v = (given[n][low:high].transpose(0, 1)[None] for n in "qkv")
        expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.testing.assert_close(out[low:high], expected[0].transpose(0, 1))


def test_rotary_embeddings_turn_and_turn_back() -> None:
    given = sample("rotary_embedding")
    angle = given["cos"]
    turn = given | {"cos": angle.cos(), "sin": angle.sin()}
    turned = diopi.get("rotary_embedding")(**turn)
    back = diopi.get("rotary_embedding")(**turn | {"x": turned, "conj": True})
    torch.testing.assert_close(back, given["x"])
    # neighbours as pairs: a complex product
    pairs = torch.view_as_complex(given["x"].unflatten(-1, (-1, 2)).contiguous())
    expected = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    torch.testing.assert_close(turned, expected)


def test_a_focal_loss_without_focus_is_cross_entropy() -> None:
    given = sample("sigmoid_focal_loss")
    found = diopi.get("sigmoid_focal_loss")(**given | {"alpha": -1.0, "gamma": 0.0})
    expected = functional.binary_cross_entropy_with_logits(given["inputs"], given["targets"])
    torch.testing.assert_close(found, expected)
    right = torch.where(given["targets"] == 1, given["inputs"], -given["inputs"]).sigmoid()
    weight = torch.where(given["targets"] == 1, 0.25, 0.75)
    focused = (-weight * (1 - right) ** 2 * right.log()).mean()
    torch.testing.assert_close(diopi.get("sigmoid_focal_loss")(**given), focused)


def test_the_scaler_steps_like_torchs() -> None:
    for found_inf, tracker, scale in ((1.0, 1, 8.0), (0.0, 0, 8.0), (0.0, 1, 8.0), (0.0, 1, 3e38)):
        mine, theirs = (
            [torch.tensor([scale]), torch.tensor([tracker], dtype=torch.int32)] for _ in range(2)
        )
        rest = (torch.tensor([found_inf]), 2.0, 0.5, 2)
        diopi.get("amp_update_scale")(*mine, *rest)
        torch._amp_update_scale_(*theirs, *rest)
        torch.testing.assert_close(mine, theirs)
    grads = [torch.tensor([2.0, 4.0]), torch.tensor([torch.inf])]
    flag = torch.zeros(1)
    diopi.get("amp_foreach_non_finite_check_and_unscale")(grads, flag, torch.tensor([0.5]))
    assert (grads[0].tolist(), flag.item()) == ([1.0, 2.0], 1.0)


def test_dropout_keeps_scales_and_returns_a_mask() -> None:
    torch.manual_seed(0)
    out, kept = diopi.get("dropout")(torch.ones(10_000), 0.25, True, None)
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    torch.testing.assert_close(out, kept / 0.75)
    assert torch.equal(diopi.get("dropout")(torch.ones(3), 0.25, False, None)[0], torch.ones(3))


def test_clipping_scales_by_the_joint_norm() -> None:
    grads = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert diopi.get("clip_grad_norm")(grads, 1.0, 2.0, False) == pytest.approx(5.0)
    assert torch.cat(grads).tolist() == pytest.approx([0.6, 0.8])
    with pytest.raises(RuntimeError, match=r"the norm of order 2\.0 of the gradients is inf"):
        diopi.get("clip_grad_norm")([torch.tensor([torch.inf])], 1.0, 2.0, True)
