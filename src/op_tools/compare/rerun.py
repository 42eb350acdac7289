# SPDX-License-Identifier: Apache-2.0
"""A rerun of a call on the host, from copies of its arguments: in wider types, or its own."""

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

# Autocast leaves them alone: their weights may be of another type than their values.
_MIXED = frozenset("batch_norm instance_norm layer_norm group_norm rms_norm".split())


@dataclass(slots=True, eq=False)
class Run:
    """Results of a run and its arguments after it, in the order of `tensors()`."""

    result: Any
    arguments: list[Tensor]
    leaves: list[Tensor]  # the copies of arguments whose gradients are computed
    written: Sequence[bool]  # arguments that the call wrote, as far as autograd counts it

    @property
    def results(self) -> list[Tensor]:
        """The tensors among the results."""
        return tensor_list(self.result)

    def gradients(self, outputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradient of each argument, from those of the results; None where none flows."""
        pairs = [
            (result, grad.to(result.device, result.dtype))
            for result, grad in zip(self.results, outputs, strict=False)
            if grad is not None and result.requires_grad
        ]
        leaves = list({id(leaf): leaf for leaf in self.leaves if leaf.requires_grad}.values())
        if not pairs or not leaves:
            return [None] * len(self.leaves)
        results, flown = zip(*pairs, strict=True)
        with host_transfer.no_autocast(HOST):
            found = torch.autograd.grad(
                results, leaves, flown, retain_graph=True, allow_unused=True
            )
        by_leaf = {
            id(leaf): host_transfer.dense(grad) for leaf, grad in zip(leaves, found, strict=True)
        }
        return [by_leaf.pop(id(leaf), None) for leaf in self.leaves]


@dataclass
class Rerun:
    """A call whose arguments are on the host, as they were before it, to be run from there."""

    call: Call  # with arguments on the host
    requires: Collection[int]  # ids of those arguments whose gradient is wanted
    writes: bool  # the call writes an argument
    types: Types  # of the reference
    rounded: torch.dtype | None = None  # autocast rounded arguments to this type first
    plain: Types = field(default_factory=dict)  # casts that the plain run needs, under autocast
    autocast: torch.dtype | None = None  # of a module: autocast was on, with this type
    draws_nothing: bool = False  # known from the device's own call
    precision: Precision = precision.EXACT  # what the device may do to products
    overlaps: Sequence[Overlap] = ()  # of the call's arguments, by their places

    @property
    def stored(self) -> torch.dtype:
        """The narrowest floating type that values were stored in on the way."""
        found = torch.float64
        for tensor in self.call.inputs:
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
            return self.run(self.plain, grad, self.autocast)
        except NoReferenceError:
            raise
        except Exception:  # as above; the run in the wider type reports the reason
            return None

    def run(self, types: Types, grad: bool, autocast: torch.dtype | None = None) -> Run:
        """The call on copies of its arguments, cast; random numbers of the program are kept."""
        leaves: dict[int, Tensor] = {}
        copies: dict[int, Tensor] = {}
        versions: dict[int, int] = {}
        # batch_norm writes its statistics, and does not declare it
        may_write = self.writes or "batch_norm" in self.call.name
        views: dict[int, Tensor] = {}  # of arguments that overlap, by the argument
        for overlap in self.overlaps if may_write else ():
            views |= self._views(overlap, types)

        def copied(value: Any) -> Any:
            if isinstance(value, torch.dtype):
                return types.get(value, value)
            if not isinstance(value, Tensor):
                return HOST if isinstance(value, torch.device) else value
            if id(value) not in copies:
                leaf = leaves[id(value)] = copy = self._leaf(value, types, grad)
                shared = leaf.requires_grad or leaf.data_ptr() == value.data_ptr()
                if id(value) in views:
                    copy = leaf.clone()
                    copy.data = views[id(value)]
                elif may_write and shared:
                    copy = leaf.clone()
                copies[id(value)], versions[id(value)] = copy, copy._version
            return copies[id(value)]

        given = [(t, id(t)) for t in self.call.inputs]
        state = None if self.draws_nothing else torch.get_rng_state()
        kept = _module_kept(self.call) if self.call.level == "module" else nullcontext()
        with _undisturbed(grad, autocast, self.draws_nothing), kept:
            args, kwargs = _host_arguments(self.call, copied)
            result = function_on_host(self.call, wide=bool(types))(*args, **kwargs)
            if state is not None and not torch.equal(state, torch.get_rng_state()):
                raise NoReferenceError(_("random operators cannot be compared"))
        return Run(
            result,
            [copies.get(key, t) for t, key in given],
            [leaves.get(key, t) for t, key in given],
            [key in copies and copies[key]._version != versions[key] for _, key in given],
        )

    def _views(self, overlap: Overlap, types: Types) -> dict[int, Tensor]:
        """Arguments that overlap, as views of one piece of memory, by the id of the argument."""
        members = [self.call.inputs[place] for place in overlap.places]
        views = overlap.together([self._leaf(member, types, False) for member in members])
        return dict(zip(map(id, members), views, strict=True))

    def _leaf(self, value: Tensor, types: Types, grad: bool) -> Tensor:
        with torch.no_grad():
            leaf = value
            if self.rounded is not None and value.dtype in CAST and value.dim():
                leaf = leaf.to(self.rounded)  # a single number is not rounded
            leaf = leaf.to(types.get(leaf.dtype, leaf.dtype))
            if leaf is value:
                leaf = value.detach()
        if grad and id(value) in self.requires and leaf.dtype in FORMATS:
            leaf.requires_grad_()
        return leaf


def _why(error: Exception) -> str:
    text = str(error).split("\n")[0][:120]
    if not text:
        return _("the CPU cannot do it")
    return _("the CPU cannot do it: {text}").format(text=text)


@contextmanager
def _undisturbed(grad: bool, autocast: torch.dtype | None, draws_nothing: bool) -> Iterator[None]:
    """Use and change nothing of the program's state: randomness, autocast, default device."""
    with ExitStack() as stack:
        if not draws_nothing:  # else another thread may draw meanwhile, and must not be set back
            stack.enter_context(host_transfer.random_state_kept())
        stack.enter_context(own_graph())  # inside a checkpoint, what is saved is counted
        stack.enter_context(host_transfer.no_autocast(HOST))
        if torch_patches.default_device(torch.empty) is not None:
            stack.enter_context(HOST)
        if autocast is not None:
            stack.enter_context(torch.autocast("cpu", autocast))
        stack.enter_context(torch.set_grad_enabled(grad))
        yield


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


def _host_arguments(
    call: Call, copied: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = host_transfer.mapped((call.args, call.kwargs), copied)
    word = op_names.last(call.name)
    if kwargs.get("device") is not None:
        kwargs["device"] = HOST
    if word == "to":
        moved = (HOST if isinstance(a, (str, int)) else a for a in args[1:2])
        args = (*args[:1], *moved, *args[2:])
    if word in ("rms_norm", "_fused_rms_norm") and (*args, *[None] * 4)[3] is None:
        # without an epsilon it uses the input type's, which is another one in a wider type
        epsilon = kwargs.get("eps")
        epsilon = _default_epsilon(call.args[0].dtype) if epsilon is None else epsilon
        args, kwargs = args[:3], {**kwargs, "eps": epsilon}
    return args, kwargs


@cache
def _default_epsilon(dtype: torch.dtype) -> float:
    """The default epsilon of torch's rms_norm.

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
    is_linear = call.operator == "linear" and call.level == "api" and wide
    if is_linear or call.operator in CONVOLUTIONS:
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
    """A product and then its bias: a device may round the product before it adds the bias.

    Torch itself does so in a linear whose input is not contiguous.
    """
    product = multiply(input, weight, None, *args, **kwargs)
    return product if bias is None else product + bias.view(-1, *[1] * (weight.dim() - 2))


def make_rerun(
    before: Call,
    requires: Collection[int],
    wrote: bool,
    autocast: torch.dtype | None,
    result_types: Sequence[torch.dtype],
) -> Rerun:
    """The rerun of a call, from the copies of its arguments that were made before it."""
    rerun = Rerun(before, requires, wrote, types_for(before))
    if autocast is None:
        return rerun
    if before.level == "module":
        return replace(rerun, autocast=autocast)
    if before.operator in RECURRENT and torch.float16 in result_types:
        autocast = torch.float16  # whatever the program requested: cuDNN's are so in torch
    if autocast in result_types:
        left_alone = wrote or op_names.last(before.name) in _MIXED
        return rerun if left_alone else replace(rerun, rounded=autocast)
    return replace(rerun, plain={torch.float16: torch.float32, torch.bfloat16: torch.float32})
