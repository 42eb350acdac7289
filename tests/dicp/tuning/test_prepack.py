"""Weights of linears laid out for their products, and taken anew when the program changes them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._functorch._aot_autograd.autograd_cache import check_cacheable

from dicp import torch_internals
from dicp.dynamo_bridge.run import MAX_CHANGES
from dicp.dynamo_bridge.tuning import prepack
from dicp.dynamo_bridge.tuning.prepack import FEW, MANY, Packed, Packing
from dlinfer import kernels


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(4, 6), nn.Linear(4, 6, bias=False)
        self.down, self.tied = nn.Linear(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.down(self.gate(x) * self.up(x))
        return self.tied(h.view(h.shape)) + self.tied.weight.sum()


@pytest.fixture
def runs() -> tuple[Model, Callable[[Tensor], Tensor], list[Packing], list[str]]:
    packings: list[Packing] = []
    ran: list[str] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        weights = torch_internals.parameters(gm)
        packings.append(Packing(gm, weights))

        def told(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *args: (ran.append(name), run(*args))[1]

        run, eager = told("packed", packings[0].gm.forward), told("eager", gm.forward)
        return Packed(run, eager, packings[0], weights)

    model = Model()
    torch.compiler.reset()
    return model, torch.compile(model, backend=backend), packings, ran


def test_linears_of_one_input_are_one_product_and_a_tied_weight_stays(runs: Any) -> None:
    model, compiled, packings, _ = runs
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert [len(group) for group in packings[0].groups] == [2, 1]
    products = packings[0].gm.graph.find_nodes(op="call_function", target=torch.matmul)
    assert len(products) == 2


def test_torch_s_cache_takes_the_packed_graph(runs: Any) -> None:
    _, compiled, packings, _ = runs
    with torch.no_grad():
        compiled(torch.randn(2, 3, 4))
    check_cacheable(packings[0].gm)  # raises


def test_a_changed_weight_is_taken_and_a_restless_one_leaves_the_graph_eager(runs: Any) -> None:
    model, compiled, _, ran = runs
    x = torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(MAX_CHANGES + 2):
            torch.testing.assert_close(compiled(x), model(x))
            model.up.weight.mul_(2)
    assert ran == ["packed"] * (MAX_CHANGES + 1) + ["eager"]


FEW_ROWS = torch.ops.dicp.few_rows.default


@pytest.mark.parametrize(
    ("rows", "dynamic", "wins", "product"),
    [
        (FEW, False, False, FEW_ROWS),
        (FEW + 1, True, False, FEW_ROWS),  # a size that changes may be 1 in the next call
        (FEW + 1, False, False, torch.matmul),
        (FEW + 1, False, True, FEW_ROWS),
        (MANY + 1, False, True, torch.matmul),
    ],
)
def test_what_may_be_few_rows_and_what_is_faster_by_their_op_has_it(
    rows: int, dynamic: bool, wins: bool, product: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepack, "LARGE", 0)
    monkeypatch.setattr(prepack, "_wins", lambda op, products: wins)
    used: list[fx.Node] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        weights = torch_internals.parameters(gm)
        packing = Packing(gm, weights, lambda: FEW_ROWS)
        used.extend(n for n in packing.gm.graph.nodes if n.target in (FEW_ROWS, torch.matmul))
        return Packed(packing.gm.forward, gm.forward, packing, weights)

    model, x = Model(), torch.randn(rows, 1, 4)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend, dynamic=dynamic)
        torch.testing.assert_close(compiled(x), model(x))
    assert {node.target for node in used} == {product}
    if product is FEW_ROWS:  # set to as many rows as were measured
        assert {len(node.args) == 3 for node in used} == {wins}


@pytest.mark.parametrize(("ours", "wins"), [(0.9, True), (0.99, False), (1.2, False)])
def test_the_op_of_few_rows_has_to_win_clearly(
    ours: float, wins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def op(x: Tensor, weight: Tensor, measured: bool) -> Tensor:
        ran.append("ours")
        return x @ weight.t()

    def seconds(run: Callable[[], object]) -> float:
        before = len(ran)
        run()
        noise = 5.0 if before == 0 else 0.0  # of the first round
        return noise + (ours if len(ran) > before else 1.0)

    monkeypatch.setattr(prepack, "seconds", seconds)
    assert prepack._wins(op, [(torch.ones(40, 3), torch.ones(5, 3))]) is wins
    assert ran


@pytest.mark.parametrize("rows", [33, 64, 77])
def test_the_kernel_of_few_rows_takes_more_where_it_is_set_to(rows: int) -> None:
    kernels.served("cpu")
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 40), torch.randn(40, 300).t()
    expected = (x.double() @ weight.double().t()).float()
    torch.testing.assert_close(FEW_ROWS(x, weight, True), expected)
    torch.testing.assert_close(FEW_ROWS(x, weight), expected)
