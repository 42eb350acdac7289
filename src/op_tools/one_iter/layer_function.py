# SPDX-License-Identifier: Apache-2.0
"""A layer's own code as a function: the modules that it calls do not run, but return their recorded
results.

So a layer is judged alone: on the recorded inputs, with the recorded results of the modules inside
it, and backward from the recorded gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from deeplink.i18n import _
from op_tools.core import dispatch, module_stack
from op_tools.core.gradients import own_graph
from op_tools.one_iter.tree_template import filled, flat
from op_tools.replay import copy_to
from op_tools.tensors import host_transfer


class OtherPath(Exception):
    """The layer calls another module than in the record."""


@dataclass(frozen=True)
class Child:
    """A module that the layer calls, and the recorded result that replaces it."""

    path: str
    result: Any  # a structure with slots
    # results that are arguments: the places of both, and whether the module writes it
    returned: tuple[tuple[int, int, bool], ...] = ()


@dataclass(frozen=True)
class Given:
    """The inputs of a unit, on the host as recorded, or on the device."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    inputs: list[Tensor]
    children: list[list[Tensor]]  # the results of its children

    def as_tuple(self) -> tuple[Any, ...]:
        return self.parameters, self.buffers, self.inputs, self.children

    def flat(self) -> list[Tensor]:
        return flat(self.as_tuple())


@dataclass(frozen=True)
class Unit:
    """A layer or an operator. `own` are the parameters and buffers that no child uses."""

    func: Callable[..., Any]
    arguments: Any  # (args, kwargs) with slots
    module: nn.Module | None = None
    owners: tuple[nn.Module, ...] = ()  # the modules whose parameters and buffers are its own
    own: dict[str, Tensor] = field(default_factory=dict)  # of the program
    children: tuple[Child, ...] = ()
    restart: Callable[[], None] = lambda: None  # of the layer's random numbers

    def __call__(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        inputs: list[Tensor],
        children: list[list[Tensor]],
    ) -> dict[str, Any]:
        """Run the unit; returns the inputs of each child, the results, and the buffers after the
        call.
        """
        passed: list[list[Tensor]] = []

        def answer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            child = self._expected(len(passed), module_stack.path_of(module))
            handed = flat((args, kwargs))
            made = _fresh_each(children[len(passed)])
            passed.append([tensor.clone() for tensor in handed])  # which may be written later
            for place, at, written in child.returned:
                made[place] = handed[at].copy_(made[place]) if written else handed[at]
            return filled(child.result, made)

        args, kwargs = filled(self.arguments, _fresh_each(inputs))
        current = {name: _fresh(tensor) for name, tensor in buffers.items()}
        stand_ins = {**parameters, **current}
        with self._with({id(self.own[name]): value for name, value in stand_ins.items()}):
            self.restart()
            if self.module is None:
                result = self.func(*args, **kwargs)
            else:
                with module_stack.answered_by(answer), dispatch.seen():
                    result = self.func(self.module, *args, **kwargs)
        if len(passed) < len(self.children):
            raise OtherPath(
                _("it does not call {path}").format(path=self.children[len(passed)].path)
            )
        return {"passed": passed, "outputs": flat(result), "buffers": list(current.values())}

    def _expected(self, number: int, path: str) -> Child:
        if number >= len(self.children):
            raise OtherPath(_("it calls {path}, which it did not").format(path=path))
        if self.children[number].path != path:
            raise OtherPath(
                _("it calls {path} where it called {recorded}").format(
                    path=path, recorded=self.children[number].path
                )
            )
        return self.children[number]

    @contextmanager
    def _with(self, values: dict[int, Tensor]) -> Iterator[None]:
        """Set the tensors of the modules, and undo what the modules write to themselves."""
        kept = [(module, _state(module)) for module in self.owners]
        try:
            for module in self.owners:
                _exchange(module, values)
            yield
        finally:
            for module, (attributes, parameters, buffers) in kept:
                vars(module).clear()
                vars(module).update(attributes)
                module._parameters.clear()
                module._parameters.update(parameters)
                module._buffers.clear()
                module._buffers.update(buffers)


def _state(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    return dict(vars(module)), dict(module._parameters), dict(module._buffers)


def _exchange(module: nn.Module, values: dict[int, Tensor]) -> None:
    for held in (module._parameters, module._buffers):
        for name, tensor in held.items():
            if tensor is not None and id(tensor) in values:
                held[name] = values[id(tensor)]  # type: ignore[assignment]
    for name, value in list(vars(module).items()):
        if isinstance(value, list) and any(id(item) in values for item in value):
            setattr(module, name, [values.get(id(item), item) for item in value])  # of an RNN


def _fresh_each(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors; one that occurs twice is copied once, because self-attention is computed in
    another way.
    """
    made = {id(tensor): _fresh(tensor) for tensor in {id(t): t for t in tensors}.values()}
    return [made[id(tensor)] for tensor in tensors]


def _fresh(tensor: Tensor) -> Tensor:
    """Copy a tensor: layers may write in place, which autograd refuses for a leaf."""
    passed: Tensor = _Passed.apply(tensor)  # type: ignore[no-untyped-call]
    return passed


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return copy_to(tensor, tensor.device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@dataclass(frozen=True)
class Made:
    """The results of a unit in the order of `labels`, gradients in that of `Given.flat`."""

    results: list[Tensor]
    gradients: list[Tensor | None]


def run_on_device(unit: Unit, given: Given, seeds: Sequence[Tensor | None]) -> Made:
    """Run forward, and backward from the gradients of the results; returns copies on the host."""
    backward = any(seed is not None for seed in seeds)
    leaves = given.flat()
    with torch.inference_mode(False), own_graph(), torch.set_grad_enabled(backward):
        results = flat(unit(*given.as_tuple()))
        gradients = _gradients(results, leaves, seeds) if backward else [None] * len(leaves)
    return Made(
        [host_transfer.host_copy(tensor) for tensor in results],
        [None if gradient is None else host_transfer.host_copy(gradient) for gradient in gradients],
    )


def _gradients(
    results: Sequence[Tensor], leaves: Sequence[Tensor], seeds: Sequence[Tensor | None]
) -> list[Tensor | None]:
    pairs = [
        (result, seed.to(result.device).to(result.dtype))
        for result, seed in zip(results, seeds, strict=True)
        if seed is not None and result.requires_grad
    ]
    wanted = list({id(leaf): leaf for leaf in leaves if leaf.requires_grad}.values())
    if not pairs or not wanted:
        return [None] * len(leaves)
    with host_transfer.no_autocast(results[0].device):
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            wanted,
            [seed for _, seed in pairs],
            allow_unused=True,
        )
    by_leaf = {id(leaf): gradient for leaf, gradient in zip(wanted, found, strict=True)}
    return [by_leaf.pop(id(leaf), None) for leaf in leaves]
