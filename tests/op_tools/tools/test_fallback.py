"""OpFallback: everything as if the device had done it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import op_tools
from op_tools.core import tool_errors
from op_tools.tensors import host_transfer
from tests.op_tools.small import Small


def device(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to("dipu", dtype)


def test_it_really_runs_on_the_cpu() -> None:
    x = device(4)
    with torch.dipu.quirk("nan", "sin"), op_tools.OpFallback(ops="torch.sin") as tool:
        result = torch.sin(x)
    assert tool.hits == {"torch.sin": 1}
    assert torch.equal(result.cpu(), torch.sin(x.cpu()))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x.__setitem__(0, 7),
        lambda x: torch.add(x, 1, out=x),
        lambda x: F.relu(x, inplace=True),
        lambda x: torch._foreach_add_([x], 1),
        lambda x: x.view(-1).mul_(2),
        lambda x: x[1:].zero_(),
        lambda x: x.t().add_(3) if x.dim() == 2 else x.add_(3),
        lambda x: torch.cumsum(x, 0, out=x),
    ],
)
@pytest.mark.parametrize("level", ["api", "aten"])
def test_writes_arrive(write: Callable[[Tensor], Any], level: Any) -> None:
    start = torch.randn(3, 4)
    wanted, mine = start.clone(), start.to("dipu")
    write(wanted)
    with op_tools.OpFallback(level=level) as tool:
        write(mine)
    assert torch.equal(mine.cpu(), wanted)
    assert tool.hits and not tool_errors.problems()


def test_the_written_argument_is_what_comes_back() -> None:
    x, out = device(3), torch.empty(0, device="dipu")
    with op_tools.OpFallback():
        assert x.add_(1) is x
        assert torch.add(x, 1, out=out) is out and out.shape == (3,)


def test_results_keep_their_type_device_and_alias() -> None:
    x = device(3, 4)
    with op_tools.OpFallback():
        found = x.sort()
        assert type(found) is torch.return_types.sort and found.values.device == x.device
        view = x.view(-1)
        view[0] = 5
        assert x.cpu()[0, 0] == 5
        assert x.to("cpu").device.type == "cpu" and x.cpu().numpy().shape == (3, 4)
        assert not x[:, ::2].is_contiguous()
        assert x[:, ::2].as_strided((3,), (1,)).tolist() == x.view(-1)[:3].tolist()


def test_hooks_on_tensors_work() -> None:
    heard = []
    x = device(3).requires_grad_()
    with op_tools.OpFallback():
        y = x * 2
        y.register_hook(lambda g: heard.append(g.device.type))
        y.retain_grad()
        y.sum().backward()
    assert heard == ["dipu"] and y.grad is not None and y.grad.tolist() == [1.0, 1.0, 1.0]


def test_kwargs_only_tensors_and_lists_are_moved() -> None:
    x, w = device(2, 3), device(4, 3)
    with op_tools.OpFallback() as tool:
        y = F.linear(input=x, weight=w)
        z = torch.cat(tensors=[x, x])
    assert tool.hits.keys() >= {"torch.nn.functional.linear", "torch.cat"}
    assert torch.equal(y.cpu(), F.linear(x.cpu(), w.cpu())) and z.shape == (4, 3)


def test_a_half_that_the_cpu_lacks_comes_back_in_its_type_with_its_gradient() -> None:
    half = device(3, 3).half()
    x = (half @ half.t() + 3 * torch.eye(3, device="dipu").half()).requires_grad_()
    with op_tools.OpFallback(ops="torch.linalg.cholesky"):
        factor = torch.linalg.cholesky(x)
    assert factor.dtype == torch.float16 and factor.device.type == "dipu"
    factor.sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float16


def test_autocast_gives_the_types_that_the_device_gives() -> None:
    x, layer = device(4, 8), nn.Linear(8, 8).to("dipu")
    with torch.autocast("dipu", dtype=torch.bfloat16):
        plain = (layer(x), torch.softmax(layer(x), -1), F.layer_norm(layer(x), (8,)))
        with op_tools.OpFallback() as tool:
            mine = (layer(x), torch.softmax(layer(x), -1), F.layer_norm(layer(x), (8,)))
    assert [t.dtype for t in mine] == [t.dtype for t in plain]
    assert not tool_errors.problems() and tool.hits["torch.nn.functional.linear"] == 3
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("level", ["api", "aten", "module"])
def test_a_training_trains_as_on_the_device(level: Any) -> None:
    def train(tool: Any) -> list[float]:
        torch.manual_seed(0)
        model = Small().to("dipu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(12, 8).to("dipu"), torch.randint(0, 4, (12,)).to("dipu")
        losses = []
        for _ in range(4):
            if tool is not None:
                tool.start()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if tool is not None:
            tool.stop()
        return losses

    plain = train(None)
    assert plain[-1] < plain[0]
    # at the module level the backbone's random numbers are drawn inside of one call
    mine = train(op_tools.OpFallback(level=level))
    assert not tool_errors.problems()
    assert mine == pytest.approx(plain, abs=1e-5)


def test_random_numbers_are_those_of_the_device_and_the_hosts_are_left() -> None:
    x = torch.ones(1000, device="dipu")
    torch.manual_seed(7)
    plain = [F.dropout(x).cpu(), F.dropout(x).cpu()]
    host = torch.rand(3)
    torch.manual_seed(7)
    with op_tools.OpFallback():
        mine = [F.dropout(x).cpu(), F.dropout(x).cpu()]
    assert all(torch.equal(a, b) for a, b in zip(mine, plain, strict=True))
    assert torch.equal(torch.rand(3), host)


def test_sparse_tensors_are_left_to_the_device_with_a_reason() -> None:
    x = torch.eye(3, device="dipu").to_sparse()
    with op_tools.OpFallback():
        y = torch.sparse.mm(x, torch.ones(3, 2, device="dipu"))
    assert y.cpu().tolist() == [[1.0, 1.0]] * 3
    assert any("sparse" in reason for reason in tool_errors.skipped())


def test_an_operator_that_fails_on_both_raises_the_devices_error() -> None:
    with op_tools.OpFallback(), pytest.raises(RuntimeError, match="must match the size"):
        torch.add(device(2), device(3))
    assert not tool_errors.problems()


def test_a_device_that_draws_other_numbers_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA's: the CPU draws from a stream of its own, and to seed that is to seed it alone."""
    device = torch.device("dipu", 0)
    before = torch.dipu.get_rng_state(device)
    monkeypatch.delattr(torch.dipu, "host_rng_state")
    monkeypatch.delitem(host_transfer._streams, device, raising=False)
    with host_transfer.random_numbers_of(device):
        torch.rand(2)
    assert torch.equal(torch.dipu.get_rng_state(device), before)
    monkeypatch.delitem(host_transfer._streams, device)
