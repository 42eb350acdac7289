"""Torch's schemas: their parser, and whether the checked-in ones match the installed torch."""

from __future__ import annotations

import pytest
import torch

import diopi
from diopi import catalogue, schema
from diopi.codegen import schemas
from diopi.op import AtenMeaning
from diopi.schema import MISSING, Argument, read

OPS = diopi.all_ops()


def test_a_schema_is_taken_apart() -> None:
    found = read("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor")
    assert found.name == "add.Tensor"
    assert found.returns == ("Tensor",)
    assert found.arguments == (
        Argument("input", "Tensor"),
        Argument("other", "Tensor"),
        Argument("alpha", "Scalar", default=1, kwarg_only=True),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tensor? x", Argument("x", "Tensor", optional=True)),
        ("Tensor(a!) x", Argument("x", "Tensor", written=True)),
        ("Tensor(a!)? x", Argument("x", "Tensor", optional=True, written=True)),
        ("Tensor(a!)[] x", Argument("x", "Tensor[]", written=True)),
        ("Tensor(a -> *) x", Argument("x", "Tensor")),
        ("Tensor?[] x", Argument("x", "Tensor?[]")),
        ("SymInt[2] x=[]", Argument("x", "int[]", default=[])),
        ("int[2] x=0", Argument("x", "int[]", default=[0])),
        ("int[] x=[0, 1]", Argument("x", "int[]", default=[0, 1])),
        ("int[1]? x=None", Argument("x", "int[]", optional=True, default=None)),
        ("float x=1e-05", Argument("x", "float", default=1e-05)),
        ("float x=0.", Argument("x", "float", default=0.0)),
        ("bool[3] x", Argument("x", "bool[]")),
        ("Scalar[] x", Argument("x", "Scalar[]")),
        ('str x="none"', Argument("x", "str", default="none")),
        ("int reduction=Mean", Argument("reduction", "int", default=1)),
        ("ScalarType? dtype=None", Argument("dtype", "dtype", optional=True, default=None)),
        ("ScalarType? dtype=4", Argument("dtype", "dtype", optional=True, default=torch.int64)),
        ("Generator? generator=None", Argument("generator", "Generator", True, default=None)),
        ("int from", Argument("low", "int")),
    ],
)
def test_an_argument_is_read(text: str, expected: Argument) -> None:
    assert read(f"f({text}) -> ()").arguments == (expected,)


def test_results_have_names_and_placement_is_left_out() -> None:
    found = read("f(Tensor x, *, Layout? layout=None, Device? device=None) -> (Tensor Q, Tensor)")
    assert [argument.name for argument in found.arguments] == ["x"]
    assert found.result_names == ("Q", "out1")
    assert read("f() -> ()").returns == ()


@pytest.mark.parametrize("text", ["f(Tensor x)", "f(Tenor x) -> Tensor"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(schema.OpDeclarationError, match=r"not a schema|no such type"):
        read(text)


def test_forms_are_found_by_their_arguments() -> None:
    found = schema.derived("add.Tensor")
    assert found == {"add.out": "out", "add_.Tensor": "inplace"}


def test_a_plain_function_is_its_own_schema() -> None:
    def f(
        x: torch.Tensor,
        indices: list[torch.Tensor | None],
        y: torch.Tensor | None,
        dims: list[int],
        value: int | float,
        *,
        mode: str = "sum",
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    text = schema.of_function("f", f, ["x"], "a b")
    assert text == (
        "f(Tensor(a!) x, Tensor?[] indices, Tensor? y, int[] dims, Scalar value, *, "
        'str mode="sum") -> (Tensor a, Tensor b)'
    )


def test_the_stored_schemas_are_torchs_own() -> None:
    """Fails when torch moves: names, order, types, optional, written, defaults."""
    current = schema.torch_schemas()
    moved = {
        name: current.get(name, f"not in torch {torch.__version__}")
        for name, stored in catalogue.overloads().items()
        if name not in current or read(current[name]) != read(stored.schema)
    }
    assert moved == {}


def test_an_argument_that_a_later_torch_renamed_keeps_its_name() -> None:
    for name in ("grad", "grad_output"):
        assert schema.own_name("aten::_cdist_backward.out", name) == "grad"
    assert schema.own_name("aten::elu_backward", "grad_output") == "grad_output"
    declared = torch._C._get_schema("aten::_cdist_backward", "").arguments[0].name
    assert schema.installed_name("_cdist_backward", "grad") == declared


def test_every_overload_that_an_op_serves_binds_to_its_arguments_by_name() -> None:
    wrong = {}
    for op in OPS.values():
        for overload in op.aten:
            found = read(catalogue.overloads()[overload.removeprefix("aten::")].schema)
            taken = {a.name for a in found.arguments if not (a.kwarg_only and a.written)}
            required = {a.name for a in op.arguments if a.default is MISSING}
            unknown = taken - {a.name for a in op.arguments}
            if unknown or required - taken:
                wrong[overload] = (op.name, unknown, required - taken)
    assert wrong == {}


def test_a_canonical_schema_differs_from_torchs_in_defaults_at_most() -> None:
    wrong = []
    for op in OPS.values():
        if isinstance(op.meaning, AtenMeaning):
            theirs = read(catalogue.overloads()[op.declared[0]].schema)
            same = _without_defaults(op.arguments) == _without_defaults(theirs.arguments)
            if not same or op.returns != theirs.returns:
                wrong.append(op.name)
    assert wrong == []


def _without_defaults(arguments: tuple[Argument, ...]) -> list[tuple[str, str, bool, bool]]:
    return [(a.name, a.type, a.optional, a.kwarg_only) for a in arguments]


def test_the_stored_schemas_are_those_that_the_ops_name() -> None:
    assert schemas.render() == catalogue.SCHEMAS.read_text("utf-8")
