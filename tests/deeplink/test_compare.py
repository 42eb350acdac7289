"""The comparison core: what differs, where, by how much; expected values are written by hand."""

import math
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._comparison import default_tolerances

from deeplink.compare import TOLERANCES, Difference, all_close, compare, worst

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]


def only(rows: list[Difference]) -> Difference:
    """The single row."""
    assert len(rows) == 1
    return rows[0]


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + WHOLE)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_a_tensor_equals_itself(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    row = only(compare(tensor.clone(), tensor))
    assert row.close and row.kind == "values"
    assert (row.shape, row.count, row.mismatched, row.max_abs) == (shape, tensor.numel(), 0, 0.0)
    assert row.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX)
def test_the_default_tolerances_are_those_of_torch(dtype: torch.dtype) -> None:
    assert TOLERANCES[dtype] == default_tolerances(dtype)


def test_the_worst_element_is_named() -> None:
    expected = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    result = torch.tensor([[1.0, 2.5], [4.0, 6.0]])
    row = only(compare(result, expected))
    assert not row.close
    assert (row.mismatched, row.max_abs, row.max_rel) == (2, 2.0, 0.25)
    assert (row.index, row.result, row.expected) == ((1, 1), 6.0, 8.0)
    assert row.message == (
        "2 of 4 not close (rtol 1.3e-06, atol 1e-05), largest error 2, relative 0.25, "
        "4194304 ulp, at [1, 1]: 6.0 against 8.0"
    )


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2])
def test_one_step_is_one_ulp(dtype: torch.dtype) -> None:
    one = torch.ones(1, dtype=dtype)
    step = torch.tensor([1 + torch.finfo(dtype).eps], dtype=dtype)
    assert only(compare(step, one)).max_ulp == 1
    assert only(compare(one, step)).max_ulp == 1


def test_ulp_goes_through_zero_exactly() -> None:
    tiny = torch.tensor([5e-324], dtype=torch.float64)  # the smallest above zero
    assert only(compare(tiny, -tiny)).max_ulp == 2
    assert only(compare(torch.tensor([0.0]), torch.tensor([-0.0]))).max_ulp == 0
    largest = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert only(compare(largest, -largest)).max_ulp == 2 * 0x7FEFFFFFFFFFFFFF


def test_whole_numbers_have_no_ulp_and_are_exact() -> None:
    big = 2**62
    row = only(compare(torch.tensor([big, 1]), torch.tensor([big + 1, 1])))
    assert (row.close, row.mismatched, row.max_abs, row.max_ulp) == (False, 1, 1.0, None)
    assert (row.result, row.expected) == (big, big + 1)


def test_the_gap_of_whole_numbers_does_not_overflow() -> None:
    low, high = torch.tensor([-(2**63)]), torch.tensor([2**63 - 1])
    assert only(compare(low, high)).max_abs == float(2**64 - 1)
    assert only(compare(torch.tensor([250], dtype=torch.uint8), torch.tensor([5]))).max_abs == 245


def test_tolerances_that_are_given_hold_for_whole_numbers_but_not_for_bools() -> None:
    assert only(compare(torch.tensor([10]), torch.tensor([11]), atol=1)).close
    assert not only(compare(torch.tensor([True]), torch.tensor([False]), atol=1)).close


def test_nan_equals_nan_unless_set_otherwise() -> None:
    tensor = torch.tensor([1.0, math.nan])
    assert only(compare(tensor, tensor.clone())).close
    row = only(compare(tensor, tensor.clone(), equal_nan=False))
    assert (row.close, row.mismatched, row.nan_mismatched) == (False, 1, 0)


def test_a_nan_on_one_side_is_the_worst_of_all() -> None:
    row = only(compare(torch.tensor([math.nan, 0.0]), torch.tensor([1.0, 100.0])))
    assert (row.nan_mismatched, row.mismatched, row.index) == (1, 2, (0,))
    assert row.max_abs == 100.0
    assert "1 nan on one side only" in row.message


def test_infinities() -> None:
    inf = math.inf
    row = only(compare(torch.tensor([inf, -inf]), torch.tensor([inf, -inf])))
    assert row.close and row.max_abs == 0.0
    row = only(compare(torch.tensor([inf, inf, 1.0]), torch.tensor([-inf, 1.0, inf])))
    assert (row.close, row.mismatched, row.inf_mismatched, row.max_abs) == (False, 3, 3, 0.0)


def test_complex_numbers_are_close_by_their_distance() -> None:
    expected = torch.tensor([3 + 4j])
    row = only(compare(torch.tensor([3 + 4.5j]), expected))
    assert (row.max_abs, row.max_rel, row.close) == (0.5, 0.1, False)
    assert row.max_ulp == 2**20
    assert only(compare(torch.tensor([3 + 4.5j]), expected, rtol=0.11)).close


def test_half_types_have_their_own_tolerance() -> None:
    assert only(compare(torch.tensor([1.01]).bfloat16(), torch.tensor([1.0]).bfloat16())).close
    assert not only(compare(torch.tensor([1.01]).half(), torch.tensor([1.0]).half())).close


def test_strides_do_not_matter() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    assert only(compare(base.t(), base.t().contiguous())).close
    assert only(compare(base[::2, 1::2], torch.tensor([[1.0, 3.0], [9.0, 11.0]]))).close
    conjugate = torch.tensor([1 + 2j]).conj()
    assert only(compare(conjugate, torch.tensor([1 - 2j]))).close


