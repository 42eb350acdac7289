"""Layers of torch.nn: outputs and gradients against the CPU's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

Make = Callable[[], nn.Module]

IMAGE: dict[str, Make] = {
    "conv2d": lambda: nn.Conv2d(4, 6, 3, padding=1),
    "conv2d grouped strided": lambda: nn.Conv2d(4, 4, 3, stride=2, groups=2, bias=False),
    "conv2d dilated reflect": lambda: nn.Conv2d(
        4, 2, 3, dilation=2, padding=2, padding_mode="reflect"
    ),
    "conv_transpose2d": lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, output_padding=1),
    "batch_norm": lambda: nn.BatchNorm2d(4),
    "group_norm": lambda: nn.GroupNorm(2, 4),
    "instance_norm": lambda: nn.InstanceNorm2d(4, affine=True),
    "max_pool": lambda: nn.MaxPool2d(2),
    "avg_pool": lambda: nn.AvgPool2d(3, 2, 1),
    "adaptive_pool": lambda: nn.AdaptiveAvgPool2d(3),
    "upsample": lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
    "pixel_shuffle": lambda: nn.PixelShuffle(2),
    "prelu": lambda: nn.PReLU(4),
    "unfold": lambda: nn.Unfold(3),
}
SEQUENCE: dict[str, Make] = {
    "linear": lambda: nn.Linear(8, 5),
    "layer_norm": lambda: nn.LayerNorm(8),
    "rms_norm": lambda: nn.RMSNorm(8),
    "rnn": lambda: nn.RNN(8, 6),
    "lstm": lambda: nn.LSTM(8, 6, num_layers=2, bidirectional=True),
    "lstm projected": lambda: nn.LSTM(8, 6, proj_size=3),
    "gru": lambda: nn.GRU(8, 6, num_layers=2),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
    "conv1d": lambda: nn.Conv1d(5, 3, 3),
    "softmax": lambda: nn.LogSoftmax(-1),
    "gelu": lambda: nn.GELU(),
    "silu": lambda: nn.SiLU(),
}
CASES = [(name, make, (2, 4, 8, 8)) for name, make in IMAGE.items()] + [
    (name, make, (3, 5, 8)) for name, make in SEQUENCE.items()
]


def _run(module: nn.Module, x: Tensor, *args: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Floating outputs, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    outputs = [out for out in tree_leaves(module(x, *args)) if out.requires_grad]
    torch.stack([(out * out.detach().cos()).sum() for out in outputs]).sum().backward()
    grads: list[Any] = [x.grad, *(p.grad for p in module.parameters())]
    return outputs, [grad for grad in grads if grad is not None]


def _same(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert len(actual) == len(expected)
    for mine, cpu in zip(actual, expected, strict=True):
        assert mine.device.type == "dipu"
        torch.testing.assert_close(mine.detach().cpu(), cpu.detach())


# raised by the CPU's own kernel, on the CPU too
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize(("name", "make", "shape"), CASES, ids=[case[0] for case in CASES])
def test_a_layer_gives_the_cpus_outputs_and_gradients(
    name: str, make: Make, shape: tuple[int, ...]
) -> None:
    host = make()
    device = copy.deepcopy(host).to("dipu")
    x = torch.randn(shape)
    expected, actual = _run(host, x), _run(device, x.to("dipu"))
    _same(actual[0], expected[0])
    _same(actual[1], expected[1])


@pytest.mark.parametrize("cell", [nn.RNN, nn.LSTM, nn.GRU])
def test_a_packed_sequence_gives_the_cpus_outputs(cell: type[nn.Module]) -> None:
    host = cell(4, 3)  # type: ignore[call-arg]
    device = copy.deepcopy(host).to("dipu")
    padded = torch.randn(5, 3, 4)
    lengths = torch.tensor([5, 2, 3])
    packed = pack_padded_sequence(padded.to("dipu"), lengths, enforce_sorted=False)
    assert packed.data.device.type == "dipu"
    assert packed.batch_sizes.device.type == "cpu"
    actual, actual_lengths = pad_packed_sequence(device(packed)[0])
    host_packed = pack_padded_sequence(padded, lengths, enforce_sorted=False)
    expected, _ = pad_packed_sequence(host(host_packed)[0])
    torch.testing.assert_close(actual.cpu(), expected)
    assert actual_lengths.tolist() == [5, 2, 3]


@pytest.mark.parametrize("cell", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_a_recurrent_cell_gives_the_cpus_outputs_and_gradients(cell: type[nn.Module]) -> None:
    host = cell(4, 3)  # type: ignore[call-arg]
    device = copy.deepcopy(host).to("dipu")
    x = torch.randn(2, 4)
    expected, actual = _run(host, x), _run(device, x.to("dipu"))
    _same(actual[0], expected[0])
    _same(actual[1], expected[1])


def test_embedding_with_padding_and_repeats() -> None:
    host = nn.Embedding(5, 3, padding_idx=1)
    device = copy.deepcopy(host).to("dipu")
    index = torch.tensor([[0, 1], [4, 4]])
    host(index).sum().backward()
    actual = device(index.to("dipu"))
    actual.sum().backward()
    assert torch.equal(actual.detach().cpu(), host(index).detach())
    assert host.weight.grad is not None
    assert device.weight.grad is not None
    assert torch.equal(device.weight.grad.cpu(), host.weight.grad)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode: str) -> None:
    host = nn.EmbeddingBag(6, 3, mode=mode)
    device = copy.deepcopy(host).to("dipu")
    index, offsets = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1])
    expected = host(index, offsets)
    actual = device(index.to("dipu"), offsets.to("dipu"))
    torch.testing.assert_close(actual.detach().cpu(), expected.detach())


@pytest.mark.parametrize("masking", ["none", "causal", "mask", "grouped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaled_dot_product_attention(masking: str, dtype: torch.dtype) -> None:
    query = torch.randn(2, 4, 6, 8, dtype=dtype)
    heads = 2 if masking == "grouped" else 4
    key, value = torch.randn(2, 2, heads, 6, 8, dtype=dtype)
    options: dict[str, Any] = {"is_causal": masking == "causal", "enable_gqa": heads == 2}
    mask = torch.rand(6, 6) > 0.3 if masking == "mask" else None
    results = []
    for device in ("cpu", "dipu"):
        inputs = [t.detach().to(device).requires_grad_() for t in (query, key, value)]
        here = None if mask is None else mask.to(device)
        out = functional.scaled_dot_product_attention(*inputs, attn_mask=here, **options)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), inputs)])
    _same(results[1], results[0])


def test_multihead_attention_with_weights() -> None:
    host = nn.MultiheadAttention(8, 2, batch_first=True)
    device = copy.deepcopy(host).to("dipu")
    x = torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    expected = host(x, x, x, key_padding_mask=padding)
    y = x.to("dipu")
    _same(list(device(y, y, y, key_padding_mask=padding.to("dipu"))), list(expected))


def test_encoder_fast_path_in_evaluation() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    host = nn.TransformerEncoder(layer, 2).eval()
    device = copy.deepcopy(host).to("dipu")
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(device(x.to("dipu")).cpu(), host(x))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": lambda x, y: functional.cross_entropy(x, y, label_smoothing=0.1),
    "nll ignoring": lambda x, y: functional.nll_loss(x.log_softmax(1), y, ignore_index=1),
    "mse": lambda x, y: functional.mse_loss(x[:, 0], y.float()),
    "bce": lambda x, y: functional.binary_cross_entropy_with_logits(x[:, 0], (y > 1).float()),
    "smooth_l1": lambda x, y: functional.smooth_l1_loss(x[:, 0], y.float()),
    "kl_div": lambda x, y: functional.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean"),
    "ctc": lambda x, y: functional.ctc_loss(
        x.log_softmax(1).view(6, 1, 4).expand(6, 2, 4),
        torch.tensor([[1, 2], [3, 1]], device=x.device),
        torch.tensor([6, 5]),
        torch.tensor([2, 1]),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient(name: str) -> None:
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 1, 2])
    results = []
    for device in ("cpu", "dipu"):
        leaf = x.detach().to(device).requires_grad_()
        loss = LOSSES[name](leaf, y.to(device))
        results.append([loss, *torch.autograd.grad(loss, leaf)])
    _same(results[1], results[0])


def test_channels_last_convolution_keeps_its_format() -> None:
    host = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device = copy.deepcopy(host).to("dipu")
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    actual = device(x.to("dipu"))
    assert actual.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(actual.detach().cpu(), host(x).detach())


def test_batch_norm_updates_its_running_statistics() -> None:
    host = nn.BatchNorm1d(3)
    device = copy.deepcopy(host).to("dipu")
    for _ in range(3):
        x = torch.randn(5, 3)
        host(x)
        device(x.to("dipu"))
    assert device.running_var is not None
    assert host.running_var is not None
    torch.testing.assert_close(device.running_var.cpu(), host.running_var)
    assert device.num_batches_tracked is not None
    assert device.num_batches_tracked.item() == 3


def test_clip_grad_norm() -> None:
    layer = nn.Linear(3, 3).to("dipu")
    (100 * layer(torch.ones(1, 3, device="dipu"))).sum().backward()
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    squares = [p.grad.square().sum().item() for p in layer.parameters() if p.grad is not None]
    assert sum(squares) == pytest.approx(1.0, rel=1e-4)
