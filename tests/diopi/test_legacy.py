"""The published names: complete, and callable with their own order and out-parameters."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import diopi
from deeplink.errors import UnknownOpError
from diopi import catalogue, legacy
from tests.diopi import op_samples, published_calls
from tests.diopi.published_calls import listed

FUNCTIONS = catalogue.functions()


def test_all_published_names_are_there() -> None:
    assert Counter(each.header for each in FUNCTIONS.values()) == {
        "functions.h": 396,
        "functions_ext.h": 27,
    }
    assert [n for n in FUNCTIONS if n not in diopi.by_legacy(n).legacy] == []


def test_every_parameter_reaches_the_op() -> None:
    """None is accepted and dropped: an argument, a result, or the length of a list."""
    dropped = {}
    for function in FUNCTIONS.values():
        renames = dict(function.renames)
        used = {renames.get(a.name, a.name) for a in diopi.get(function.op).arguments}
        used |= legacy.COUNTS | {p.name for p in legacy.targets(function)}
        rest = {p.name for p in function.parameters} - used
        if rest:
            dropped[function.name] = rest
    # the op is the dense gradient; a sparse one is a layout, not another value
    assert dropped == {"diopiEmbeddingBackward": {"sparse"}}


def test_a_parameter_may_be_null_exactly_where_the_op_allows_none() -> None:
    wrong = []
    for function in FUNCTIONS.values():
        renames = dict(function.renames)
        arguments = {renames.get(a.name, a.name): a for a in diopi.get(function.op).arguments}
        for parameter in function.parameters:
            argument = arguments.get(parameter.name)
            pointer = parameter.c_type.endswith(("Handle_t", "*"))
            if argument and pointer and parameter.optional != argument.optional:
                wrong.append((function.name, parameter.name))
    assert wrong == []


# One test for the functions of a family: one for each takes longer than what it tests.
@pytest.mark.parametrize("family", sorted({diopi.by_legacy(n).family for n in FUNCTIONS}))
def test_every_published_function_does_what_its_op_means(family: str) -> None:
    failed = {}
    for name in (name for name in FUNCTIONS if diopi.by_legacy(name).family == family):
        try:
            _does_what_its_op_means(name)
        except Exception as error:  # whatever is wrong with one, the others are tried
            failed[name] = f"{type(error).__name__}: {error}"
    assert failed == {}


def _does_what_its_op_means(name: str) -> None:
    function = FUNCTIONS[name]
    op = diopi.get(function.op)
    arguments = published_calls.arguments(function)
    torch.manual_seed(1)
    expected = op.meaning(**op_samples.copied(arguments))
    results = [expected] if len(op.returns) == 1 else list(expected or ())
    parameters = published_calls.parameters(function, op_samples.copied(arguments), results)

    torch.manual_seed(1)
    diopi.call(name, **parameters)

    for parameter, value in zip(legacy.targets(function), results, strict=False):
        slot = parameters[legacy.python_name(parameter)]
        for found, wanted in zip(listed(slot), listed(value), strict=True):
            _assert_same(found, wanted)
    written = op_samples.copied(arguments)
    torch.manual_seed(1)
    op.meaning(**written)
    renames = dict(function.renames)
    for argument in op.written:
        slot = parameters[renames.get(argument.name, argument.name)]
        for found, wanted in zip(listed(slot), listed(written[argument.name]), strict=True):
            _assert_same(found, wanted)


def _assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, Tensor):
        wanted = wanted.to(found.dtype)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    elif found is not None:
        assert found == wanted


def test_a_result_comes_into_the_out_parameter_and_back() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 3.0]])
    out = torch.empty(2, 2)
    assert diopi.call("diopiSoftmax", out, x, 1) is out
    assert torch.equal(out, x.softmax(1))


def test_in_place_functions_write_their_input() -> None:
    x = torch.tensor([-1.0, 2.0])
    diopi.call("diopiReluInp", x)
    assert x.tolist() == [0.0, 2.0]


def test_what_the_callee_allocates_arrives_in_a_list() -> None:
    box: list[Tensor] = []
    diopi.call("diopiNonzero", box, torch.tensor([0, 3, 4]))
    assert box[0].tolist() == [[1], [2]]
    answer: list[bool] = []
    diopi.call("diopiEqual", answer, torch.ones(2), torch.ones(2))
    assert answer == [True]


def test_a_kernel_can_stand_in_for_the_meaning() -> None:
    out = torch.empty(2)
    diopi.call("diopiRelu", out, torch.ones(2), kernel=lambda input: input * 7)
    assert out.tolist() == [7.0, 7.0]


def test_numbers_of_c_enumerations_are_understood() -> None:
    out, x = torch.empty(2), torch.tensor([7.0, -7.0])
    diopi.call("diopiDivScalar", out, x, 2, 1)
    assert out.tolist() == [3.0, -3.0]
    diopi.call("diopiDivScalar", out, x, 2, 2)
    assert out.tolist() == [3.0, -4.0]


def test_a_wrong_name_a_wrong_shape_and_a_wrong_length_say_so() -> None:
    with pytest.raises(UnknownOpError, match="did you mean diopiSoftmax"):
        diopi.call("diopiSofmax")
    with pytest.raises(ValueError, match=r"diopiRelu: out has shape \[3\], the result \[2\]"):
        diopi.call("diopiRelu", torch.empty(3), torch.ones(2))
    with pytest.raises(ValueError, match="num_inputs is 3, tensors has 2"):
        diopi.call("diopiCat", torch.empty(4), [torch.ones(2), torch.ones(2)], 3, 0)
    with pytest.raises(TypeError, match="missing a required argument: 'input'"):
        diopi.call("diopiRelu", torch.empty(3))