def test_sparse_against_dense() -> None:
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    assert only(compare(dense.to_sparse(), dense)).close


def test_a_shape_that_differs() -> None:
    row = only(compare(torch.zeros(2, 3), torch.zeros(3, 2)))
    assert (row.kind, row.close) == ("shape", False)
    assert row.message == "shape [2, 3] against [3, 2]"


def test_a_dtype_that_differs_is_reported_with_the_values() -> None:
    result, expected = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0], dtype=torch.float64)
    row = only(compare(result, expected))
    assert (row.kind, row.close, row.mismatched, row.max_ulp) == ("dtype", False, 1, None)
    assert row.message.startswith("dtype float32 against float64; 1 of 2 not close")
    close = expected.clone().float()
    assert only(compare(close, expected, check_dtype=False)).close


def test_meta_tensors_have_no_values() -> None:
    row = only(compare(torch.empty(2, device="meta"), torch.zeros(2)))
    assert row.close and "meta" in row.message


Pair = namedtuple("Pair", ["weight", "bias"])


@dataclass
class Output:
    logits: torch.Tensor
    steps: int


def test_paths_lead_to_the_leaf() -> None:
    def results(value: float) -> object:
        tensor = torch.tensor([value])
        return [Pair(tensor, 1), {"a": (tensor, None)}, Output(tensor, 3)]

    rows = compare(results(1.0), results(2.0))
    assert [(row.path, row.close) for row in rows] == [
        ("[0].weight", False),
        ("[0].bias", True),
        ("[1]['a'][0]", False),
        ("[1]['a'][1]", True),
        ("[2].logits", False),
        ("[2].steps", True),
    ]


def test_the_names_of_torch_return_types_are_used() -> None:
    result = torch.sort(torch.tensor([2.0, 1.0]))
    assert [row.path for row in compare(result, result)] == [".values", ".indices"]
    rows = compare(tuple(result), result)  # a plain tuple is as good
    assert all_close(rows) and rows[1].path == ".indices"


@pytest.mark.parametrize(
    ("result", "expected", "path", "message"),
    [
        ([1], [1, 2], "[1]", "missing from the result"),
        ([1, 2], [1], "[1]", "in the result, but not expected"),
        ({"a": 1}, {"b": 1}, "['b']", "missing from the result"),
        (1.0, torch.tensor(1.0), "", "float 1.0 against tensor of float32 []"),
        ((1,), {"a": 1}, "", "tuple of 1 against dict of 1"),
        (None, [], "", "NoneType None against list of 0"),
    ],
)
def test_structures_that_differ(result: object, expected: object, path: str, message: str) -> None:
    bad = [row for row in compare(result, expected) if not row.close]
    assert (bad[0].kind, bad[0].path, bad[0].message) == ("structure", path, message)


@pytest.mark.parametrize(
    ("result", "expected", "close"),
    [
        (1, 1, True),
        (1, 2, False),
        (1.0, 1 + 1e-9, True),
        (1.0, 1.1, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, 1.0, False),
        (True, True, True),
        (True, 1, False),
        ("a", "a", True),
        ("a", "b", False),
        (None, None, True),
        (torch.float32, torch.float64, False),
        (np.float64(2.0), 2.0, True),
        (np.array([1, 2]), torch.tensor([1, 2]), True),
    ],
)
def test_plain_values(result: object, expected: object, close: bool) -> None:
    assert only(compare(result, expected)).close is close


def test_a_foreign_equality_that_raises_is_a_difference() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise TypeError("never")

    row = only(compare(Odd(), Odd()))
    assert (row.close, row.message) == (False, "cannot be compared: TypeError: never")


def test_worst_puts_the_gravest_first() -> None:
    good, off = torch.tensor([1.0]), torch.tensor([2.0])
    rows = compare([good, off, [1]], [good, good, [1, 2]])
    found = worst(rows)
    assert found is not None and (found.kind, found.path) == ("structure", "[2][1]")
    found = worst(rows[:2])
    assert found is not None and found.path == "[1]"
    assert worst([]) is None


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
anything = st.floats(width=32)


@given(st.lists(anything))
def test_any_values_equal_themselves(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert only(compare(tensor, tensor.clone(), rtol=0, atol=0)).close


@given(st.lists(st.tuples(anything, anything), min_size=1))
def test_without_rtol_the_order_does_not_matter(pairs: list[tuple[float, float]]) -> None:
    a, b = (torch.tensor(side) for side in zip(*pairs, strict=True))
    there, back = only(compare(a, b, rtol=0)), only(compare(b, a, rtol=0))
    for field in ("close", "mismatched", "max_abs", "max_ulp", "nan_mismatched", "inf_mismatched"):
        assert getattr(there, field) == getattr(back, field), field


@given(st.lists(st.tuples(anything, anything), min_size=1))
def test_the_verdict_is_that_of_torch_allclose(pairs: list[tuple[float, float]]) -> None:
    # in float64, as compare does: torch.allclose in float32 rounds the tolerance itself
    a, b = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
    verdict = torch.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert only(compare(a, b, rtol=1e-3, atol=1e-3)).close == verdict


@given(finite)
def test_ulp_agrees_with_nextafter(value: float) -> None:
    here = torch.tensor([value], dtype=torch.float32)
    there = torch.nextafter(here, torch.tensor([math.inf]))
    if torch.isfinite(there).all():
        assert only(compare(there, here)).max_ulp == 1
