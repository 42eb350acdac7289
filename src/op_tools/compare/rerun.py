# SPDX-License-Identifier: Apache-2.0
"""A call made again from copies of its arguments: in a wider type, or as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from deeplink import precision
from deeplink.i18n import _
from deeplink.judge.formats import FORMATS, coarser
from deeplink.precision import Precision
from op_tools.compare.eligibility import (
    CAST,
    CONVOLUTIONS,
    HOST,
    RECURRENT,
    NoReferenceError,
    Types,
    modules_of,
    types_for,
)
from op_tools.core import op_names, torch_patches
from op_tools.core.call import Call, tensor_list
from op_tools.core.gradients import own_graph
from op_tools.tensors import host_transfer
from op_tools.tensors.overlap import Overlap

_NOTHING = torch.empty(0)
_engine: Any = torch.autograd.Variable._execution_engine
# Autocast leaves them alone: their weights may be of another type than their values.
_MIXED = frozenset("batch_norm instance_norm layer_norm group_norm rms_norm".split())


@dataclass(slots=True, eq=False)  # hot path
class Run:
    """What one run gave: results and arguments after it, in the order of `tensors()`."""

    result: Any
    given: list[Tensor]
    leaves: list[Tensor]  # the copies of arguments whose gradients are computed
    wrote: Sequence[bool]  # which of them the call wrote, as far as autograd counts it

    @property
    def results(self) -> list[Tensor]:
        """The tensors among what it returned. Not kept: runs wait, and the collector visits all."""
        return [self.result] if isinstance(self.result, Tensor) else tensor_list(self.result)

    def gradients(self, outputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of each argument, from those of the results; None where none flows."""
        pairs = [
            (result, _like(grad, result))
            for result, grad in zip(self.results, outputs, strict=False)
            if grad is not None and result.requires_grad
        ]
        leaves = list({id(leaf): leaf for leaf in self.leaves if leaf.requires_grad}.values())
        if not pairs or not leaves:
            return [None] * len(self.leaves)
        results, flown = zip(*pairs, strict=True)
        with host_transfer.no_autocast(HOST):
            # hot path: torch.autograd.grad looks at each shape for longer than the pass takes
            found = _engine.run_backward(
                results, flown, True, False, tuple(leaves), True, accumulate_grad=False
            )
        by_leaf = {
            id(leaf): host_transfer.dense(grad) for leaf, grad in zip(leaves, found, strict=True)
        }
        return [by_leaf.pop(id(leaf), None) for leaf in self.leaves]


def _like(grad: Tensor, result: Tensor) -> Tensor:
    if grad.dtype is result.dtype and grad.device == result.device:
        same = grad
    else:
        same = grad.to(result.device, result.dtype)
    if same.shape != result.shape:
        raise RuntimeError(f"a gradient of {tuple(same.shape)} for {tuple(result.shape)}")
    return same


