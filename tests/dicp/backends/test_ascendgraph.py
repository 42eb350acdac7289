"""ascendgraph: GE graphs as they are written, checked and simulated."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from deeplink_vendors.ascend.graph import backend
from deeplink_vendors.ascend.graph.builder import Builder
from deeplink_vendors.ascend.graph.graph import Attr, Desc, Graph, Node
from deeplink_vendors.ascend.graph.interpreter import Simulation
from deeplink_vendors.ascend.graph.prototypes import check
from deeplink_vendors.ascend.graph.taken import supports
from dicp.conversion import NotTaken
from dicp.simulation import SimulationError

aten = torch.ops.aten


def added(dtype: torch.dtype = torch.float32) -> Graph:
    """x + x, of two inputs' worth of nodes: Data, Add, NetOutput."""
    b = Builder()
    x = b.of(torch.empty(2, 3, dtype=dtype))
    b.output([b.op("Add", [x, x], [(dtype, (2, 3))])], [])
    return b.graph()


def changed(graph: Graph, at: int, **fields: Any) -> Graph:
    nodes = list(graph.nodes)
    nodes[at] = replace(nodes[at], **fields)
    return Graph(graph.name, tuple(nodes))


def call(target: Any, *args: Any) -> fx.Node:
    """A node of a graph; tensors are inputs of it."""
    graph = fx.Graph()
    places = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            places.append(graph.placeholder(f"x{len(places)}"))
            places[-1].meta["val"] = arg
    names = iter(places)
    given = tuple(next(names) if isinstance(arg, torch.Tensor) else arg for arg in args)
    node = graph.call_function(target, given)
    node.meta["val"] = target(*args)
    return node


def emitted(target: Any, *args: Any) -> list[Node]:
    """Return the graph of one call: its nodes without inputs and constants."""
    node = call(target, *args)
    b = Builder()
    values = {n: b.input(n) for n in node.all_input_nodes}
    convert = backend.conversions.get(target)
    assert convert is not None
    convert(b, node, *fx.map_arg(node.args, values.__getitem__))
    return [node for node in b.graph().nodes if node.type not in ("Data", "Const")]


def test_a_graph_comes_back_from_its_bytes() -> None:
    attrs = {
        "i": Attr("Int", -3), "f": Attr("Float", 0.5), "b": Attr("Bool", False),
        "s": Attr("String", "NCHW"), "t": Attr("Type", 9), "li": Attr("ListInt", [1, -2, 2**40]),
        "lf": Attr("ListFloat", [0.5, -1.0]), "lb": Attr("ListBool", [True, False]),
        "ls": Attr("ListString", ["a", "b"]), "ll": Attr("ListListInt", [[1], [2, 3]]),
    }  # fmt: skip
    desc = Desc("x", torch.bfloat16, (2, -1), "NCHW")
    node = Node("n", "Op", ("m:0", ""), (desc, Desc("y", None, unfed=True)), (desc,), attrs)
    graph = Graph("g", (node,))
    assert Graph.from_bytes(graph.to_bytes()) == graph


def test_a_constant_comes_back_from_its_bytes() -> None:
    for tensor in (torch.tensor(-1.5, dtype=torch.bfloat16), torch.arange(3), torch.empty(0, 2)):
        node = Node("c", "Const", (), (), (), {"value": Attr("Tensor", tensor)})
        back = Graph.from_bytes(Graph("g", (node,)).to_bytes()).nodes[0].attrs["value"].value
        assert back.dtype == tensor.dtype and torch.equal(back, tensor)


def test_the_bytes_of_a_graph_are_those_of_protocol_buffers() -> None:
    # field 1 (name), field 6 (op) with its name and type
    node = Node("n", "Op", (), (), ())
    assert Graph("g", (node,)).to_bytes() == b"\x0a\x01g\x32\x07\x0a\x01n\x12\x02Op"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"type": "Addd"}, "no prototype of that name"),
    "input": ({"inputs": ("Data:0", "Dato:0")}, "input Dato:0 is not defined before it"),
    "number": ({"inputs": ("Data:0", "Data:1")}, "input Data:1 is not defined before it"),
    "names": (
        {"input_descs": (Desc("x2", torch.float32), Desc("x1", torch.float32))},
        "the prototype has",
    ),
    "dtype": (
        {"input_descs": (Desc("x1", torch.bool), Desc("x2", torch.float32))},
        "input x1 is bool, allowed",
    ),
    "unfed": ({"inputs": ("Data:0", "")}, "input x2 is required"),
    "attribute": ({"attrs": {"alpha": Attr("Int", 1)}}, "there is no attribute alpha"),
}


@pytest.mark.parametrize("name", BAD)
def test_the_check_finds(name: str) -> None:
    fields, text = BAD[name]
    assert check(added()) == []
    assert text in " ".join(check(changed(added(), 1, **fields)))


def test_the_check_finds_an_attribute_that_is_missing_or_of_another_kind() -> None:
    b = Builder()
    x = b.of(torch.empty(4, 2))
    with pytest.raises(NotTaken, match="attribute num_split is required"):
        b.several("SplitV", [x, b.ints([1, 3]), b.scalar(0, torch.int32)], [(x.dtype, (1, 2))])
        b.graph()
    b = Builder()
    x = b.of(torch.empty(4, 2))
    b.op("Relu", [x], [(x.dtype, x.shape)])
    graph = changed(b.graph(), 1, type="LeakyRelu", attrs={"negative_slope": Attr("Int", 1)})
    assert "attribute negative_slope is Int, not Float" in " ".join(check(graph))


def test_a_type_has_one_number_in_a_description_and_another_in_an_attribute() -> None:
    (cast,) = emitted(torch.ops.prims.convert_element_type.default, torch.ones(2), torch.int64)
    assert cast.attrs["dst_type"].value == 9
    assert b"\x10\x08" in Graph("g", (cast,)).to_bytes()  # field 2, dtype: 8


def test_where_the_prototype_takes_no_bfloat16_the_node_works_in_float32() -> None:
    nodes = emitted(aten.maximum.default, *(torch.ones(2, dtype=torch.bfloat16),) * 2)
    assert [node.type for node in nodes] == ["Cast", "Cast", "Maximum", "Cast"]
    assert nodes[2].output_descs[0].dtype == torch.float32
    plain = emitted(aten.mul.Tensor, *(torch.ones(2, dtype=torch.bfloat16),) * 2)
    assert [node.type for node in plain] == ["Mul"]


def test_a_reason_is_given_for_what_stays_eager() -> None:
    whole = torch.ones(2, 2, dtype=torch.int64)
    assert supports(call(aten.mm.default, whole, whole)) == "GE multiplies matrices of floats"
    assert supports(call(aten.mm.default, torch.ones(2, 2), torch.ones(2, 2))) is None
    complex_ = torch.ones(2, dtype=torch.complex64)
    assert "no type for torch.complex64" in str(supports(call(aten.neg.default, complex_)))


def test_the_simulation_holds_results_against_their_descriptions() -> None:
    x = torch.ones(2, 3)
    assert torch.equal(Simulation(added(), {})([x])[0], x + x)
    wrong = changed(added(), 1, output_descs=(Desc("y", torch.float16, (2, 3)),))
    with pytest.raises(SimulationError, match=r"Add \(Add\) declares y as torch.float16"):
        Simulation(wrong, {})([x])
    with pytest.raises(SimulationError, match="no operator Mystery"):
        Simulation(changed(added(), 1, type="Mystery"), {})
