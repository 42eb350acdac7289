"""The example vendor: built by the commands of its README,
its results against float64, its missing ops.
"""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import diopi
from deeplink.errors import KernelError, NoKernelError
from diopi import cabi, catalogue, get, implementation, legacy
from diopi.catalogue import Function
from diopi.resolve import Resolved
from tests.diopi import op_samples, published_calls
from tests.diopi.compiled import COMPILER

EXAMPLE = Path(__file__).parents[2] / "examples" / "droplet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, built by its Makefile."""
    if not COMPILER or not shutil.which("make"):
        pytest.skip("no C compiler or no make")
    copy = tmp_path_factory.mktemp("example") / "droplet"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    command = ["make", f"PYTHON={sys.executable}", f"CC={COMPILER}", "CFLAGS=-O2 -Werror"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return copy


@pytest.fixture(scope="module")
def ops(folder: Path) -> dict[str, Resolved]:
    """Every op, as it runs on the example."""
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module("deeplink_droplet")
        return implementation.load(module.vendor).resolve()
    finally:
        sys.path.remove(str(folder))


GENERATOR = torch.Generator().manual_seed(20)


def r(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def norm(x: Tensor, weight: Tensor) -> tuple[Any, ...]:
    """The arguments of layer_norm_backward."""
    _, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, weight, 1e-5)
    return (r(*x.shape), x, list(weight.shape), mean, rstd, weight, weight, [True, True, True])


X, ROW = r(5, 7), r(7)
NAN = torch.tensor([torch.nan, 1.0, -torch.inf, 0.0])
CASES: dict[str, list[tuple[Any, ...]]] = {
    **{
        name: [(X,), (X.t(),), (X[1:, ::2],), (r(0, 3),), (torch.tensor(0.5),)]
        for name in "relu sigmoid silu exp tanh erf neg abs expm1 sin cos floor ceil gelu square"
        .split()
    },
    **{name: [(X.abs() + 0.1,), (X.t().abs() + 0.1,)] for name in
       "log sqrt rsqrt log1p reciprocal".split()},
    **{
        name: [(X, ROW), (X.t(), r(7, 1)), (X, r(5, 7)[:, :1].expand(5, 7)), (r(0, 7), ROW),
               (NAN, NAN.flip(0))]
        for name in "add sub mul div maximum minimum eq ne lt le gt ge".split()
    },
    "pow": [(X.abs(), 2.5), (X.abs(), ROW)],
    "threshold_backward": [(r(5, 7), X, 0), (r(7, 5), X.t(), 0.5)],
    "sigmoid_backward": [(r(5, 7), X.sigmoid())],
    "tanh_backward": [(r(5, 7), X.tanh())],
    "gelu_backward": [(r(5, 7), X), (r(7, 5), X.t())],
    "mm": [(X, r(7, 3)), (X.t(), r(3, 5).t()), (r(4, 0), r(0, 3)), (X, r(7, 1)[:, ::2])],
    "bmm": [(r(2, 3, 4), r(2, 4, 5)), (r(2, 4, 3).mT, r(4, 5).expand(2, 4, 5))],
    "addmm": [(r(3), X, r(7, 3)), (r(5, 1), X, r(3, 7).t())],
    "sum": [(X, [1]), (X.t(), [0], True), (r(2, 3, 4), [0, 2]), (X,), (r(0, 3), [0])],
    "mean": [(X, [1]), (X.t(), [-1], True), (r(2, 3, 4), [0, 2]), (X,)],
    "amax": [(X, [1]), (X.t(), [0], True), (r(2, 3, 4), [1, 2])],
    "softmax": [(X * 8 + 2000, 1, False), (X, 0, False),
                (r(2, 3, 4), 1, False), (r(0, 3), 1, False)],
    "softmax_backward": [(r(5, 7), X.softmax(1), 1, torch.float32),
                         (r(5, 7), X.softmax(0), 0, torch.float32)],
    "layer_norm": [(X + 9, [7], ROW, ROW, 1e-5), (r(2, 3, 4), [3, 4], None, None, 1e-3),
                   (X.t(), [5], r(5), None, 1e-5)],
    "layer_norm_backward": [norm(X, ROW), norm(r(2, 3, 4), r(3, 4))],
    "embedding": [(X, torch.tensor([[0, 4], [2, 2]])), (X.t(), torch.tensor([6]))],
    "cat": [([X, r(2, 7)],), ([X, r(5, 2), r(5, 0)], 1), ([X.t(), r(7, 3)], -1)],
    "where": [(X > 0, X, ROW), (X.t() > 0, X.t(), torch.tensor(0.0))],
    "nonzero": [(X.clamp_min(0),), (r(0, 3),)],
    "log_softmax": [(X * 8 + 2000, 1, False), (X, 0, False)],
    "nll_loss": [(X.log_softmax(1), torch.tensor([0, 6, -100, 1, 3]), ROW.abs(), 1, -100)],
    "addcmul": [(X, ROW, X)],
    "addcdiv": [(X, ROW, X.abs() + 1)],
    "convolution": [(r(2, 4, 6, 5), r(6, 2, 3, 3), r(6), [1, 2], [1, 0], [1, 1], False, [0, 0], 2)],
    "max_pool2d_with_indices": [(r(2, 3, 6, 6), [2, 2], [2, 1], [1, 0], [1, 1], False)],
}  # fmt: skip


def wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64
    if isinstance(value, list):
        return [wide(item) for item in value]
    return value


def tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_in_c_gives_what_the_op_means(ops: dict[str, Resolved], name: str) -> None:
    op = get(name)
    assert ops[name].route == "kernel"
    for args in CASES[name]:
        given = [a.clone() for a in args if isinstance(a, Tensor)]
        results = tensors(ops[name](*args))
        expected, plain = tensors(op.meaning(*map(wide, args))), tensors(op.meaning(*args))
        for result, reference, like in zip(results, expected, plain, strict=True):
            assert result.dtype == like.dtype
            wanted = reference.to(like.dtype)
            torch.testing.assert_close(result, wanted, rtol=5e-7, atol=5e-7, equal_nan=True)
        after = [a for a in args if isinstance(a, Tensor)]
        torch.testing.assert_close(after, given, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", "add mul relu exp mm softmax layer_norm sum gelu".split())
def test_bfloat16_is_rounded_once(ops: dict[str, Resolved], name: str) -> None:
    args = [a.bfloat16() if isinstance(a, Tensor) else a for a in CASES[name][0]]
    result = tensors(ops[name](*args))[0]
    exact = tensors(get(name).meaning(*map(wide, args)))[0]
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, exact.float().bfloat16())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_types_that_the_chip_lacks_are_converted(
    ops: dict[str, Resolved], dtype: torch.dtype
) -> None:
    x = X.to(dtype)
    result = ops["softmax"](x, 1, False)
    assert result.dtype == dtype
    torch.testing.assert_close(result, x.softmax(1), rtol=2e-3, atol=1e-6)


def test_numbers_are_given_as_numbers(ops: dict[str, Resolved]) -> None:
    assert torch.equal(ops["add"](X, 2.5), X + 2.5)
    assert torch.equal(ops["mul"](X.bfloat16(), 0.1), X.bfloat16() * 0.1)
    torch.testing.assert_close(ops["sub"](X, 3), X - 3)


def test_gradients_that_no_one_requested_are_not_made(ops: dict[str, Resolved]) -> None:
    args = norm(X, ROW)[:-1]
    grads = ops["layer_norm_backward"](*args, [True, False, True])
    expected = torch.ops.aten.native_layer_norm_backward(*args, [True, True, True])
    torch.testing.assert_close(grads[0], expected[0])
    torch.testing.assert_close(grads[2], expected[2])


DERIVED: dict[str, tuple[Any, ...]] = {
    "linear": (X, r(3, 7), None),
    "matmul": (r(2, 5, 7), r(7, 3)),
    "leaky_relu": (X, 0.1),
    "mse_loss": (X, r(5, 7), 1),
    "logsumexp": (X, [1]),
    "rms_norm": (X, [7], ROW, None, 1e-5),
    "foreach_add_list": ([X, ROW], [X, ROW]),
    "silu_backward": (X, X),
    "huber_loss": (X, r(5, 7), 1, 1.0),
}


@pytest.mark.parametrize("name", DERIVED)
def test_what_the_example_lacks_is_composed_of_what_it_has(
    ops: dict[str, Resolved], name: str
) -> None:
    args = DERIVED[name]
    assert ops[name].route == "decomposition"
    results, expected = tensors(ops[name](*args)), tensors(get(name).meaning(*args))
    torch.testing.assert_close(results, expected)


def test_every_published_function_of_the_library_is_called_by_its_name(folder: Path) -> None:
    library = cabi.load(folder / "deeplink_droplet" / "libdroplet.so")
    names = [name for name in library.functions if name in catalogue.functions()]
    refused = []
    for name in names:
        try:
            _does_what_its_op_means(catalogue.functions()[name], library)
        except NoKernelError as error:
            assert "this chip has float32 and bfloat16" in str(error)  # the sample has others
            refused.append(name)
    assert len(names) >= 60
    assert refused == ["diopiNeScalar", "diopiNe"]


def _does_what_its_op_means(function: Function, library: cabi.Library) -> None:
    op, kernel = get(function.op), library.kernels[function.op]
    given = published_calls.arguments(function)
    expected = op.meaning(**op_samples.copied(given))
    results = [expected] if len(op.returns) == 1 else list(expected)
    parameters = published_calls.parameters(function, op_samples.copied(given), results)
    diopi.call(function.name, kernel=kernel, **parameters)
    for parameter, value in zip(legacy.targets(function), results, strict=False):
        found = published_calls.listed(parameters[legacy.python_name(parameter)])
        torch.testing.assert_close(found, published_calls.listed(value), equal_nan=True)


def test_most_of_a_transformer_runs_on_the_example(ops: dict[str, Resolved]) -> None:
    routes = [one.route for one in ops.values()]
    assert routes.count("kernel") >= 50
    assert routes.count("decomposition") >= 170


def test_what_nothing_carries_is_reported(ops: dict[str, Resolved]) -> None:
    assert ops["sort"].route == "missing"
    with pytest.raises(NoKernelError, match="droplet has no kernel for sort"):
        ops["sort"](X)


def test_the_chips_own_words_reach_the_user(ops: dict[str, Resolved]) -> None:
    with pytest.raises(KernelError, match=r"diopiEmbedding failed with .*: row 9 of a table of 5"):
        ops["embedding"](X, torch.tensor([9]))
    with pytest.raises(NoKernelError, match="type number 6; this chip has float32 and bfloat16"):
        ops["exp"](torch.tensor([1]))


def test_what_the_library_refuses_is_composed(ops: dict[str, Resolved]) -> None:
    result = ops["gelu"](X, approximate="tanh")
    expected = torch.nn.functional.gelu(X, approximate="tanh")
    torch.testing.assert_close(result, expected)


def test_forms_are_derived_from_the_c_kernel(ops: dict[str, Resolved]) -> None:
    out, x = torch.empty(0), X.clone()
    ops["mm"].out(X, X.t(), out=out)
    torch.testing.assert_close(out, X @ X.t())
    assert ops["relu"].inplace(x) is x
    assert torch.equal(x, X.relu())
