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
from diopi.catalogue import Function, Parameter
from tests.diopi import op_samples

FUNCTIONS = catalogue.functions()
f = op_samples.f

# Where the sample of the op is not one of this function.
CONV: dict[str, Any] = {
    "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1, "bias": f(4),
    "output_padding": [0, 0], "input": f(2, 3, 6, 6),
}  # fmt: skip
CONV3 = {k: v * 3 if v in ([2, 2], [1, 1], [0, 0]) else v for k, v in CONV.items() if k != "input"}
CONV3 = {k: v[:3] if isinstance(v, list) else v for k, v in CONV3.items()}
CONV3["input"] = f(2, 3, 4, 4, 4)
BACK = {"output_mask": [True] * 3, "bias_sizes": [4]}
SAMPLES: dict[str, dict[str, Any]] = {
    "diopiConvolution2d": {**CONV, "weight": f(4, 3, 3, 3), "transposed": False},
    "diopiConvolution3d": {**CONV3, "weight": f(4, 3, 3, 3, 3), "transposed": False},
    "diopiConvTranspose2d": {**CONV, "weight": f(3, 4, 3, 3), "transposed": True},
    "diopiConvTranspose3d": {**CONV3, "weight": f(3, 4, 3, 3, 3), "transposed": True},
    "diopiConvolution2dBackward": {
        **CONV, **BACK, "weight": f(4, 3, 3, 3), "transposed": False, "grad_output": f(2, 4, 3, 3),
    },
    "diopiConvolution3dBackward": {
        **CONV3, **BACK, "weight": f(4, 3, 3, 3, 3), "transposed": False,
        "grad_output": f(2, 4, 2, 2, 2),
    },
    "diopiConvTranspose2dBackward": {
        **CONV, **BACK, "weight": f(3, 4, 3, 3), "transposed": True,
        "grad_output": f(2, 4, 11, 11),
    },
    "diopiConvTranspose3dBackward": {
        **CONV3, **BACK, "weight": f(3, 4, 3, 3, 3), "transposed": True,
        "grad_output": f(2, 4, 7, 7, 7),
    },
}  # fmt: skip


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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_published_function_does_what_its_op_means(name: str) -> None:
    function = FUNCTIONS[name]
    op = diopi.get(function.op)
    arguments = _arguments(function)
    torch.manual_seed(1)
    expected = op.meaning(**op_samples.copied(arguments))
    results = [expected] if len(op.returns) == 1 else list(expected or ())
    parameters = _parameters(function, op_samples.copied(arguments), results)

    torch.manual_seed(1)
    diopi.call(name, **parameters)

    for parameter, value in zip(legacy.targets(function), results, strict=False):
        slot = parameters[legacy.python_name(parameter)]
        for found, wanted in zip(_listed(slot), _listed(value), strict=True):
            _assert_same(found, wanted)
    written = op_samples.copied(arguments)
    torch.manual_seed(1)
    op.meaning(**written)
    renames = dict(function.renames)
    for argument in op.written:
        slot = parameters[renames.get(argument.name, argument.name)]
        for found, wanted in zip(_listed(slot), _listed(written[argument.name]), strict=True):
            _assert_same(found, wanted)


def _arguments(function: Function) -> dict[str, Any]:
    op = diopi.get(function.op)
    given = {a.name: a.default for a in op.arguments if not a.required}
    given |= SAMPLES.get(function.name, op_samples.all_samples()[op.name])
    given = {k: v for k, v in given.items() if k in {a.name for a in op.arguments}}
    renames = dict(function.renames)
    names = {p.name: p for p in function.parameters}
    for argument in op.arguments:
        source = renames.get(argument.name, argument.name)
        if source in ("True", "False"):
            given[argument.name] = source == "True"
        elif source in names:
            given[argument.name] = _fitting(names[source], given[argument.name])
        elif not source.startswith("@"):
            given[argument.name] = argument.default
    if function.inplace and "input" in given and not op.written:
        given["input"] = _broadcast(op, given)
    return given


def _fitting(parameter: Parameter, value: Any) -> Any:
    """A number where the function takes one and the sample has a tensor, and the reverse."""
    if parameter.c_type.endswith("diopiScalar_t*") and isinstance(value, Tensor):
        return 2
    if "TensorHandle_t" in parameter.c_type and isinstance(value, (int, float)):
        return torch.tensor(float(value))
    if parameter.c_type in ("diopiSize_t", "const int64_t*") and value is None:
        return value
    return value


def _broadcast(op: diopi.Op, given: dict[str, Any]) -> Any:
    """An input that has the shape of the result."""
    result = op.meaning(**op_samples.copied(given))
    first = result[0] if len(op.returns) > 1 else result
    if not isinstance(first, Tensor):
        return given["input"]
    return given["input"].broadcast_to(first.shape).clone()


def _parameters(function: Function, given: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    op = diopi.get(function.op)
    renames = dict(function.renames)
    sources = {renames.get(a.name, a.name): a.name for a in op.arguments}
    slots = dict(zip((p.name for p in legacy.targets(function)), results, strict=False))
    found: dict[str, Any] = {}
    for parameter in function.parameters:
        name = parameter.name
        if name in sources:
            value = given[sources[name]]
        elif name in slots:
            value = [] if parameter.direction == "alloc" else _empty(slots[name])
        else:
            value = None
        found[legacy.python_name(parameter)] = value
    count = next((p.name for p in function.parameters if p.name in legacy.COUNTS), None)
    if count:
        lists = [v for k, v in found.items() if isinstance(v, list) and v]
        found[count] = len(lists[0]) if count != "num_outs" else len(results[0])
    return found


def _empty(result: Any) -> Any:
    return None if result is None else torch.empty_like(result)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


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
