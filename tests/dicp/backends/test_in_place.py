"""Ops that write their arguments run in place where the old values are unused."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from dicp.dynamo_bridge.passes.in_place import FUNCTIONAL, write_in_place


def _add(x: Tensor) -> None:
    x.add_(1)


@pytest.fixture(scope="module", autouse=True)
def add_one() -> Iterator[Any]:
    """An op that adds 1 to its argument."""
    library = torch.library.Library("in_place_test", "DEF")
    library.define("add_one(Tensor(a!) x) -> ()")
    library.impl("add_one", _add, "CompositeExplicitAutograd")
    torch.library.register_fake("in_place_test::add_one", lambda x: None, lib=library)
    yield
    library._destroy()


def _one(x: Tensor) -> Any:
    torch.ops.in_place_test.add_one(x)
    return x * 2


def _half(x: Tensor) -> Any:
    torch.ops.in_place_test.add_one(x[1:])
    return x * 2


def _before(x: Tensor) -> Any:
    copied = x.clone()
    torch.ops.in_place_test.add_one(copied)
    return x * copied


def _twice(x: Tensor) -> Any:
    torch.ops.in_place_test.add_one(x)
    read = x * 3
    torch.ops.in_place_test.add_one(x)
    return read


@pytest.mark.parametrize(
    ("function", "in_place"), [(_one, 1), (_half, 1), (_before, 1), (_twice, 2)]
)
def test_a_write_is_kept_and_nothing_is_copied(
    function: Callable[[Tensor], Any], in_place: int
) -> None:
    counts = []

    def compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        counts.append(write_in_place(gm, ()))
        left = gm.graph.find_nodes(op="call_function", target=FUNCTIONAL)
        assert len(left) == 0
        return gm.forward

    given, expected = torch.arange(4.0), torch.arange(4.0)
    wanted = function(expected)
    torch._dynamo.reset()
    found = torch.compile(function, backend=aot_autograd(fw_compiler=compiler))(given)
    assert counts == [in_place]
    assert torch.equal(found, wanted) and torch.equal(given, expected)


def test_what_is_read_later_or_is_a_constant_keeps_its_copy() -> None:
    seen: list[fx.GraphModule] = []

    def compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(_one, backend=aot_autograd(fw_compiler=compiler))(torch.ones(2))
    (gm,) = seen
    (place,) = gm.graph.find_nodes(op="placeholder")
    assert write_in_place(gm, {place.name}) == 0
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.call_function(torch.ops.aten.neg.default, (place,))
    assert write_in_place(gm, ()) == 0
