"""OpDtypeCast: computed in another type, returned in the program's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import op_tools
from deeplink.errors import SettingError
from op_tools.core import tool_errors


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half().to("dipu")


def test_it_computes_in_the_other_type() -> None:
    a, b = half(8, 64), half(64, 8)
    with op_tools.OpDtypeCast() as tool:
        mine = a @ b
    assert tool.hits == {"torch.Tensor.matmul": 1}
    assert mine.dtype == torch.float16
    assert torch.equal(mine.cpu(), (a.cpu().float() @ b.cpu().float()).half())


def test_promotion_is_as_without_it() -> None:
    x = half(4)
    with op_tools.OpDtypeCast():
        assert (x + torch.ones(4, device="dipu")).dtype == torch.float32
        assert (x + x.bfloat16()).dtype == torch.float32
        assert (x > 0).dtype == torch.bool
        assert x.sort().indices.dtype == torch.int64
        assert type(x.max(dim=0)) is torch.return_types.max
        assert x.cpu().numpy().dtype.name == "float16"
        assert x.to(torch.bfloat16).dtype == torch.bfloat16
        assert torch.sum(x, dtype=torch.float64).dtype == torch.float64


def test_writes_and_aliases_arrive() -> None:
    x = half(4)
    wanted = x.cpu().add(1)
    with op_tools.OpDtypeCast():
        assert x.add_(1) is x and x.dtype == torch.float16
        assert torch.equal(x.cpu(), wanted)
        x[0] = 1
        x.view(2, 2)[1] = 3
    assert x.tolist() == [1.0, wanted[1].item(), 3.0, 3.0]


def test_gradients_go_through() -> None:
    x, w = half(4, 8).requires_grad_(), half(3, 8).requires_grad_()
    with op_tools.OpDtypeCast():
        F.linear(x, w).sum().backward()
    assert w.grad is not None and w.grad.dtype == torch.float16
    torch.testing.assert_close(w.grad.cpu()[0], x.detach().cpu().sum(0), rtol=1e-2, atol=1e-2)


def test_under_autocast_the_arguments_get_one_type() -> None:
    x, layer = torch.randn(4, 8).to("dipu"), torch.nn.Linear(8, 8).to("dipu")
    amp = torch.autocast("dipu", dtype=torch.bfloat16)
    with amp, op_tools.OpDtypeCast(casts="float32->float64"):
        wide = layer(layer(x))  # a bfloat16 argument with float32 weights
    assert wide.dtype == torch.bfloat16 and not tool_errors.problems()
    exact = layer.to("cpu").double()(layer(x.cpu().double()).bfloat16().double())
    torch.testing.assert_close(wide.cpu(), exact.bfloat16(), rtol=1e-2, atol=1e-2)


def test_the_dict_is_read_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64, 64).to("dipu")
    with op_tools.OpDtypeCast() as tool:
        torch.mm(x, x)
        assert not tool.hits
        monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.float32->torch.float16")
        low = torch.mm(x, x)
    assert torch.equal(low.cpu(), (x.cpu().half() @ x.cpu().half()).float())


def test_a_dict_that_cannot_be_is_reported_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OP_DTYPE_CAST_DICT", "torch.flot16->torch.float32")
    with pytest.raises(SettingError, match=r"no type 'torch\.flot16', meant float16"):
        op_tools.OpDtypeCast().start()


def test_rules_that_never_matched_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with op_tools.OpDtypeCast():
        torch.sin(half(2))
    out = capsys.readouterr().out
    assert "1 call of 1 operator in another type" in out
    assert "no argument was of torch.bfloat16" in out
    assert not tool_errors.problems()


def test_the_classic_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OP_TOOLS_VERBOSE", "1")
    with op_tools.OpDtypeCast(ops="torch.nn.functional.silu"):
        F.silu(half(2).bfloat16())
    out = capsys.readouterr().out
    assert "apply OpDtypeCastHook on torch.nn.functional.silu" in out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    config = "torch.float16->torch.float32,torch.bfloat16->torch.float32"
    name = "torch.nn.functional.silu"
    assert [name, "input[0]", "torch.bfloat16 -> torch.float32", config] in rows
    assert [name, "output[0]", "torch.float32 -> torch.bfloat16", config] in rows
