"""What the wrong calls of an operator have in common."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from op_tools.core.pattern import KINDS_AT_MOST, Evidence, describe


def evidence(wrong: Sequence[tuple[Any, ...]], correct: Sequence[tuple[Any, ...]]) -> Evidence:
    found = Evidence()
    for passed, calls in ((False, wrong), (True, correct)):
        for args in calls:
            found.add(describe(args, {}), passed)
    return found


def plain(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


X = plain(4, 6)
CASES = {
    "transposed": ([(X, plain(4, 6).t())], [(X, plain(6, 4))], "argument 1 that is transposed"),
    "expanded": ([(plain(1, 6).expand(4, 6),)], [(X,)], "argument 0 that is expanded"),
    "gaps": ([(plain(4, 12)[:, :6],)], [(X,)], "argument 0 that is a part of a larger tensor"),
    "type": ([(X.half(),)], [(X,)], "argument 0 of type float16"),
    "empty": ([(plain(0, 6),)], [(X,)], "argument 0 without elements"),
    "offset": ([(plain(5, 6)[1:],)], [(X,)], "does not start at the start of its storage"),
    "tail": ([(plain(4, 7),), (plain(8, 9),)], [(plain(4, 8),)], "no multiple of 4"),
    "option": ([(X, 0)], [(X, 1)], "argument 1 = 0"),
    "twice": ([(X, X)], [(X, plain(4, 6))], "the same tensor as two arguments"),
    "large": ([(plain(64, 64),), (plain(32, 64),)], [(plain(8, 8),)], "at least 2,048 elements in"),
    "small": ([(plain(4, 32),)], [(plain(8, 32),), (plain(64, 32),)], "at most 128 elements in"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_property_of_the_wrong_calls_is_found(name: str) -> None:
    wrong, correct, expected = CASES[name]
    assert expected in evidence(wrong, correct).pattern()


def test_the_sentence_counts_both_kinds_of_calls() -> None:
    found = evidence([(X.t(),)] * 3, [(X,)] * 20)
    assert found.pattern() == (
        "All 3 wrong calls have argument 0 that is transposed (not contiguous); none of the 20 "
        "correct calls does."
    )


def test_two_properties_together_are_found() -> None:
    half = X.half()
    found = evidence([(half.t(),)], [(half,), (X.t(),)])
    assert (
        "argument 0 that is transposed (not contiguous), and argument 0 of type float16"
        in found.pattern()
    )


def test_no_pattern_is_claimed_where_a_correct_call_is_alike() -> None:
    assert evidence([(X,)], [(plain(4, 6),)]).pattern() == ""


def test_without_a_correct_call_every_call_is_wrong() -> None:
    assert evidence([(X,)] * 2, []).pattern() == "Every judged call is wrong (2)."


def test_without_a_wrong_call_there_is_no_pattern() -> None:
    assert evidence([], [(X,)]).pattern() == ""


def test_the_memory_of_an_operator_is_bounded() -> None:
    found = evidence([(X,)], [(X, at) for at in range(2 * KINDS_AT_MOST)])
    assert len(found.correct) == KINDS_AT_MOST


def test_descriptions_of_calls_share_their_texts() -> None:
    one, other = describe((X, 3), {}), describe((plain(4, 7), 3), {})
    shared = {id(fact) for fact in one.facts} & {id(fact) for fact in other.facts}
    assert len(shared) == len(one.facts & other.facts) > 2
