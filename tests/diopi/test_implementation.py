"""A vendor's kernels: how they are found and checked, and by which route each op then runs."""

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from deeplink.errors import KernelError, NoKernelError, SignatureError, VendorBrokenError
from deeplink.vendor import Vendor
from diopi import all_ops, decomposition, get, implementation, resolve
from diopi.implementation import Implementation
from diopi.op import Op
from tests.diopi.op_samples import all_samples, copied

KERNELS_110 = Path(__file__).with_name("kernels_110.txt").read_text().split()


class Chip:
    """A vendor as a class: any subset of the ops."""

    def add(self, input: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
        return torch.add(input, other, alpha=alpha)

    def relu_(self, input: Tensor) -> Tensor:
        return input.relu_()

    def mm_out(self, input: Tensor, mat2: Tensor, *, out: Tensor) -> Tensor:
        return torch.mm(input, mat2, out=out)

    def _helper(self) -> None: ...


def of(**kernels: Any) -> Implementation:
    return implementation.of(kernels, "acme")


def meanings(*names: str) -> Implementation:
    """A vendor whose kernels are right."""
    return Implementation("acme", {name: get(name).meaning for name in names})


# --- finding and checking -------------------------------------------------------------------


def test_a_class_gives_kernels_and_forms() -> None:
    found = implementation.of(Chip, "acme")
    assert list(found.kernels) == ["add"]
    assert sorted(found.forms) == ["mm_out", "relu_"]


def test_what_a_module_imports_is_no_kernel_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("acme_kernels")
    exec("from math import exp, log\ndef neg(input): return -input\ndef _own(): ...", vars(module))
    assert list(implementation.of(module, "acme").kernels) == ["neg"]


def test_a_wrong_signature_shows_both_and_what_to_write() -> None:
    def add(x: Tensor, other: Tensor, alpha: float = 2) -> Tensor:
        return x

    with pytest.raises(SignatureError) as caught:
        of(add=add)
    text = str(caught.value)
    assert "acme's kernel does not take the arguments of add (test_implementation.py:" in text
    assert "  op:     add(input: Tensor, other: Tensor, *, alpha: Scalar = 1)\n" in text
    assert "  kernel: add(x: " in text
    assert "  - argument 1 is called 'input', not 'x'" in text
    assert "  - 'alpha' has the default 1; the kernel's has the default 2" in text
    assert text.endswith("Hint: def add(input, other, *, alpha=1): …")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda input: ..., "'other' is missing"),
        (lambda input, other, alpha=1, beta=2: ..., "'beta' is an extra argument"),
        (lambda other, input, alpha=1: ..., "argument 1 is called 'input', not 'other'"),
        (lambda input, other, *, alpha: ..., "'alpha' has the default 1; the kernel's has no"),
        (lambda *args: ..., "`*args` takes anything: write the 3 arguments out"),
        (lambda input, /, other, alpha=1: ..., "'input' is given by position, the kernel takes"),
        (max, "does not say what it takes"),
    ],
)
def test_each_difference_is_named(kernel: Any, message: str) -> None:
    with pytest.raises(SignatureError, match=re.escape(message)):
        of(add=kernel)


def test_a_keyword_argument_may_be_taken_by_position_too() -> None:
    assert of(add=lambda input, other, alpha=1: ...).kernels


def test_a_default_list_may_be_a_tuple() -> None:
    op = next(o for o in all_ops().values() if any(isinstance(a.default, list)
              for a in o.arguments))  # fmt: skip
    taken = ", ".join(
        a.name if a.required else f"{a.name}={tuple(a.default)!r}"
        if isinstance(a.default, list) else f"{a.name}={a.default!r}" for a in op.arguments
    )  # fmt: skip
    implementation.check(op, eval(f"lambda {taken}: ..."))


def test_a_name_that_is_no_op_is_reported() -> None:
    with pytest.raises(SignatureError, match=r"no op has this name.\nHint: did you mean 'softmax'"):
        of(sofmax=lambda input: ...)


def test_the_forms_have_signatures_of_their_own() -> None:
    with pytest.raises(SignatureError, match="'out' is missing"):
        of(mm_out=lambda input, mat2: ...)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    made = types.ModuleType("acme_kernels")
    monkeypatch.setitem(sys.modules, "acme_kernels", made)
    yield made


