# SPDX-License-Identifier: Apache-2.0
"""Built-in tests from the databases in torch's wheel, which compare the device with the CPU.

One function per database creates the test classes by torch's own machinery: where
torch.cuda.is_available(), a class for CUDA with one method per operator (module, optimizer) and
dtype.
"""

from __future__ import annotations

import copy
import unittest
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from deeplink.testing.samples import SEED, UNINITIALISED, Mover, call, compare, gradients, seeds
from ditorch.calls import Unsupported

STEPS = 3  # of an optimizer
LOOSE = MappingProxyType({torch.float16: 1e-2, torch.bfloat16: 2e-2})
TOLERANCE = 1e-3  # torch's own tolerance between a GPU and the CPU
loosened: dict[str, float] = {}  # dtype -> tolerance of the device for the test that runs

Classes = dict[str, Any]


def bound(dtype: torch.dtype) -> float:
    """Return the tolerance of a comparison with the CPU's result."""
    own = loosened.get(str(dtype).removeprefix("torch."))
    return own if own is not None else LOOSE.get(dtype, TOLERANCE)


def op_tests() -> Classes:
    """Create tests for op_db: outputs (test_forward) and gradients (test_backward)."""
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
    """Create tests for module_db: outputs and gradients, in training and in evaluation."""
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
    """Create tests for optim_db: the parameters after a few steps are compared with the CPU's."""
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
        # torch's own test of the exclusion lists, which does not use the device
        made.test_exclusions = None
    return scope


# Operators.


def _check_op(op: Any, device: str, dtype: torch.dtype, backward: bool) -> None:
    torch.manual_seed(SEED)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=backward))
    checked, refusal = 0, "op_db has no sample of it"
    for sample in samples:
        try:
            expected = call(op, sample, "cpu")
            given = seeds(sample, expected)
            wanted = gradients(sample, expected, given) if backward else ()
        except Unsupported:
            raise  # CUDA supports it, and the device has no equivalent
        except Exception as error:  # limits of the CPU are no failures of the device
            refusal = f"the CPU itself refuses: {type(error).__name__}: {error}"
            continue
        exact = op.name not in UNINITIALISED and not expected.random
        actual = call(op, sample, device)
        compare(actual.outputs, expected.outputs, device, exact, bound)
        if backward:
            found = gradients(sample, actual, [seed.to(device) for seed in given])
            compare(found, wanted, device, exact, bound)
        checked += 1
    if not checked:
        raise unittest.SkipTest(refusal)


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
        actual, found, _ = _train(theirs, one.forward_input, device)
        compare(actual, expected, device, not random, bound)
        compare(found, wanted, device, not random, bound)
        checked += 1
    if not checked:
        raise unittest.SkipTest("module_db has no input for it")


def _train(module: Any, given: Any, device: str) -> tuple[Any, list[Tensor | None], bool]:
    """Return the outputs, the gradients, and whether the CPU generated random numbers."""
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
        # options for how a GPU computes a step, which do not change its result
        plain = {key: val for key, val in kwargs.items() if key not in ("capturable", "fused")}
        expected = _steps(info, Mover("cpu")(plain), "cpu", dtype)
        compare(_steps(info, kwargs, device, dtype), expected, device, True, bound)


def _steps(info: Any, kwargs: dict[str, Any], device: str, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(SEED)
    shapes = ((4, 3), (3, 5))  # matrices: some optimizers accept nothing else
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


def tests_of(classes: Classes) -> Iterator[unittest.TestCase]:
    """Yield one case per method of the classes."""
    for made in classes.values():
        for name in unittest.defaultTestLoader.getTestCaseNames(made):
            yield made(name)
