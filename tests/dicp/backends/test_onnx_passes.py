"""Passes of compilers that read ONNX: what moves nothing goes, and heads are shared as they are."""

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dicp.fused  # noqa: F401  # declares torch.ops.dicp
from deeplink_vendors.cpu import onnxrt
from deeplink_vendors.cpu.onnx.passes import tidy
from dicp.dynamo_bridge.passes.canonical import canonicalise

aten = torch.ops.aten


def decoded(q: Tensor, k: Tensor) -> Tensor:
    """Attention of one token with permuted heads; two heads of q share one of k."""
    q = aten.permute.default(aten.reshape.default(q, [1, 1, 4, 8]), [0, 2, 1, 3])
    wide = aten.expand.default(aten.unsqueeze.default(k, 2), [1, 2, 2, 5, 8])
    wide = aten.reshape.default(wide, [1, 4, 5, 8])
    made = torch.ops.dicp.sdpa.default(q, wide, wide)
    turned = aten.permute.default(made, [0, 2, 1, 3])
    return aten.mul.Tensor(aten.reshape.default(turned, [1, 1, 32]), 2)


def test_one_token_is_decoded_in_four_steps() -> None:
    args = torch.randn(1, 1, 32), torch.randn(1, 2, 5, 8)
    tidied = tidy(canonicalise(make_fx(decoded, tracing_mode="fake")(*args), onnxrt.backend))
    calls = [node.target for node in tidied.graph.nodes if node.op == "call_function"]
    reshape = aten.reshape.default
    assert calls == [reshape, torch.ops.dicp.sdpa.default, reshape, aten.mul.Tensor]
    torch.testing.assert_close(tidied(*args), decoded(*args))


def test_a_permute_that_moves_stays() -> None:
    gm = make_fx(lambda x: aten.permute.default(x, [1, 0, 2]) * 2, tracing_mode="fake")(
        torch.ones(2, 3, 1)
    )
    calls = [node.target for node in tidy(gm).graph.nodes if node.op == "call_function"]
    assert calls[0] is aten.permute.default