def test_a_vendors_record_names_its_kernels(module: types.ModuleType) -> None:
    exec("def neg(input): return -input", vars(module))
    vendor = Vendor("acme", "cpu", lambda: True, kernels="acme_kernels")
    routes = implementation.routes(vendor)
    assert routes["neg"] == "kernel"
    assert routes["mm"] == "missing"
    assert routes.keys() == all_ops().keys()


def test_a_module_that_does_not_load_is_reported_by_its_own_error() -> None:
    vendor = Vendor("acme", "cpu", lambda: True, kernels="no_such_module_of_acme")
    with pytest.raises(VendorBrokenError, match="kernels of vendor 'acme' do not load: no_such"):
        implementation.load(vendor)


def test_a_vendor_without_kernels_runs_torchs_own() -> None:
    resolved = implementation.load("cpu").resolve()
    assert {one.route for one in resolved.values() if one.op.available} == {"torch"}
    assert torch.equal(resolved["add"](torch.ones(2), torch.ones(2)), torch.full((2,), 2.0))


def test_a_config_beside_the_module_is_used(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "acme_beside.py").write_text(
        "import torch\n"
        "def add(input, other, *, alpha=1):\n"
        "    assert input.dtype == torch.float32\n"
        "    return torch.add(input, other, alpha=alpha)\n"
        "def add_(input, other, *, alpha=1): ...\n"
        "def neg(input): return -input\n"
        "def neg_(input): ...\n"
    )
    (tmp_path / "convert_config.yaml").write_text("- add: {dtype: (float64) -> float32}")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = implementation.load(Vendor("acme", "cpu", lambda: True, kernels="acme_beside"))
    assert found.kernels["add"](torch.ones(1).double(), torch.ones(1)).dtype == torch.float64
    assert found.kernels["neg"] is sys.modules["acme_beside"].neg
    assert list(found.forms) == ["neg_"]  # add_ would see what add does not have to


# --- routes ---------------------------------------------------------------------------------


def test_a_decomposition_runs_on_the_vendors_kernels_only() -> None:
    called: list[str] = []

    def noting(name: str) -> Any:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return get(name).meaning(*args, **kwargs)

        return kernel

    names = ("amax", "sub", "exp", "sum", "div")
    vendor = Implementation("acme", {name: noting(name) for name in names})
    softmax = vendor.resolve()["softmax"]
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    result = softmax(x, 1, False)
    assert softmax.route == "decomposition"
    assert softmax.uses == ("amax", "div", "exp", "sub", "sum")
    assert called == ["amax", "sub", "exp", "sum", "div"]
    torch.testing.assert_close(result, x.softmax(1))


def test_without_one_of_them_the_op_is_missing_and_says_which() -> None:
    softmax = meanings("amax", "sub", "sum", "div").resolve()["softmax"]
    assert (softmax.route, softmax.lacks) == ("missing", ("exp",))
    with pytest.raises(
        NoKernelError,
        match=r"acme has no kernel for softmax \(diopiSoftmax\).*\n"
        "Hint: write a kernel 'softmax', or those of its decomposition: exp; or",
    ):
        softmax(torch.ones(2), 0, False)


def test_the_vendors_own_kernel_goes_before_a_decomposition() -> None:
    resolved = meanings("amax", "sub", "exp", "sum", "div", "softmax").resolve()
    assert resolved["softmax"].route == "kernel"


def test_the_cpu_is_a_fallback_only_where_requested() -> None:
    vendor = meanings("neg")
    assert vendor.resolve()["sort"].route == "missing"
    sort = vendor.resolve(cpu_fallback=True)["sort"]
    assert sort.route == "cpu"
    assert sort(torch.tensor([2.0, 1.0]))[1].tolist() == [1, 0]


def test_what_a_kernel_does_not_support_takes_the_next_route() -> None:
    @resolve.limited(lambda input: input.dim() < 2)
    def neg(input: Tensor) -> Tensor:
        return torch.full_like(input, 7)

    call = of(neg=neg).resolve(cpu_fallback=True)["neg"]
    assert call(torch.ones(1)).tolist() == [7]
    assert call(torch.ones(1, 1)).tolist() == [[-1]]