@dataclass
class Again:
    """A call whose arguments are on the host, as they were before it, to be run from there."""

    call: Call  # with arguments on the host
    requires: Collection[int]  # ids of those arguments whose gradient is wanted
    writes: bool  # whether the call writes an argument
    types: Types  # of the reference
    rounded: torch.dtype | None = None  # autocast rounded arguments to this type first
    plain: Types = field(default_factory=dict)  # casts that the plain run needs, under autocast
    inside: torch.dtype | None = None  # of a module: autocast was on, with this type
    draws_nothing: bool = False  # known from the device's own call
    precision: Precision = precision.EXACT  # what the device may do to products
    overlaps: Sequence[Overlap] = ()  # of the call's arguments, by their places

    @property
    def stored(self) -> torch.dtype:
        """The narrowest floating type that values were stored in on the way."""
        found = torch.float64
        for tensor in self.call.given:
            found = coarser(found, tensor.dtype) if tensor.dtype in FORMATS else found
        if self.rounded is not None:
            found = coarser(found, self.rounded)
        return found

    def inputs_of_reference(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in the types of the reference, with their values before the call."""
        copies = host_transfer.Copies(lambda tensor: self._leaf(tensor, self.types, False))
        return copies.of(self.call.args), copies.of(self.call.kwargs)

    def reference(self, grad: bool) -> Run:
        """In the wider type; in its own where a kernel has no wider one."""
        try:
            return self.run(self.types, grad)
        except NoReferenceError:
            raise
        except Exception as error:  # any function, also of the user's: it may raise anything
            if not self.types:
                raise NoReferenceError(_why(error)) from None
        self.types = {}
        return self.reference(grad)

    def plain_run(self, grad: bool) -> Run | None:
        """In the type that the device used; None where the CPU has no such kernel."""
        try:
            return self.run(self.plain, grad, self.inside)
        except NoReferenceError:
            raise
        except Exception:  # as above; the run in the wider type tells the reason
            return None

    def run(self, types: Types, grad: bool, autocast: torch.dtype | None = None) -> Run:
        """The call on copies of its arguments, cast; random numbers of the program are kept."""
        leaves: dict[int, Tensor] = {}
        used: dict[int, Tensor] = {}
        counts: dict[int, int] = {}
        # the latter writes its statistics, and does not say so
        may_write = self.writes or "batch_norm" in self.call.name
        views: dict[int, Tensor] = {}  # of arguments that overlap, by the argument

        def stand_in(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in used:
                    leaf = leaves[id(value)] = self._leaf(value, types, grad)
                    shared = leaf.requires_grad or leaf.data_ptr() == value.data_ptr()
                    if id(value) in views:
                        used[id(value)] = leaf.clone()
                        used[id(value)].data = views[id(value)]
                    else:
                        used[id(value)] = leaf.clone() if may_write and shared else leaf
                    counts[id(value)] = used[id(value)]._version
                return used[id(value)]
            if isinstance(value, torch.dtype):
                return types.get(value, value)
            return HOST if isinstance(value, torch.device) else value

        own = [(t, id(t)) for t in self.call.given]
        if may_write:
            for overlap in self.overlaps:
                views |= self._views(overlap, types)
        quiet = _quiet(grad, autocast, self.draws_nothing)
        kept = _module_kept(self.call) if self.call.level == "module" else nullcontext()
        with quiet as state, kept:
            args, kwargs = _again(self.call, stand_in)
            result = function_on_host(self.call, wide=bool(types))(*args, **kwargs)
            if not self.draws_nothing and not torch.equal(state, torch.get_rng_state()):
                raise NoReferenceError(_("random operators cannot be compared"))
        return Run(
            result,
            [used.get(at, t) for t, at in own],
            [leaves.get(at, t) for t, at in own],
            [at in used and used[at]._version != counts[at] for _, at in own],
        )

    def _views(self, overlap: Overlap, types: Types) -> dict[int, Tensor]:
        """Arguments that overlap, as views of one piece of memory, by the id of the argument."""
        members = [self.call.given[place] for place in overlap.places]
        views = overlap.together([self._leaf(member, types, False) for member in members])
        return dict(zip(map(id, members), views, strict=True))

    def _leaf(self, value: Tensor, types: Types, grad: bool) -> Tensor:
        with torch.no_grad():
            leaf = value
            if self.rounded is not None and value.dtype in CAST and value.dim():
                leaf = leaf.to(self.rounded)  # a single number is taken as it is
            leaf = leaf.to(types.get(leaf.dtype, leaf.dtype))
            if leaf is value:
                leaf = value.detach()
        if grad and id(value) in self.requires and leaf.dtype in FORMATS:
            leaf.requires_grad_()
        return leaf


def _why(error: Exception) -> str:
    text = str(error).split("\n")[0][:120]
    return (
        _("the CPU cannot do it: {text}").format(text=text) if text else _("the CPU cannot do it")
    )


@contextmanager
def _quiet(grad: bool, autocast: torch.dtype | None, draws_nothing: bool) -> Iterator[Tensor]:
    """Nothing of the program's state is used or changed: randomness, autocast, default device."""
    moved = torch_patches.default_device(torch.empty) is not None
    if (
        draws_nothing and autocast is None and not moved and host_transfer.is_undisturbed(HOST)
    ):  # hot path
        with torch.set_grad_enabled(grad):
            yield _NOTHING
        return
    with ExitStack() as stack:
        if not draws_nothing:  # else another thread may draw meanwhile, and must not be set back
            stack.enter_context(host_transfer.random_state_kept())
        stack.enter_context(own_graph())  # inside a checkpoint, what is saved is counted
        stack.enter_context(host_transfer.no_autocast(HOST))
        if moved:
            stack.enter_context(HOST)
        if autocast is not None:
            stack.enter_context(torch.autocast("cpu", autocast))
        stack.enter_context(torch.set_grad_enabled(grad))
        yield _NOTHING if draws_nothing else torch.get_rng_state()


@contextmanager
def _module_kept(call: Call) -> Iterator[None]:
    """What a module writes on itself in its second run is not seen by the program."""
    kept = [(module, dict(vars(module))) for root in modules_of(call) for module in root.modules()]
    try:
        yield
    finally:
        for module, attributes in kept:
            vars(module).clear()
            vars(module).update(attributes)


def _again(call: Call, stand_in: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = (
        host_transfer.mapped(call.args, stand_in),
        host_transfer.mapped(call.kwargs, stand_in),
    )
    if kwargs.get("device") is not None:
        kwargs["device"] = HOST
    if op_names.last(call.name) == "to":
        moved = (HOST if isinstance(a, (str, int)) else a for a in args[1:2])
        args = (*args[:1], *moved, *args[2:])
    if (
        op_names.last(call.name) in ("rms_norm", "_fused_rms_norm")
        and (*args, *[None] * 4)[3] is None
    ):
        # without an epsilon it takes the input type's, which is another one in a wider type
        epsilon = kwargs.get("eps")
        epsilon = _default_epsilon(call.args[0].dtype) if epsilon is None else epsilon
        args, kwargs = args[:3], {**kwargs, "eps": epsilon}
    return args, kwargs


@cache
def _default_epsilon(dtype: torch.dtype) -> float:
    """The epsilon that torch's rms_norm takes when none is given.

    It is that of the type of the arguments or, in later versions, of the type that is computed in.
    """
    small = torch.tensor([2.0**-10], dtype=dtype)
    is_own = float(torch.nn.functional.rms_norm(small, (1,))) < 0.5
    return torch.finfo(dtype if is_own or dtype == torch.float64 else torch.float32).eps


def function_on_host(call: Call, wide: bool) -> Callable[..., Any]:
    """The function that does a call's work on the host; `wide`: in wider types than its own."""
    moves = op_names.TRANSFERS - {"to", "cpu", "to_padded_tensor"}
    if op_names.last(call.name) in moves:
        return lambda tensor, *args, **kwargs: tensor.clone()
    if call.operator in CONVOLUTIONS:
        return partial(_in_two_steps, call.func)
    if call.operator == "linear" and call.level == "api" and wide:
        return partial(_in_two_steps, call.func)
    return call.func


def _in_two_steps(
    multiply: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """A product and then its bias: a device may round what lies between.

    Torch itself does so in a linear whose input is not contiguous.
    """
    made = multiply(input, weight, None, *args, **kwargs)
    if bias is None:
        return made
    return made + bias.view(-1, *[1] * (weight.dim() - 2))


def again_of(
    before: Call,
    requires: Collection[int],
    wrote: bool,
    autocast: torch.dtype | None,
    result_types: Sequence[torch.dtype],
    types: Types | None = None,
) -> Again:
    """The call that was made, from the copies of its arguments that were taken before it."""
    made = Again(before, requires, wrote, types_for(before) if types is None else types)
    if autocast is None:
        return made
    if before.level == "module":
        return replace(made, inside=autocast)
    if before.operator in RECURRENT and torch.float16 in result_types:
        autocast = torch.float16  # whatever the program asked for: cuDNN's are so in torch
    if autocast in result_types:
        left_alone = wrote or op_names.last(before.name) in _MIXED
        return made if left_alone else replace(made, rounded=autocast)
    return replace(made, plain={torch.float16: torch.float32, torch.bfloat16: torch.float32})
