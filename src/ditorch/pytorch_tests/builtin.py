"""Tests of our own on the databases that torch's wheel carries: the device against the CPU.

One function per database makes the test classes, through torch's own machinery: where
torch.cuda.is_available(), a class for CUDA with one method per operator (module, optimizer) and
dtype.
"""

from __future__ import annotations

import copy
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

SEED = 20
STEPS = 3  # of an optimizer
LOOSE = MappingProxyType({torch.float16: 1e-2, torch.bfloat16: 2e-2})
TOLERANCE = 1e-3  # torch's own when it compares a GPU with the CPU

# Their values are whatever the memory held: only dtype and shape can be compared.
UNINITIALISED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ "
    "resize_as_".split()
)
# Tensors among these positional arguments are read by the host, on CUDA too.
STAYS_ON_HOST = MappingProxyType({"tensor_split": frozenset({0})})

PLACES = ("cpu", "cuda", "cuda:0")

Classes = dict[str, Any]


def op_tests() -> Classes:
    """Every operator of op_db: outputs (test_forward) and gradients (test_backward)."""
    from torch.testing._internal.common_device_type import OpDTypes, ops
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_utils import TestCase

    class TestOps(TestCase):
        @ops(op_db, dtypes=OpDTypes.supported)  # type: ignore[untyped-decorator]
        def test_forward(self, device: str, dtype: torch.dtype, op: Any) -> None:
            _check_op(op, device, dtype, backward=False)

        @ops(op_db, dtypes=OpDTypes.supported_backward)  # type: ignore[untyped-decorator]
        def test_backward(self, device: str, dtype: torch.dtype, op: Any) -> None:
            _check_op(op, device, dtype, backward=True)

    return _for_the_device(TestOps)


def module_tests() -> Classes:
    """Every module of module_db: outputs and gradients, in training and in evaluation."""
    from torch.testing._internal.common_modules import module_db, modules
    from torch.testing._internal.common_utils import TestCase

    class TestModules(TestCase):
        @modules(module_db)  # type: ignore[untyped-decorator]
        def test_forward_backward(
            self, device: str, dtype: torch.dtype, module_info: Any, training: bool
        ) -> None:
            _check_module(module_info, device, dtype, training)

    return _for_the_device(TestModules)


def optimizer_tests() -> Classes:
    """Every optimizer of optim_db: a few steps, parameters against the CPU's."""
    from torch.testing._internal.common_optimizers import optim_db, optims
    from torch.testing._internal.common_utils import TestCase

    class TestOptimizers(TestCase):
        @optims(optim_db)  # type: ignore[untyped-decorator]
        def test_steps(self, device: str, dtype: torch.dtype, optim_info: Any) -> None:
            _check_optimizer(optim_info, device, dtype)

    return _for_the_device(TestOptimizers)


SUITES: Mapping[str, Callable[[], Classes]] = MappingProxyType(
    {"op_db": op_tests, "module_db": module_tests, "optim_db": optimizer_tests}
)


def _for_the_device(generic: type) -> Classes:
    from torch.testing._internal.common_device_type import instantiate_device_type_tests

    scope: Classes = {generic.__name__: generic}
    instantiate_device_type_tests(generic, scope, only_for="cuda")
    for made in scope.values():
        made.__module__ = __name__
        # torch's own check of what a class excludes: no test of a device
        made.test_exclusions = None
    return scope


# Operators.


def _check_op(op: Any, device: str, dtype: torch.dtype, backward: bool) -> None:
    torch.manual_seed(SEED)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=backward))
    checked, refusal = 0, "op_db has no sample of it"
    for sample in samples:
        try:
            expected, leaves, random = _call(op, sample, "cpu")
            seeds = _seeds(sample, expected)
            wanted = _gradients(sample, expected, leaves, seeds) if backward else ()
        except Exception as error:  # the CPU's own limits are not the device's
            refusal = f"the CPU itself refuses: {type(error).__name__}: {error}"
            continue
        exact = op.name not in UNINITIALISED and not random
        actual, leaves, _ = _call(op, sample, device)
        compare(actual, expected, device, exact)
        if backward:
            moved = [seed.to(device) for seed in seeds]
            compare(_gradients(sample, actual, leaves, moved), wanted, device, exact)
        checked += 1
    if not checked:
        raise unittest.SkipTest(refusal)


