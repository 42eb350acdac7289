"""The registry: what is declared, how it is found, and that every meaning can be evaluated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import diopi
from deeplink.errors import OpDeclarationError, OpUnavailableError, UnknownOpError
from diopi import schema
from diopi.assumptions import ASSUMED
from diopi.op import FLOATS, AtenMeaning, Op, op
from tests.diopi import op_samples
from tests.diopi.op_samples import sample

OPS = diopi.all_ops()


def test_there_are_enough_ops_and_each_has_a_family_file() -> None:
    assert len(OPS) >= 285
    assert all(f"diopi.ops.{each.family}" in __import__("sys").modules for each in OPS.values())


def test_what_is_assumed_is_of_ops_that_torch_does_not_have() -> None:
    assert set(ASSUMED) <= set(OPS)
    assert [name for name in ASSUMED if OPS[name].aten] == []
    assert "1/sqrt(variance + eps)" in diopi.get("layer_norm_gb").assumed
    assert diopi.get("add").assumed == ""


def test_every_gradient_is_an_op() -> None:
    assert [each.name for each in OPS.values() if each.backward and each.backward not in OPS] == []


def test_every_named_entry_of_op_db_exists() -> None:
    known = op_samples.op_db()
    missing = {each.name: [n for n in each.opinfo if n not in known] for each in OPS.values()}
    assert {name: entries for name, entries in missing.items() if entries} == {}


def test_an_op_is_found_by_name_by_overload_and_by_its_published_name() -> None:
    add = diopi.get("add")
    assert diopi.by_aten("aten::add.Tensor") is add
    assert diopi.by_aten("add_.Scalar") is add
    assert diopi.by_aten("aten::relu.default") is diopi.get("relu")
    assert diopi.by_legacy("diopiAddInpScalar") is add
    assert {add: 1}[diopi.get("add")] == 1
    assert add.aten[0] == "aten::add.Tensor"
    assert add.legacy == ("diopiAdd", "diopiAddInp", "diopiAddScalar", "diopiAddInpScalar")


@pytest.mark.parametrize(
    ("find", "wrong", "meant"),
    [
        (diopi.get, "sofmax", "softmax"),
        (diopi.get, "layernorm", "layer_norm"),
        (diopi.by_aten, "aten::ad.Tensor", "aten::add.Tensor"),
        (diopi.by_legacy, "diopiSoftMax", "diopiSoftmax"),
    ],
)
def test_a_wrong_name_says_what_was_meant(find: Any, wrong: str, meant: str) -> None:
    with pytest.raises(UnknownOpError, match=f"did you mean .*{meant}"):
        find(wrong)


def test_a_signature_has_torchs_names_order_and_defaults() -> None:
    found = diopi.signature(diopi.get("add"))
    assert str(found) == "(input: 'Tensor', other: 'Tensor', *, alpha: 'Scalar' = 1)"
    clamp = diopi.signature(diopi.get("clamp")).parameters["min"]
    assert clamp.annotation == "Tensor | None"
    assert clamp.default is None


def test_a_plain_meaning_takes_the_arguments_of_its_op() -> None:
    for each in OPS.values():
        diopi.signature(each)  # its order of defaults is one that python allows
        if not isinstance(each.meaning, AtenMeaning):
            inspect.signature(each.meaning).bind(**{a.name: None for a in each.arguments})


def test_what_is_written_is_declared() -> None:
    assert [a.name for a in diopi.get("batch_norm").written] == ["running_mean", "running_var"]
    assert [a.name for a in diopi.get("sgd").written] == ["param", "grad", "buf"]
    assert diopi.get("add").written == ()


# One test for the ops of a family: a test of its own for each takes longer than what it tests.
FAMILIES = sorted({each.family for each in OPS.values()})
in_families = pytest.mark.parametrize("family", FAMILIES)


def each_of(family: str, check: Callable[[Op], None]) -> None:
    """Runs a check for every op of a family, and names all that fail it."""
    failed = {}
    for each in (each for each in OPS.values() if each.family == family):
        try:
            check(each)
        except Exception as error:  # whatever is wrong with one, the others are tried
            failed[each.name] = f"{type(error).__name__}: {error}"
    assert failed == {}


@in_families
def test_every_meaning_runs_on_a_sample_in_float64(family: str) -> None:
    each_of(family, _runs)


def _runs(each: Op) -> None:
    name = each.name
    arguments = dict(tree_map(_widened, sample(name)))
    result = each.meaning(**arguments)
    results = [result] if len(each.returns) == 1 else list(result or ())
    assert len(results) == len(each.returns)
    for value, kind in zip(results, each.returns, strict=True):
        assert value is None or _is(value, kind), (kind, value)


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype is torch.float32:
        return value.double()
    return torch.float64 if value is torch.float32 else value


def _is(value: Any, kind: str) -> bool:
    if kind == "Tensor[]":
        return all(isinstance(item, Tensor) for item in value)
    if kind == "Scalar":
        return isinstance(value, (bool, int, float, complex))
    return isinstance(value, {"Tensor": Tensor, "int": int, "float": float, "bool": bool}[kind])


@in_families
def test_a_meaning_changes_only_what_it_declares(family: str) -> None:
    each_of(family, _keeps)


def _keeps(each: Op) -> None:
    if each.kind == "random":
        return
    name = each.name
    arguments, before = sample(name), sample(name)
    each.meaning(**arguments)
    kept = [k for k in arguments if k not in {a.name for a in each.written}]
    for found, was in zip(
        tree_leaves([arguments[k] for k in kept]),
        tree_leaves([before[k] for k in kept]),
        strict=True,
    ):
        if isinstance(found, Tensor):
            torch.testing.assert_close(found, was, rtol=0, atol=0, equal_nan=True)


@in_families
def test_an_exact_op_is_the_same_in_every_precision(family: str) -> None:
    each_of(family, _same_in_every_precision)


def _same_in_every_precision(each: Op) -> None:
    name = each.name
    if each.kind not in ("exact", "index") or name == "nextafter":
        return
    narrow = tree_leaves(OPS[name].meaning(**sample(name)))
    wide = tree_leaves(OPS[name].meaning(**dict(tree_map(_widened, sample(name)))))
    for found, wanted in zip(narrow, wide, strict=True):
        if isinstance(found, Tensor):
            torch.testing.assert_close(
                found, wanted.to(found.dtype), rtol=0, atol=0, equal_nan=True
            )


def test_a_number_may_stand_for_a_tensor() -> None:
    x = torch.arange(3)
    assert diopi.get("add")(x, 2.5).tolist() == [2.5, 3.5, 4.5]
    assert diopi.get("eq")(input=x, other=1).tolist() == [False, True, False]
    assert diopi.get("pow")(2, x).tolist() == [1, 2, 4]


def test_the_defaults_of_a_declaration_reach_torch() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(diopi.get("softmax")(x, 1), x.softmax(1))
    assert diopi.get("sum")(x).item() == 3.0
    assert diopi.get("div")(x, 2).tolist() == [[0.5, 1.0]]


def test_an_op_that_torch_lacks_is_unavailable_and_says_so(monkeypatch: Any) -> None:
    known = {k: v for k, v in schema.torch_schemas().items() if k != "relu"}
    monkeypatch.setattr(schema, "torch_schemas", lambda: known)
    relu = diopi.get("relu")
    assert not relu.available
    with pytest.raises(OpUnavailableError, match="has no aten::relu"):
        relu(torch.ones(1))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: _declare("relu"), "'relu' is declared twice"),
        (lambda: _declare("rectify", aten="relu"), "served by 'relu' and 'rectify'"),
        (lambda: _declare("rectify", aten="rellu"), "(?s)no overload aten::rellu.*did you mean"),
        (lambda: _declare("rectify", meaning=torch.relu, text="rectify(Tenor x) -> Tensor"),
         "no such type: 'Tenor'"),
        (lambda: _declare("rectify", meaning=torch.relu, text="rectify(Tensor x) -> Tensor",
                          written="y"), "has no argument y"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(OpDeclarationError, match=says):
        wrong()
    assert "rectify" not in diopi.all_ops()


def _declare(name: str, **how: Any) -> Op:
    return op(name, "activation", kind="exact", dtypes=FLOATS, opinfo="", **how)
