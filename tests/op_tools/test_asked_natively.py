"""What is asked of the tensors of a compared call natively is what Python finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from op_tools import device_kinds, kernels, memory, names, reference
from op_tools.call import Call

DIPU = "dipu"


def inferred() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3, device=DIPU)


def written() -> Tensor:
    return torch.ones(3, device=DIPU).mul_(2).add_(1)


GIVEN: dict[str, Callable[[], list[Any]]] = {
    "nothing": lambda: [],
    "floats": lambda: [torch.ones(3, device=DIPU), torch.ones(2, 2, device=DIPU).bfloat16()],
    "whole numbers": lambda: [torch.ones(3, device=DIPU, dtype=torch.int64)],
    "both": lambda: [torch.ones(3, device=DIPU), torch.ones(4, device=DIPU, dtype=torch.bool)],
    "a number of the host": lambda: [torch.ones(3, device=DIPU), torch.tensor(2.0)],
    "a row of the host": lambda: [torch.ones(3, device=DIPU), torch.ones(3)],
    "float64": lambda: [torch.ones(3, device=DIPU), torch.ones(3, device=DIPU).double()],
    "complex": lambda: [torch.ones(3, device=DIPU, dtype=torch.complex64)],
    "sparse": lambda: [torch.ones(3).to_sparse()],
    "written": lambda: [written(), torch.ones(0, device=DIPU)],
    "inferred": lambda: [inferred(), written()],
}


def call_of(given: list[Any]) -> Call:
    device = next((t.device for t in given if t.device.type != "cpu"), torch.device("cpu"))
    return Call(1, "torch.add", torch.add, tuple(given), {}, device=device)


@pytest.mark.parametrize("what", GIVEN)
def test_tensors_are_asked_natively_as_by_python(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(GIVEN[what]())

    def asked() -> tuple[object, ...]:
        plain = reference.kind(call.given)
        if plain:
            return (plain,)
        views = [t.detach().view(-1)[:1] for t in call.given]
        inside = [memory.lies_in_arguments(made, call) for made in (views, views[:1], written())]
        return plain, reference.versions(call), device_kinds.size_to_widen(call), *inside

    assert kernels.helper() is not None
    mine = asked()
    monkeypatch.setattr(kernels, "loaded", lambda: None)
    assert mine == asked()


def test_copies_for_a_reference_are_exact_in_the_layout_of_each() -> None:
    helper = kernels.helper()
    assert helper is not None
    x = torch.randn(4, 6, device=DIPU)
    given = [
        x,
        x.t(),
        x[:, ::2],
        x.bfloat16(),
        x,
        x.double(),
        torch.arange(3, device=DIPU),
        x[0, 0],
        torch.empty(0, 3, device=DIPU),
        torch.tensor(2.5),
    ]
    wanted = [tensor.is_floating_point() and at != 3 for at, tensor in enumerate(given)]
    made = helper.leaves_of(given, wanted, False)
    assert made[4] is made[0]
    for own, copy, grad in zip(given, made, wanted, strict=True):
        wide = torch.float64 if own.is_floating_point() else own.dtype
        assert copy.dtype == wide and copy.device == own.device and copy.requires_grad == grad
        assert torch.equal(copy.detach().cpu(), own.cpu().to(wide))
        assert copy.data_ptr() != own.data_ptr() or not own.numel()
    assert made[1].stride() == x.t().stride()


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
    assert names.sounds_in_place(name) is in_place


def test_indices_that_cut_make_views_and_others_do_not() -> None:
    get, x = "torch.Tensor.__getitem__", torch.ones(3)
    cuts = (0, slice(1, 2), None, ..., (slice(None), 0), ())
    assert all(names.is_view(get, (x, cut)) for cut in cuts)
    others = ([0], x > 0, (0, [1]), True, torch.tensor(1))
    assert not any(names.is_view(get, (x, other)) for other in others)
    assert names.is_view("torch.Tensor.view", (x, 3)) and not names.is_view("torch.add", (x, x))
