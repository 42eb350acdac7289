"""Arithmetic, reductions, sorting, linear algebra, Fourier transforms and sparse layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Function = Callable[[Tensor], Any]

ARITHMETIC: dict[str, Function] = {
    "add": lambda t: t + t.t(),
    "scalar right": lambda t: t * 3 - 1.5,
    "scalar left": lambda t: 2 / (t.abs() + 1),
    "broadcast": lambda t: t + t[0] * t[:, :1],
    "promotion": lambda t: t + torch.arange(4, device=t.device),
    "integer division": lambda t: (t * 7).long() // 3,
    "remainder": lambda t: t % 0.7,
    "comparison": lambda t: (t > 0) & (t <= 1),
    "nan and inf": lambda t: torch.log(t) / torch.zeros_like(t),
    "addcmul": lambda t: torch.addcmul(t, t, t, value=0.5),
    "lerp": lambda t: torch.lerp(t, t.t(), 0.3),
    "activations": lambda t: torch.nn.functional.gelu(t) + t.sigmoid() + torch.tanh(t),
    "cat and stack": lambda t: torch.stack([torch.cat([t, t]), torch.cat([t.t(), -t])]),
    "einsum": lambda t: torch.einsum("ij,kj->ik", t, t),
    "foreach": lambda t: torch._foreach_mul(torch._foreach_add([t, t.t()], 1.0), [2.0, 3.0]),
}

REDUCTIONS: dict[str, Function] = {
    "sum": lambda t: t.sum(),
    "sum of a dim": lambda t: t.sum(1, keepdim=True),
    "mean": lambda t: t.mean((0, 1)),
    "prod": lambda t: t.prod(0),
    "max with indices": lambda t: t.max(1),
    "argmin": lambda t: t.argmin(0),
    "aminmax": lambda t: torch.aminmax(t),
    "var and std": lambda t: (t.var(0), t.std(1, correction=0)),
    "norm": lambda t: torch.linalg.vector_norm(t, 3),
    "logsumexp": lambda t: t.logsumexp(1),
    "all and any": lambda t: ((t > 0).all(), (t > 0).any(1)),
    "cumsum": lambda t: t.cumsum(1),
    "cummax": lambda t: t.cummax(0),
    "softmax": lambda t: t.softmax(1),
    "count_nonzero": lambda t: (t > 0).count_nonzero(),
    "median": lambda t: t.median(1),
    "quantile": lambda t: t.quantile(0.3, dim=1),
    "histc": lambda t: torch.histc(t, 5),
    "bincount": lambda t: torch.bincount((t.abs() * 3).long().flatten()),
    "layer_norm": lambda t: torch.nn.functional.layer_norm(t, (4,)),
    "zero size": lambda t: t[:0].sum(0),
}

ORDERS: dict[str, Function] = {
    "sort": lambda t: t.sort(1),
    "sort descending stable": lambda t: t.sort(dim=0, descending=True, stable=True),
    "argsort": lambda t: t.argsort(1),
    "topk": lambda t: t.topk(2, 1),
    "kthvalue": lambda t: t.kthvalue(2, 1),
    "unique": lambda t: torch.unique((t * 2).round(), return_inverse=True, return_counts=True),
    "unique_consecutive": lambda t: torch.unique_consecutive((t > 0).flatten()),
    "isin": lambda t: torch.isin(t, t[0]),
    "msort": lambda t: torch.msort(t),
}

LINALG: dict[str, Function] = {
    "mm": lambda t: t @ t.t(),
    "bmm": lambda t: torch.bmm(t.expand(3, 4, 4), t.t().expand(3, 4, 4)),
    "addmm": lambda t: torch.addmm(t[0], t, t, beta=0.5, alpha=2),
    "mv and dot": lambda t: (t @ t[0], t[0] @ t[1]),
    "inverse": lambda t: torch.linalg.inv(t),
    "solve": lambda t: torch.linalg.solve(t, t[:, :2]),
    "cholesky": lambda t: torch.linalg.cholesky(t @ t.t() + torch.eye(4, device=t.device)),
    "qr": lambda t: torch.linalg.qr(t),
    "svd values": lambda t: torch.linalg.svdvals(t),
    "eigh": lambda t: torch.linalg.eigh(t + t.t()).eigenvalues,
    "eig": lambda t: torch.linalg.eig(t).eigenvalues,
    "det and slogdet": lambda t: (torch.linalg.det(t), torch.linalg.slogdet(t)),
    "lstsq": lambda t: torch.linalg.lstsq(t, t[:, :1]).solution,
    "matrix_exp": lambda t: torch.linalg.matrix_exp(t),
    "pinv": lambda t: torch.linalg.pinv(t[:, :2]),
    "triangular": lambda t: torch.linalg.solve_triangular(
        t.triu() + 2 * torch.eye(4, device=t.device), t, upper=True
    ),
}

FOURIER: dict[str, Function] = {
    "fft": lambda t: torch.fft.fft(t),
    "rfft and back": lambda t: torch.fft.irfft(torch.fft.rfft(t), n=4),
    "fft2": lambda t: torch.fft.fft2(t),
    "fftshift": lambda t: torch.fft.fftshift(t),
    "stft": lambda t: torch.stft(
        t.flatten(), 4, window=torch.hann_window(4, device=t.device), return_complex=True
    ),
}

SPARSE: dict[str, Function] = {
    "coo to dense": lambda t: t.relu().to_sparse().to_dense(),
    "coo parts": lambda t: (t.relu().to_sparse().indices(), t.relu().to_sparse().values()),
    "coo from parts": lambda t: (
        torch.sparse_coo_tensor(
            torch.tensor([[0, 1, 1], [2, 0, 0]], device=t.device),
            t[0, :3],
            (2, 3),
            check_invariants=True,
        )
        .coalesce()
        .to_dense()
    ),
    "coo mm": lambda t: torch.sparse.mm(t.relu().to_sparse(), t),
    "coo add": lambda t: (t.relu().to_sparse() + t.relu().to_sparse()).to_dense(),
    "coo times number": lambda t: (t.relu().to_sparse() * 2).to_dense(),
    "coo emptied, then added to": lambda t: (
        t.relu().to_sparse().zero_().add_(t.relu().to_sparse())._values()
    ),
    "coo sum": lambda t: torch.sparse.sum(t.relu().to_sparse()),
    "csr to dense": lambda t: t.relu().to_sparse_csr().to_dense(),
    "csr parts": lambda t: (
        t.relu().to_sparse_csr().crow_indices(),
        t.relu().to_sparse_csr().values(),
    ),
    "csr mm": lambda t: t.relu().to_sparse_csr() @ t,
    "csr mv": lambda t: t.relu().to_sparse_csr() @ t[0],
}

GROUPS = {
    "arithmetic": ARITHMETIC,
    "reductions": REDUCTIONS,
    "orders": ORDERS,
    "linalg": LINALG,
    "fourier": FOURIER,
    "sparse": SPARSE,
}
CASES = [(group, name) for group, functions in GROUPS.items() for name in functions]


# torch itself calls CSR a beta, on the CPU too
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
@pytest.mark.parametrize(("group", "name"), CASES, ids=[f"{g}-{n}" for g, n in CASES])
def test_a_function_gives_what_the_cpu_gives(group: str, name: str) -> None:
    function = GROUPS[group][name]
    source = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    expected = tree_leaves(function(source))
    actual = tree_leaves(function(source.to("dipu")))
    assert len(actual) == len(expected)
    for mine, cpu in zip(actual, expected, strict=True):
        assert mine.device.type == "dipu"
        torch.testing.assert_close(mine.cpu(), cpu, equal_nan=True)


# products of half types in float32, which the CPU lacks and CUDA has
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_half_types_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 40).to(dtype), torch.randn(2, 40, 5).to(dtype)
    start = torch.randn(2, 3, 5)
    x, y, z = a.to("dipu"), b.to("dipu"), start.to("dipu")
    product, full = a.float() @ b.float(), torch.float32
    out = torch.empty(2, 3, 5, device="dipu")
    found = {
        "mm": torch.mm(x[0], y[0], out_dtype=full),
        "mm out": torch.mm(x[0], y[0], out_dtype=full, out=out[1]),
        "addmm": torch.addmm(z[0], x[0], y[0], beta=2, alpha=3, out_dtype=full),
        "addmm in place": torch.addmm(z[1], x[1], y[1], out_dtype=full, out=z[1]),
        "bmm": torch.bmm(x, y, out_dtype=full),
        "bmm out": torch.bmm(x, y, out_dtype=full, out=out),
        "baddbmm": torch.baddbmm(start.to("dipu"), x, y, out_dtype=full),
        "baddbmm out": torch.baddbmm(start.to("dipu"), x, y, out_dtype=full, out=out.clone()),
    }
    expected = {
        "mm": product[0],
        "mm out": product[1],  # "bmm out" writes the same tensor after it
        "addmm": 2 * start[0] + 3 * product[0],
        "addmm in place": start[1] + product[1],
        "bmm": product,
        "bmm out": product,
        "baddbmm": start + product,
        "baddbmm out": start + product,
    }
    for name, result in found.items():
        torch.testing.assert_close(result.cpu(), expected[name], msg=name)
    with pytest.raises(RuntimeError, match="float32 for float16 and bfloat16"):
        torch.mm(x[0], y[0], out_dtype=torch.float64)


# the CPU has no histogram of integers, CUDA has
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_a_histogram_of_integers(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 1, 4, 9, 9], dtype=dtype, device="dipu")
    counts = torch.histc(values, 3)
    assert (counts.tolist(), counts.dtype) == ([3, 1, 2], dtype)
    assert torch.histc(values, 4, min=1, max=9).tolist() == [2, 1, 0, 2]
    out = torch.empty(0, dtype=dtype, device="dipu")
    assert torch.histc(torch.full_like(values, 5), 2, out=out) is out
    assert out.tolist() == [0, 6]  # one value only: one less and one more are the ends
    with pytest.raises(RuntimeError, match="should have the same dtype"):
        torch.histc(values, 3, out=torch.empty(3, device="dipu"))
    many = torch.histc(values.repeat(100), 1, min=0, max=9)
    assert many.item() == (600 % 256 if dtype is torch.uint8 else 600)


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_a_sparse_tensor_moves_there_and_back(layout: str) -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    source = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
    moved = source.to("dipu")
    assert (moved.device.type, moved.layout) == ("dipu", source.layout)
    assert torch.equal(moved.cpu().to_dense(), dense)


def test_gradients_flow_through_a_sparse_product() -> None:
    weight = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    dense = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    grads = []
    for device in ("cpu", "dipu"):
        leaf = dense.detach().to(device).requires_grad_()
        torch.sparse.mm(weight.to(device).to_sparse(), leaf).sum().backward()
        assert leaf.grad is not None
        grads.append(leaf.grad.cpu())
    assert torch.equal(grads[1], grads[0])


def test_a_zero_gradient_tensor_without_storage_is_read_as_zeros() -> None:
    zeros = torch._efficientzerotensor((2, 2), device="dipu")  # type: ignore[attr-defined]
    assert (zeros + torch.ones(2, 2, device="dipu")).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_singular_matrix_raises_the_cpus_error() -> None:
    message = "The diagonal element 1 is zero|singular"
    with pytest.raises(torch.linalg.LinAlgError, match=message):
        torch.linalg.inv(torch.zeros(2, 2, device="dipu"))


def test_fake_quantization_rounds_to_the_grid() -> None:
    values = torch.tensor([-1.0, 0.0, 0.26, 2.0])
    quantized = torch.fake_quantize_per_tensor_affine(values.to("dipu"), 0.1, 0, -128, 127)
    assert quantized.tolist() == pytest.approx([-1.0, 0.0, 0.3, 2.0])


def test_a_jagged_nested_tensor_computes_on_the_device() -> None:
    parts = [torch.ones(2, 3, device="dipu"), torch.full((1, 3), 2.0, device="dipu")]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    doubled = (nested * 2).unbind()
    assert [part.tolist() for part in doubled] == [[[2.0] * 3] * 2, [[4.0] * 3]]
    assert doubled[0].device == torch.device("dipu", 0)


OUTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "reduction": lambda t, out: torch.amax(t, (0, 1), out=out),
    "one argument": lambda t, out: torch.exp(t[0, 0], out=out),
    "two arguments": lambda t, out: torch.add(t[0, 0], t[0, 1], out=out),
    "in place": lambda t, out: out.add_(t[0, 0]),
    "list": lambda t, out: torch._foreach_add_([out], [t[0, 0]]),
}


@pytest.mark.parametrize("name", OUTS)
def test_a_result_is_not_written_to_a_number_on_the_host(name: str) -> None:
    given = torch.ones(2, 3, device="dipu")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        OUTS[name](given, torch.zeros(()))


def test_mode_writes_to_the_tensors_of_out() -> None:
    given = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 1.0]])
    values, indices = (
        torch.empty(0, device="dipu"),
        torch.empty(0, dtype=torch.int64, device="dipu"),
    )
    torch.mode(given.to("dipu"), 1, out=(values, indices))
    assert values.tolist() == [2.0, 3.0]
    assert indices.tolist() == torch.mode(given, 1).indices.tolist()


SAME: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "two tensors": lambda t, row: torch.mul(t, row, out=t),
    "composite in place": lambda t, row: t.ldexp_(row),
    "more arguments": lambda t, row: torch.addcmul(t, row, row, out=t),
}


@pytest.mark.parametrize("name", SAME)
def test_a_result_that_is_an_argument_is_not_resized(name: str) -> None:
    column = torch.ones(5, 1, device="dipu")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        SAME[name](column, torch.ones(5, device="dipu"))
    assert column.shape == (5, 1)


def test_cat_refuses_an_empty_argument_as_its_result() -> None:
    empty, other = torch.zeros(0, device="dipu"), torch.randn(4, 6, device="dipu")
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.cat((empty, other), out=empty)
