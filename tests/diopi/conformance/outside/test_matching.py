"""Which operator a function is matched with, and what its parameters restrict."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deeplink.errors import DeeplinkError, NoKernelError
from diopi.conformance.outside.matching import match


def nothing(*args: Any) -> None:
    """A function with any parameters."""


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("softmax", "softmax"),
        ("_softmax", "softmax"),
        ("triton_softmax", "softmax"),
        ("softmax_kernel_impl", "softmax"),
        ("softmax_triton_v2", "softmax"),
        ("diopiSoftmax", "softmax"),
        ("add.Tensor", "add"),
        ("add__Tensor", "add"),
        ("native_layer_norm", "layer_norm"),
        ("rmsnorm", "rms_norm"),
        ("flash_attention_fwd", "flash_attention"),
    ],
)
def test_a_name_means_an_operator(name: str, op: str) -> None:
    assert list(match({name: nothing}).kernels) == [op]


def test_a_function_in_place_is_a_form() -> None:
    found = match({"relu_": nothing, "diopiSigmoidInp": nothing})
    assert list(found.forms) == ["relu_", "sigmoid_"]


def test_an_unknown_function_is_listed_with_suggestions() -> None:
    (found,) = match({"sofmax": lambda x: x}).unmatched
    assert found.reason == "no operator has this name (it takes x)"
    assert "softmax" in found.suggestions


def test_the_user_names_the_operator_of_a_function() -> None:
    assert list(match({"fast": nothing}, [("fast", "gelu")]).kernels) == ["gelu"]
    with pytest.raises(DeeplinkError, match="the functions are fast"):
        match({"fast": nothing}, [("slow", "gelu")])
    (found,) = match({"fast": nothing}, [("fast", "gluu_")]).unmatched
    assert found.reason == "there is no operator 'gluu_'"


def test_a_required_argument_without_counterpart_is_named() -> None:
    def softmax(x: Tensor, dim: int, workspace: Tensor) -> Tensor:
        return x

    (found,) = match({"softmax": softmax}).unmatched
    assert found.reason.startswith("its argument 'workspace' is none of softmax(input, dim")


def test_arguments_go_to_parameters_by_name_and_by_meaning() -> None:
    def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Any:
        return x, gamma, beta, epsilon

    found = match({"layer_norm": layer_norm}).kernels["layer_norm"]
    x, weight, bias = torch.ones(2, 3), torch.ones(3), torch.zeros(3)
    assert found.call(x, [3], weight, bias, 1e-5) == (x, weight, bias, 1e-5)
    with pytest.raises(NoKernelError, match="takes no normalized_shape"):
        found.call(x, [2, 3], weight, bias, 1e-5)


def test_a_missing_parameter_restricts_the_calls() -> None:
    found = match({"add": lambda x, y: x - -y})
    assert found.restricted == ("add: no alpha",)
    call, x = found.kernels["add"].call, torch.ones(2)
    assert call(x, x, alpha=1).tolist() == [2.0, 2.0]
    with pytest.raises(NoKernelError, match="takes no alpha"):
        call(x, x, alpha=2)


def test_a_function_without_a_dimension_computes_the_last_one() -> None:
    found = match({"softmax": lambda x: x})
    assert found.restricted == ("softmax: the last dimension alone",)
    call, x = found.kernels["softmax"].call, torch.ones(2, 3)
    assert call(x, -1) is x and call(x, 1) is x
    with pytest.raises(NoKernelError):
        call(x, 0)


def test_one_dimension_is_given_as_a_number() -> None:
    def sum(x: Tensor, dim: int = -1) -> Any:
        return dim

    call = match({"sum": sum}).kernels["sum"].call
    assert call(torch.ones(2), [0]) == 0
    with pytest.raises(NoKernelError, match="takes one dim"):
        call(torch.ones(2, 2), [0, 1])


def test_a_buffer_for_the_result_is_allocated() -> None:
    def relu(x: Tensor, out: Tensor) -> None:
        out.copy_(x.clamp(min=0))

    call = match({"relu": relu}).kernels["relu"].call
    assert call(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
