"""The information about arguments and results in the name of an operator."""

from __future__ import annotations

import pytest
import torch

from op_tools.core import op_names


@pytest.mark.parametrize(
    ("name", "in_place"),
    [
        ("torch.Tensor.add_", True),
        ("torch.Tensor.__setitem__", True),
        ("torch.Tensor.__iadd__", True),
        ("aten.add_.Tensor", True),
        ("torch.Tensor.__getitem__", False),
        ("torch.Tensor.__rsub__", False),
        ("torch.add", False),
    ],
)
def test_what_sounds_as_if_it_wrote_its_argument(name: str, in_place: bool) -> None:
    assert op_names.sounds_in_place(name) is in_place


def test_indices_that_cut_make_views_and_others_do_not() -> None:
    get, x = "torch.Tensor.__getitem__", torch.ones(3)
    cuts = (0, slice(1, 2), None, ..., (slice(None), 0), ())
    assert all(op_names.is_view(get, (x, cut)) for cut in cuts)
    others = ([0], x > 0, (0, [1]), True, torch.tensor(1))
    assert not any(op_names.is_view(get, (x, other)) for other in others)
    assert op_names.is_view("torch.Tensor.view", (x, 3)) and not op_names.is_view(
        "torch.add", (x, x)
    )
