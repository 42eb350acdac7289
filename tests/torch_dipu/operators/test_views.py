"""Views, strides, in-place operators and `out=`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

VIEWS = {
    "view": lambda t: t.view(4, 6),
    "reshape": lambda t: t.reshape(6, 4),
    "t": lambda t: t.view(4, 6).t(),
    "permute": lambda t: t.permute(2, 0, 1),
    "transpose": lambda t: t.transpose(0, 2),
    "slice": lambda t: t[1, 1:, ::2],
    "select": lambda t: t.select(1, 2),
    "narrow": lambda t: t.narrow(2, 1, 2),
    "expand": lambda t: t[:, :1].expand(2, 3, 4),
    "unfold": lambda t: t.unfold(2, 2, 1),
    "diagonal": lambda t: t[0].diagonal(),
    "squeeze": lambda t: t.unsqueeze(1).squeeze(1),
    "as_strided": lambda t: t.as_strided((3, 2), (2, 5), 1),
    "chunk": lambda t: t.chunk(2, 2)[1],
    "split": lambda t: t.split([1, 2], 1)[1],
    "unbind": lambda t: t.unbind(0)[1],
    "movedim": lambda t: t.movedim(0, 2),
    "flatten": lambda t: t.flatten(1),
    "view dtype": lambda t: t.view(torch.int32),
    "view smaller dtype": lambda t: t.view(torch.int16),
    "detach": lambda t: t.detach(),
    "real of complex": lambda t: torch.view_as_complex(t.reshape(2, 3, 2, 2)).real,
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_has_the_cpus_values_and_strides(name: str) -> None:
    base = torch.arange(24.0).view(2, 3, 4)
    device = base.to("dipu")
    expected, actual = VIEWS[name](base), VIEWS[name](device)
    assert (actual.shape, actual.stride()) == (expected.shape, expected.stride())
    assert actual.storage_offset() == expected.storage_offset()
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("name", sorted(set(VIEWS) - {"expand", "unfold", "detach"}))
def test_a_write_through_a_view_reaches_the_base(name: str) -> None:
    base = torch.arange(24.0).view(2, 3, 4)
    device = base.to("dipu")
    VIEWS[name](base).zero_()
    VIEWS[name](device).zero_()
    assert torch.equal(device.cpu(), base)


def test_a_view_shares_the_storage() -> None:
    base = torch.zeros(2, 3, device="dipu")
    view = base.t()[1]
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert view._base is base


def test_a_view_of_a_wrong_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match="is invalid for input of size 6"):
        torch.zeros(6, device="dipu").view(4)


@pytest.mark.parametrize(
    "name", ["add_", "mul_", "clamp_max_", "copy_", "fill_", "sub_", "div_", "pow_"]
)
def test_an_in_place_op_returns_the_same_tensor(name: str) -> None:
    host = torch.tensor([1.0, -2.0, 3.0])
    device = host.to("dipu")
    argument = torch.tensor(2.0)
    getattr(host, name)(argument)
    assert getattr(device, name)(argument.to("dipu")) is device
    assert torch.equal(device.cpu(), host)


def test_an_in_place_op_on_a_strided_view() -> None:
    host = torch.arange(12.0).view(3, 4)
    device = host.to("dipu")
    for tensor in (host, device):
        tensor.t()[1:3].mul_(10).relu_()
    assert torch.equal(device.cpu(), host)


def test_in_place_ops_count_versions() -> None:
    tensor = torch.zeros(2, device="dipu")
    before = tensor._version
    tensor.add_(1).mul_(2)
    assert tensor._version == before + 2


def test_out_writes_into_the_given_tensor() -> None:
    out = torch.zeros(3, device="dipu")
    pointer = out.data_ptr()
    result = torch.add(torch.ones(3, device="dipu"), 2, out=out)
    assert result is out
    assert out.data_ptr() == pointer
    assert out.tolist() == [3.0, 3.0, 3.0]


def test_an_empty_out_is_resized() -> None:
    out = torch.empty(0, device="dipu")
    torch.mul(torch.arange(6.0, device="dipu").view(2, 3), 2, out=out)
    assert out.tolist() == [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]


def test_an_out_of_a_wrong_shape_is_resized_with_a_warning() -> None:
    out = torch.zeros(5, device="dipu")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.mm(torch.ones(2, 3, device="dipu"), torch.ones(3, 4, device="dipu"), out=out)
    assert out.tolist() == [[3.0] * 4] * 2


def test_out_keeps_its_strides() -> None:
    out = torch.empty(4, 2, device="dipu").t()
    torch.add(torch.ones(2, 4, device="dipu"), 1, out=out)
    assert out.stride() == (1, 2)
    assert out.tolist() == [[2.0] * 4] * 2


def test_out_of_another_dtype_is_cast() -> None:
    out = torch.empty(2, dtype=torch.float64, device="dipu")
    torch.add(torch.ones(2, device="dipu"), 1, out=out)
    assert out.tolist() == [2.0, 2.0]


def test_out_of_a_narrower_kind_is_refused() -> None:
    out = torch.empty(2, dtype=torch.int64, device="dipu")
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.add(torch.ones(2, device="dipu"), 0.5, out=out)


def test_several_outs_are_all_written() -> None:
    values = torch.empty(0, device="dipu")
    indices = torch.empty(0, dtype=torch.int64, device="dipu")
    source = torch.tensor([[3.0, 1.0], [0.0, 2.0]], device="dipu")
    torch.sort(source, dim=1, out=(values, indices))
    assert values.tolist() == [[1.0, 3.0], [0.0, 2.0]]
    assert indices.tolist() == [[1, 0], [0, 1]]


def test_an_out_with_a_conjugate_bit_flipped_by_the_kernel() -> None:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(3, 3, dtype=torch.complex64, generator=generator)
    right = torch.randn(3, 2, dtype=torch.complex64, generator=generator)
    for adjoint in (False, True):
        expected = torch.linalg.lu_solve(*torch.linalg.lu_factor(matrix), right, adjoint=adjoint)
        factors = torch.linalg.lu_factor(matrix.to("dipu"))
        actual = torch.linalg.lu_solve(*factors, right.to("dipu"), adjoint=adjoint)
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("shape", [(5,), (2, 4), (0,), (1,)])
def test_resize_keeps_the_leading_values(shape: tuple[int, ...]) -> None:
    tensor = torch.arange(4.0, device="dipu").resize_(shape)
    assert tensor.shape == shape
    kept = min(4, tensor.numel())
    assert tensor.flatten()[:kept].tolist() == torch.arange(4.0)[:kept].tolist()


def test_storage_resize_keeps_the_leading_bytes() -> None:
    tensor = torch.arange(4.0, device="dipu")
    storage = tensor.untyped_storage()
    storage.resize_(64)
    assert storage.nbytes() == 64
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
    storage.resize_(0)
    assert storage.nbytes() == 0


def test_set_takes_over_another_storage() -> None:
    source = torch.arange(6.0, device="dipu")
    tensor = torch.empty(0, device="dipu")
    tensor.set_(source.untyped_storage(), 1, (2, 2), (2, 1))  # type: ignore[call-overload]
    assert tensor.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    source[1] = 9
    assert tensor[0, 0].item() == 9


def test_swapping_data_keeps_the_object() -> None:
    tensor = torch.zeros(2, device="dipu")
    tensor.data = torch.ones(3, device="dipu")
    assert tensor.tolist() == [1.0, 1.0, 1.0]


def test_conjugate_and_negative_views_are_lazy_and_right() -> None:
    host = torch.tensor([1 + 2j, 3 - 4j])
    device = host.to("dipu")
    conjugate: Tensor = device.conj()
    assert conjugate.is_conj()
    assert conjugate.data_ptr() == device.data_ptr()
    assert torch.equal((conjugate * 1j).cpu(), host.conj() * 1j)
    assert torch.equal(conjugate.imag.cpu(), host.conj().imag)
    assert torch.equal(conjugate.resolve_conj().cpu(), host.conj().resolve_conj())