def test_limits_get_the_kernels_defaults() -> None:
    @resolve.limited(lambda input, other, alpha: input.dim() < 2 and alpha == 1)
    def add(input: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
        return torch.full_like(input, 7)

    call, one = of(add=add).resolve(cpu_fallback=True)["add"], torch.ones(1)
    assert [call(one, one).item(), call(one, 1, alpha=1).item()] == [7, 7]
    assert [call(one, one, alpha=3).item(), call(one[None], one).item()] == [4, 2]


def test_limits_name_only_the_arguments_that_they_use_in_any_order() -> None:
    @resolve.limited(lambda dim1, input: input.dim() < 3 and dim1 == 1)
    def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
        return torch.full_like(input, 7)

    call = of(transpose=transpose).resolve(cpu_fallback=True)["transpose"]
    given = torch.zeros(1, 1)
    assert [call(given, 0, 1).item(), call(given, dim0=1, dim1=0).item()] == [7, 0]


def test_limits_that_use_what_the_kernel_does_not_take_are_an_error() -> None:
    def neg(input: Tensor) -> Tensor:
        return -input

    with pytest.raises(SignatureError, match=r"kernel neg use dim, and it takes \(input\)"):
        resolve.limited(lambda input, dim: True)(neg)


@pytest.mark.parametrize(("count", "carried"), [(60, 409), (110, 486)])
def test_more_kernels_carry_more_ops(count: int, carried: int) -> None:
    kernels = Path(__file__).with_name(f"kernels_{count}.txt").read_text().split()
    routes = [one.route for one in meanings(*kernels).resolve().values()]
    assert len(kernels) == routes.count("kernel") == count
    pools = decomposition.step(torch.ops.aten.max_pool2d_with_indices.default)
    carried -= 0 if pools else 7  # torch 2.11 decomposes no max_pool
    assert (
        len(routes) - routes.count("missing") >= carried
    )  # docs/reference/kernels.md has the numbers


def test_what_is_the_devices_own_work_needs_no_kernel() -> None:
    resolved = meanings("neg").resolve()
    for name in ("new_zeros", "scalar_tensor", "item", "arange_end"):
        assert (resolved[name].route, resolved[name].uses) == ("decomposition", ())


def test_the_kernels_to_write_next_are_counted() -> None:
    resolved = meanings("amax", "sub", "sum", "div").resolve()
    names = dict(resolve.wanted(resolved))
    assert names["exp"] == sum("exp" in one.lacks for one in resolved.values()) > 5


def test_every_decomposition_onto_110_kernels_gives_what_the_op_means() -> None:
    wrong: list[str] = []
    for name, found in meanings(*KERNELS_110).resolve().items():
        if found.route != "decomposition" or found.op.kind == "random" or name not in all_samples():
            continue
        ours, theirs = (in_order(found.op, copied(all_samples()[name])) for _ in range(2))
        result, expected = found.call(*ours[0], **ours[1]), found.op(*theirs[0], **theirs[1])
        pairs = zip(tensors((result, ours)), tensors((expected, theirs)), strict=True)
        if not all(a.dtype == b.dtype and close(a, b) for a, b in pairs):
            wrong.append(name)
    assert wrong == []


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def in_order(op: Op, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by position, but for those that are by name only."""
    named = {a.name for a in op.arguments if a.kwarg_only}
    filled = {a.name: a.default for a in op.arguments if not a.required} | given
    positional = [filled[a.name] for a in op.arguments if a.name not in named]
    return positional, {name: filled[name] for name in named if name in filled}


COMPOSED: dict[str, tuple[Any, ...]] = {
    "gelu": (torch.linspace(-3, 3, 7),),
    "layer_norm": (torch.randn(3, 4), [4], torch.randn(4), None, 1e-5),
    "log_softmax": (torch.randn(3, 4), 1, False),
    "addmm": (torch.randn(4), torch.randn(3, 2), torch.randn(2, 4)),
    "std": (torch.randn(3, 4), [1]),
    "silu_backward": (torch.randn(3), torch.randn(3)),
    "foreach_add_list": ([torch.ones(2)], [torch.ones(2)]),
    "matmul": (torch.randn(2, 3, 4), torch.randn(4, 5)),
    "mse_loss": (torch.randn(3), torch.randn(3), 1),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_decompositions_onto_110_kernels_are_right(name: str) -> None:
    found = meanings(*KERNELS_110).resolve()[name]
    assert found.route == "decomposition"
    result, expected = found(*COMPOSED[name]), get(name).meaning(*COMPOSED[name])
    torch.testing.assert_close(result, expected)


@pytest.mark.slow  # two minutes: every op's samples, decomposed
def test_the_table_of_decompositions_is_of_this_torch() -> None:
    from diopi import decomposition_trace

    torch.manual_seed(0)
    traced = decomposition_trace.trace(more=all_samples())
    changed = {n for n in traced if set(decomposition.steps().get(n, ())) != traced[n]}
    assert len(changed) <= len(traced) // 50, changed  # samples of op_db are random in part


# --- forms ----------------------------------------------------------------------------------


def test_out_and_in_place_forms_are_derived() -> None:
    add = meanings("add").resolve()["add"]
    x, out = torch.ones(3), torch.empty(0)
    assert add.out(x, x, alpha=2, out=out) is out
    assert out.tolist() == [3, 3, 3]
    y = torch.zeros(3)
    assert add.inplace(y, x) is y
    assert y.tolist() == [1, 1, 1]
    assert add.derived == ("out", "inplace")


def test_the_vendors_own_forms_are_used() -> None:
    resolved = implementation.of(Chip, "acme").resolve()
    assert resolved["relu"].derived == ("out",)
    x = torch.tensor([-1.0, 1.0])
    resolved["relu"].inplace(x)
    assert x.tolist() == [0, 1]


def test_a_derived_form_never_casts_down_or_broadcasts_its_target() -> None:
    add = meanings("add").resolve()["add"]
    with pytest.raises(KernelError, match=r"cannot go into out, which is torch.int64"):
        add.out(torch.ones(2), torch.ones(2), out=torch.empty(2, dtype=torch.int64))
    with pytest.raises(KernelError, match=r"add_: the result is torch.float32 \(2, 2\)"):
        add.inplace(torch.ones(2), torch.ones(2, 2))


def test_a_derived_out_may_not_be_what_the_op_reads() -> None:
    cat = meanings("cat").resolve()["cat"]
    room = torch.arange(6.0)
    with pytest.raises(KernelError, match="cat: out shares memory with an argument"):
        cat.out([room[:2], room[1:3]], out=room[2:6])
    cat.out([room[:1], room[1:2]], out=room[2:4])  # next to it is allowed
    assert room.tolist() == [0, 1, 0, 1, 4, 5]


def test_a_derived_out_that_torch_wants_of_the_same_type_is_refused_otherwise() -> None:
    gather = meanings("gather").resolve()["gather"]
    wide = torch.empty(1, dtype=torch.float64)
    with pytest.raises(KernelError, match=r"gather: a result of torch.float32 cannot go into out"):
        gather.out(torch.ones(2), 0, torch.tensor([1]), out=wide)


# --- bad kernels ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda input: input.double(), r"returned torch.float64 \(2,\) as 'out'; the op returns "
         r"torch.float32 \(2,\)"),
        (lambda input: input[:1], r"returned torch.float32 \(1,\) as 'out'"),
        (lambda input: (input, input), "returned 2 results; the op returns 1: out"),
        (lambda input: None, "returned a NoneType as 'out'"),
    ],
)  # fmt: skip
def test_wrong_results_are_reported_on_request(kernel: Any, message: str) -> None:
    neg = resolve.checked(of(neg=kernel).resolve()["neg"])
    with pytest.raises(KernelError, match=f"acme's kernel neg {message}"):
        neg(torch.ones(2))


def test_right_results_pass_the_check() -> None:
    resolved = meanings("neg", "nonzero").resolve()
    assert resolve.checked(resolved["neg"])(torch.ones(1)).tolist() == [-1]
    assert resolve.checked(resolved["nonzero"])(torch.ones(1)).tolist() == [[0]]