def _call(op: Any, sample: Any, device: str) -> tuple[Any, list[Tensor], bool]:
    """The outputs, the inputs that want gradients, and whether the CPU drew random numbers."""
    move = Mover(device)
    host = STAYS_ON_HOST.get(op.name, frozenset())
    value = move(sample.input)
    args = [arg if at in host else move(arg) for at, arg in enumerate(sample.args)]
    kwargs = {
        key: device if key == "device" and arg is not None else move(arg)
        for key, arg in sample.kwargs.items()
    }
    if op.is_factory_function:
        kwargs["device"] = device  # some samples leave it out and would stay on the CPU
    torch.manual_seed(SEED)
    before = torch.get_rng_state()
    outputs = op(value, *args, **kwargs)
    return outputs, move.leaves, not torch.equal(before, torch.get_rng_state())


def _differentiable(sample: Any, outputs: Any) -> list[Tensor]:
    found = pytree.tree_leaves(sample.output_process_fn_grad(outputs))
    return [out for out in found if isinstance(out, Tensor) and out.requires_grad]


def _seeds(sample: Any, outputs: Any) -> list[Tensor]:
    torch.manual_seed(SEED)
    return [torch.randn_like(out) for out in _differentiable(sample, outputs)]


def _gradients(
    sample: Any, outputs: Any, leaves: Sequence[Tensor], seeds: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    roots = _differentiable(sample, outputs)
    if not roots or not leaves:
        return ()
    return torch.autograd.grad(roots, leaves, seeds, allow_unused=True)


# Modules.


def _check_module(info: Any, device: str, dtype: torch.dtype, training: bool) -> None:
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    checked = 0
    for one in (each for each in inputs if each.forward_input is not None):
        torch.manual_seed(SEED)
        made = one.constructor_input
        ours = info.module_cls(*made.args, **made.kwargs).to(dtype).train(training)
        theirs = copy.deepcopy(ours).to(device)
        expected, wanted, random = _train(ours, one.forward_input, "cpu")
        actual, gradients, _ = _train(theirs, one.forward_input, device)
        compare(actual, expected, device, not random)
        compare(gradients, wanted, device, not random)
        checked += 1
    if not checked:
        raise unittest.SkipTest("module_db has no input for it")


def _train(module: Any, given: Any, device: str) -> tuple[Any, list[Tensor | None], bool]:
    """The outputs, the gradients, and whether the CPU drew random numbers."""
    move = Mover(device)
    args, kwargs = move(given.args), move(given.kwargs)
    torch.manual_seed(SEED)
    before = torch.get_rng_state()
    outputs = module(*args, **kwargs)
    random = not torch.equal(before, torch.get_rng_state())
    leaves = [*move.leaves, *(each for each in module.parameters() if each.requires_grad)]
    roots = [out for out in pytree.tree_leaves(outputs) if isinstance(out, Tensor)]
    roots = [out for out in roots if out.requires_grad]
    if not roots or not leaves:
        return outputs, [], random
    total = torch.stack([out.abs().sum().double() for out in roots]).sum()
    return outputs, list(torch.autograd.grad(total, leaves, allow_unused=True)), random


# Optimizers.


def _check_optimizer(info: Any, device: str, dtype: torch.dtype) -> None:
    for one in info.optim_inputs_func(device=device):
        kwargs = dict(one.kwargs)
        # how a GPU takes its steps, not what they are
        plain = {key: val for key, val in kwargs.items() if key not in ("capturable", "fused")}
        expected = _steps(info, Mover("cpu")(plain), "cpu", dtype)
        compare(_steps(info, kwargs, device, dtype), expected, device, exact=True)


def _steps(info: Any, kwargs: dict[str, Any], device: str, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(SEED)
    shapes = ((4, 3), (3, 5))  # matrices: some optimizers take nothing else
    params = [torch.randn(shape, dtype=dtype).to(device).requires_grad_() for shape in shapes]
    optimizer = info.optim_cls(params, **kwargs)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([(param * param).sum().abs() for param in params]).sum()
        loss.backward()
        if info.only_supports_sparse_grads:
            for param in params:
                param.grad = param.grad.to_sparse() if param.grad is not None else None
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return [param.detach() for param in params]


# What they are made of.


class Mover:
    """Copies arguments to a device; tensors that share storage share it there as well."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.leaves: list[Tensor] = []
        self._storages: dict[int, torch.UntypedStorage] = {}

    def __call__(self, value: Any) -> Any:
        return pytree.tree_map(self._one, value)

    def _one(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return self._other(value)
        with torch.no_grad():
            moved = self._tensor(value.detach())
        if value.requires_grad:
            self.leaves.append(moved.requires_grad_())
        return moved

    def _other(self, value: Any) -> Any:
        # samples name the GPU as well, where there is one
        if isinstance(value, torch.device) or (isinstance(value, str) and value in PLACES):
            return torch.device(self.device)
        if isinstance(value, torch.Generator):
            return torch.Generator(self.device).manual_seed(SEED)
        return value

    def _tensor(self, tensor: Tensor) -> Tensor:
        simple = type(tensor) is Tensor and tensor.layout == torch.strided
        if not simple or tensor.is_quantized or tensor.device.type != "cpu":
            moved = tensor.to(self.device)
            return moved.clone() if moved is tensor else moved
        if tensor.is_conj():
            return self._tensor(tensor.conj()).conj()
        if tensor.is_neg():
            return torch._neg_view(self._tensor(torch._neg_view(tensor)))
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
            copied = data.clone() if self.device == "cpu" else data.to(self.device)
            self._storages[storage._cdata] = copied.untyped_storage()
        return torch.empty(0, dtype=tensor.dtype, device=self.device).set_(
            self._storages[storage._cdata],
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )


def compare(actual: Any, expected: Any, device: str, exact: bool) -> None:
    """AssertionError where the device's result is not the CPU's; values only where `exact`."""
    got, shape = pytree.tree_flatten(actual)
    want, wanted_shape = pytree.tree_flatten(expected)
    if shape != wanted_shape:
        raise AssertionError(f"result is {shape}, the CPU's is {wanted_shape}")
    for mine, cpu in zip(got, want, strict=True):
        if isinstance(cpu, Tensor):
            _compare_tensors(mine, cpu, device, exact)
        elif exact and isinstance(cpu, bool | int | str | torch.dtype | torch.Size):
            _equal("result", mine, cpu)
        elif exact and isinstance(cpu, float | complex):
            torch.testing.assert_close(mine, cpu, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def _compare_tensors(actual: Any, expected: Tensor, device: str, exact: bool) -> None:
    if not isinstance(actual, Tensor):
        raise AssertionError(f"result is {type(actual).__name__}, the CPU's is a tensor")
    _equal("device type", actual.device.type, torch.device(device).type)
    for name in ("dtype", "layout", "shape"):
        _equal(name, getattr(actual, name), getattr(expected, name))
    if exact:
        bound = LOOSE.get(expected.dtype, TOLERANCE)
        host = actual.detach().cpu().resolve_conj().resolve_neg()
        wanted = expected.detach().resolve_conj().resolve_neg()
        torch.testing.assert_close(host, wanted, rtol=bound, atol=bound, equal_nan=True)


def _equal(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"{what} is {actual!r}, the CPU's is {expected!r}")


def tests_of(classes: Classes) -> Iterator[unittest.TestCase]:
    """One case per method of the classes."""
    for made in classes.values():
        for name in unittest.defaultTestLoader.getTestCaseNames(made):
            yield made(name)
