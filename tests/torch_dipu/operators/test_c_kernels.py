"""A vendor's C functions under PyTorch: what they are called with, and what becomes of it."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from diopi import cabi
from diopi.implementation import Implementation
from tests.diopi import compiled
from torch_dipu import _C, c_kernels, routes

SOURCE = Path(__file__).with_name("c_kernels.c").read_text()


class Chip:
    """The library, and what its functions were called with last."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.noted.restype = ctypes.c_char_p
        probe = torch.zeros(1, device="dipu")
        apart = _C.alias_host(probe).data_ptr() - probe.data_ptr()
        self.library.set_apart(ctypes.c_int64(apart))

    @property
    def noted(self) -> str:
        return str(self.library.noted().decode())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> cabi.Library:
    return cabi.load(compiled.library(tmp_path_factory.mktemp("kernels"), SOURCE), "acme")


@pytest.fixture(scope="module")
def chip(loaded: cabi.Library) -> Iterator[Chip]:
    routes.bind(Implementation("acme", loaded.kernels))
    yield Chip(loaded.path)
    routes.unbind()


def r(*shape: int) -> Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape).to("dipu")


def calls(overload: str, kind: str = "kernel") -> int:
    """Return the number of calls of an overload's first route."""
    rows = {row[0]: row[2] for row in _C.operator_records()}
    route = rows[overload][0]
    assert route[0] == kind
    return int(route[2])


def test_a_function_gets_the_overloads_arguments(chip: Chip) -> None:
    before = calls("aten::add.Tensor")
    result = torch.add(r(3), r(3), alpha=2)
    assert chip.noted == "diopiAdd alpha=2"
    assert result.tolist() == [3, 6, 9] and result.device.type == "dipu"
    assert calls("aten::add.Tensor") == before + 1


def test_a_number_goes_to_the_function_that_takes_one(chip: Chip) -> None:
    assert (r(2) + 0.5).tolist() == [1.5, 2.5]
    assert chip.noted == "diopiAddScalar other=0.5f alpha=1"


def test_a_number_becomes_a_tensor_where_no_function_takes_one(chip: Chip) -> None:
    assert (r(3) * 3).tolist() == [3, 6, 9]
    assert chip.noted == "diopiMulInp"


@pytest.mark.parametrize("form", ["functional", "out", "inplace"])
def test_a_function_that_works_in_place_gives_every_form(chip: Chip, form: str) -> None:
    a, b, out = r(3), r(3), torch.empty(0, device="dipu")
    result = {
        "functional": lambda: a * b,
        "out": lambda: torch.mul(a, b, out=out),
        "inplace": lambda: a.mul_(b),
    }[form]()
    assert chip.noted == "diopiMulInp"
    assert result.tolist() == [1, 4, 9]
    assert (result is out) == (form == "out") and (result is a) == (form == "inplace")
    assert a.tolist() == ([1, 4, 9] if form == "inplace" else [1, 2, 3])
    assert b.tolist() == [1, 2, 3]


def test_an_out_of_another_shape_is_resized(chip: Chip) -> None:
    out = torch.empty(0, device="dipu")
    assert torch.add(r(2, 2), r(2, 2), out=out) is out
    assert chip.noted == "diopiAdd alpha=1" and out.tolist() == [[2, 4], [6, 8]]


def test_an_out_of_another_type_is_left_to_the_host(chip: Chip) -> None:
    chip.library.noted()
    before = chip.noted
    out = torch.empty(3, dtype=torch.float64, device="dipu")
    torch.add(r(3), r(3), out=out)
    assert out.tolist() == [2, 4, 6] and chip.noted == before


def test_lists_and_dimensions(chip: Chip) -> None:
    assert r(2, 3, 4).sum([0, 2], keepdim=True).tolist() == [[[7], [7], [7]]]
    assert chip.noted == "diopiSum dim=[0,2]"
    assert torch.cat([r(2), r(3)]).tolist() == [1, 2, 1, 2, 3]
    assert chip.noted == "diopiCat n=2 dim=0"


def test_results_that_no_one_requested_are_null(chip: Chip) -> None:
    x, weight = r(2, 3), r(3)
    mean, rstd = r(2, 1), r(2, 1)
    grads = torch.ops.aten.native_layer_norm_backward(
        x, x, [3], mean, rstd, weight, weight, [True, False, True]
    )
    assert chip.noted == "diopiLayerNormBackward shape=[3] 101 weight=1"
    assert [g is not None for g in grads] == [True, False, True]


def test_a_result_that_the_function_makes(chip: Chip) -> None:
    found = torch.nonzero(r(5))
    assert chip.noted == "diopiNonzero"
    assert found.tolist() == [[3], [4]] and found.device.type == "dipu"


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_a_type_that_the_function_lacks_takes_the_next_route(
    chip: Chip, dtype: torch.dtype
) -> None:
    x = r(3).to(dtype)
    assert torch.equal((x + x).cpu(), x.cpu() * 2)


def test_what_the_function_leaves_to_the_cpu(chip: Chip) -> None:
    result = torch.nn.functional.gelu(r(3), approximate="tanh")
    assert chip.noted == "diopiGelu approximate=tanh"
    expected = torch.nn.functional.gelu(torch.arange(1.0, 4.0), approximate="tanh")
    torch.testing.assert_close(result.cpu(), expected)


def test_an_error_has_the_librarys_words(chip: Chip) -> None:
    text = "acme's diopiGelu failed with diopiErrorOccurred: the fuse is blown"
    with pytest.raises(RuntimeError, match=text):
        torch.nn.functional.gelu(r(3))


def test_memory_that_there_is_not_is_torchs_error(chip: Chip) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"diopiSin failed with diopiOutOfMemory"):
        r(3).sin()


def test_wrong_arguments_get_torchs_message(chip: Chip) -> None:
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match"):
        r(3) + r(2)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        r(3) + torch.ones(3)


def test_memory_that_overlaps_is_left_to_the_host(chip: Chip) -> None:
    x = r(4)
    with pytest.raises(RuntimeError, match="single memory location"):
        x[1:].add_(x[:-1])


def test_a_generator_is_used(chip: Chip) -> None:
    torch.manual_seed(3)
    first, second = torch.empty(2, device="dipu").uniform_(2, 5), torch.rand(2, device="dipu")
    assert chip.noted.startswith("diopi_uniform 0..1")
    torch.manual_seed(3)
    again = torch.empty(2, device="dipu").uniform_(2, 5)
    assert chip.noted == "diopi_uniform 2..5"
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_what_is_drawn_in_place_is_in_the_tensor(chip: Chip) -> None:
    x = torch.zeros(2, device="dipu")
    assert x.normal_(2, 3) is x  # its functional form has another name: normal_functional
    assert x.tolist() == [5, 5] and calls("aten::normal_") == 1
    assert torch.normal(torch.zeros(2, device="dipu"), 1).shape == (2,)  # another operator


def test_gradients_run_through_the_functions(chip: Chip) -> None:
    x = r(3).requires_grad_()
    (x * x + x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 5, 7]


def test_calls_by_python_go_on_beside(chip: Chip, loaded: cabi.Library) -> None:
    found: Any = loaded.kernels["nonzero"](r(5))
    assert found.tolist() == [[3], [4]]


def test_most_overloads_have_a_plan() -> None:
    from diopi import all_ops, cfunction

    every = {function.name for function in cfunction.functions()}
    planned = [len(c_kernels.plans(op, every)) for op in all_ops().values()]
    assert sum(planned) > 1000 and sum(map(bool, planned)) > 400
