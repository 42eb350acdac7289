"""The properties in the row of an operator: batch, layout, determinism, memory without elements."""

from __future__ import annotations

import torch
from torch import Tensor

from diopi.conformance.outside.spec import Spec
from diopi.conformance.results.operators import Operator, rows_of
from tests.diopi.conformance.outside import judging, right


def row(name: str, kernel: judging.Kernel, spec: Spec | None = None) -> Operator:
    (found,) = rows_of(
        list(judging.results(judging.subject(name, kernel, spec), "quick", ["float32"]))
    )
    return found


def by_the_rows(x: Tensor, y: Tensor) -> Tensor:
    """A product whose order of summation depends on the number of rows."""
    if x.shape[0] == 1:
        return (x.unsqueeze(2) * y).flip(1).sum(1)
    return (x.unsqueeze(2) * y).sum(1)


def by_the_layout(x: Tensor, y: Tensor) -> Tensor:
    parts = x.unsqueeze(2) * y
    return parts.sum(1) if x.is_contiguous() else parts.flip(1).sum(1)


def by_chance(x: Tensor, y: Tensor) -> Tensor:
    parts = x.unsqueeze(2) * y
    return parts[:, torch.randperm(parts.shape[1])].sum(1)


def test_every_property_of_a_correct_kernel_is_yes() -> None:
    found = row("relu__chooses", right.relu__chooses)
    assert (found.grade, found.wrong, found.refused) == ("A", 0, 0)
    assert {found.batch_invariant, found.deterministic, found.empty} == {"yes"}
    assert {found.own_work, found.initialised, found.inside} == {"yes"}


def test_a_result_that_depends_on_the_batch_is_no_error_and_shown() -> None:
    found = row("mm__rows", by_the_rows)
    assert (found.batch_invariant, found.wrong, found.grade) == ("no", 0, "B")


def test_a_result_that_depends_on_the_layout_is_no_error_and_shown() -> None:
    found = row("mm__layout", by_the_layout)
    assert (found.layout_invariant, found.wrong, found.grade) == ("no", 0, "B")


def test_two_runs_that_differ_by_rounding_are_no_error_and_shown() -> None:
    generator = torch.get_rng_state()
    found = row("mm__chance", by_chance)
    torch.set_rng_state(generator)
    assert found.own_work == "yes"
    assert found.wrong == 0


def test_a_kernel_may_call_torch_where_that_is_allowed() -> None:
    spec = Spec("corpus", allow_torch=True)
    found = row("softmax__torch", lambda x, dim: torch.softmax(x, dim), spec)
    assert (found.wrong, found.own_work) == (0, "-")


def test_a_small_call_of_torch_is_a_part_of_the_work() -> None:
    def in_two_stages(x: Tensor) -> Tensor:
        parts = [part.dot(torch.ones_like(part)) for part in x.reshape(-1).split(64)]
        return torch.stack(parts).sum() if len(parts) > 8 else sum(parts, torch.zeros(()))

    assert row("sum__stages", in_two_stages).own_work == "yes"


def test_a_refusal_is_counted_and_no_error() -> None:
    def vectors_alone(x: Tensor) -> Tensor:
        assert x.dim() == 1, "vectors alone"
        return x.clamp(min=0)

    found = row("relu__vectors", vectors_alone)
    assert found.refused and found.cases and not found.wrong


def test_calls_of_torch_in_a_compiled_kernel_are_not_judged() -> None:
    def compiled(x: Tensor) -> Tensor:
        return x.clamp(min=0)

    compiled._torchdynamo_orig_callable = compiled  # type: ignore[attr-defined]
    found = row("relu__compiled", compiled)
    assert (found.own_work, found.initialised, found.inside) == ("-", "-", "yes")
