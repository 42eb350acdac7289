"""A call made again from copies of its arguments: in a wider type, or as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._C import _set_grad_enabled

from deeplink import precision
from deeplink.judge.formats import FORMATS, coarser
from deeplink.precision import Precision
from op_tools import bulk, host, kernels, names, watching
from op_tools.call import PLAIN, Call, tensor_list
from op_tools.overlap import Overlap
from op_tools.reference import (
    CAST,
    CONVOLUTIONS,
    HOST,
    RECURRENT,
    WIDE,
    NoReferenceError,
    Types,
    modules_of,
    types_for,
)

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
    used: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # its arguments, if `leaves` are all

    @property
    def results(self) -> list[Tensor]:
        """The tensors among what it returned. Not kept: runs wait, and the collector visits all."""
        return [self.result] if isinstance(self.result, Tensor) else tensor_list(self.result)

    def gradients(self, outputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of each argument, from those of the results; None where none flows."""
        return gradients_of([(self, outputs)])[0]


def gradients_of(runs: Sequence[tuple[Run, Sequence[Tensor | None]]]) -> list[list[Tensor | None]]:
    """The gradients of several runs, by one pass through their graphs."""
    results, flown = [], []
    wanted: dict[int, Tensor] = {}
    for run, outputs in runs:
        pairs = [
            (result, _like(grad, result))
            for result, grad in zip(run.results, outputs, strict=False)
            if grad is not None and result.requires_grad
        ]
        if pairs:
            wanted |= {id(leaf): leaf for leaf in run.leaves if leaf.requires_grad}
            results += [result for result, _ in pairs]
            flown += [grad for _, grad in pairs]
    if not results or not wanted:
        return [[None] * len(run.leaves) for run, _ in runs]
    leaves = list(wanted.values())
    with host.no_autocast(results[0].device):
        # hot path: torch.autograd.grad looks at each shape for longer than the pass takes
        found = _engine.run_backward(
            tuple(results), tuple(flown), True, False, tuple(leaves), True, accumulate_grad=False
        )
    by_leaf = {id(leaf): host.dense(grad) for leaf, grad in zip(leaves, found, strict=True)}
    return [[by_leaf.pop(id(leaf), None) for leaf in run.leaves] for run, _ in runs]


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
    place: torch.device = HOST  # where the arguments are
    precision: Precision = precision.EXACT  # what the device may do to products
    copied: bool = True  # the arguments are copies, and nobody else's
    narrow: dict[int, torch.dtype] = field(
        default_factory=dict
    )  # of a wide copy, by its id: its type
    overlaps: Sequence[Overlap] = ()  # of the call's arguments, by their places

    def type_of(self, argument: Tensor) -> torch.dtype:
        """The type that an argument had in the call."""
        return self.narrow.get(id(argument), argument.dtype)

    @property
    def alike(self) -> Hashable:
        """What arguments of calls have in common whose errors are alike."""
        typed = [(t, self.type_of(t)) for t in self.call.given]
        if not self.call.operator.startswith("_foreach"):
            return tuple([(t.shape, dtype) for t, dtype in typed])
        # those of many tensors are in fewer bytes; see device_lists.py
        own = (t if t.dtype is dtype else t.to("meta", dtype) for t, dtype in typed)
        return bulk.alike_of(list(own))

    @property
    def stored(self) -> torch.dtype:
        """The narrowest floating type that values were stored in on the way."""
        found = torch.float64
        for tensor in self.call.given:
            found = coarser(found, self.type_of(tensor)) if tensor.dtype in FORMATS else found
        if self.rounded is not None:
            found = coarser(found, self.rounded)
        return found

    def on(self, device: torch.device) -> Again:
        """The same on copies of the arguments that lie on a device."""
        copies = host.Copies(lambda tensor: tensor.to(device))
        args, kwargs = copies.of(self.call.args), copies.of(self.call.kwargs)
        requires = frozenset(id(copy) for own, copy in copies if id(own) in self.requires)
        call = replace(self.call, args=args, kwargs=kwargs)
        return replace(self, call=call, requires=requires, place=device)

    def inputs_of_reference(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in the types of the reference, with their values before the call."""
        copies = host.Copies(lambda tensor: self._leaf(tensor, self.types, False))
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
        plainly = self._run_plainly(types, grad) if autocast is None else None
        if plainly is not None:
            return plainly
        leaves: dict[int, Tensor] = {}
        used: dict[int, Tensor] = {}
        counts: dict[int, int] = {}
        together: dict[int, Tensor] = {}  # casts that were made together
        # the latter writes its statistics, and does not say so
        may_write = self.writes or "batch_norm" in self.call.name
        views: dict[int, Tensor] = {}  # of arguments that overlap, by the argument

        def stand_in(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in used:
                    leaf = together.get(id(value))
                    leaf = self._leaf(value, types, grad) if leaf is None else leaf
                    leaves[id(value)] = leaf
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
            return self.place if isinstance(value, torch.device) else value

        own = [(t, id(t)) for t in self.call.given]
        if may_write:
            for overlap in self.overlaps:
                views |= self._views(overlap, types)
        if self.place is not HOST and len(own) >= bulk.MANY and not grad and self.rounded is None:
            given = list({at: t for t, at in own}.values())
            together = dict(zip(map(id, given), bulk.copies(given, types), strict=True))
        quiet = _quiet(grad, autocast, self.draws_nothing, self.place)
        kept = _module_kept(self.call) if self.call.level == "module" else nullcontext()
        with quiet as state, kept:
            args, kwargs = _again(self.call, stand_in, self.place)
            result = function_on_host(self.call, wide=bool(types))(*args, **kwargs)
            if not self.draws_nothing and not torch.equal(state, torch.get_rng_state()):
                raise NoReferenceError("it draws random numbers")
        return Run(
            result,
            [used.get(at, t) for t, at in own],
            [leaves.get(at, t) for t, at in own],
            [at in used and used[at]._version != counts[at] for _, at in own],
        )

    def _run_plainly(self, types: Types, grad: bool) -> Run | None:
        """The same on its device, of a function of tensors and numbers. Hot path. None: it is none
        of those.
        """
        call, place, given = self.call, self.place, self.call.given
        if place is HOST or self.rounded is not None or self.writes or not self.draws_nothing:
            return None
        if call.level != "api" or not _is_plain(call.name) or not _is_quiet(place):
            return None
        for value in (*call.args, *call.kwargs.values()):
            if type(value) not in _PLAIN and not _are_numbers(value):
                return None
        before = torch.is_grad_enabled()
        try:
            _set_grad_enabled(False)
            leaves = self._plain_leaves(given, types, grad)
            found = dict(zip(map(id, given), leaves, strict=True))
            args = tuple([found.get(id(v), v) for v in call.args])
            kwargs = {name: found.get(id(v), v) for name, v in call.kwargs.items()}
            counts = [leaf._version for leaf in leaves]
            _set_grad_enabled(grad)
            result = call.func(*args, **kwargs)
        finally:
            _set_grad_enabled(before)
        wrote = tuple([leaf._version != count for leaf, count in zip(leaves, counts, strict=True)])
        return Run(result, leaves, leaves, wrote, (args, kwargs))

    def _plain_leaves(self, given: list[Tensor], types: Types, grad: bool) -> list[Tensor]:
        helper = kernels.loaded() if types is WIDE else None
        if helper is None:
            found = {id(t): self._plain_leaf(t, types, grad) for t in given}
            return [found[id(t)] for t in given]
        wanted = [grad and id(t) in self.requires for t in given]
        leaves: list[Tensor] = helper.leaves_of(given, wanted, self.copied)
        return leaves

    def _plain_leaf(self, value: Tensor, types: Types, grad: bool) -> Tensor:
        wanted = types.get(value.dtype, value.dtype)
        if wanted != value.dtype:
            leaf = value.to(wanted)
        else:
            leaf = value.detach() if self.copied else value.detach().clone()
        if grad and id(value) in self.requires and wanted in FORMATS:
            leaf.requires_grad_()
        return leaf

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
                leaf = value.detach() if self.copied else value.detach().clone()
        if grad and id(value) in self.requires and leaf.dtype in FORMATS:
            leaf.requires_grad_()
        return leaf


def _why(error: Exception) -> str:
    text = str(error).split("\n")[0][:120]
    return f"the CPU cannot do it: {text}" if text else "the CPU cannot do it"


_PLAIN = PLAIN | {int, float, bool, type(None)}


def _are_numbers(value: object) -> bool:
    if not isinstance(value, (tuple, list)):
        return False
    return all(type(item) is int for item in value)


@cache
def _is_plain(name: str) -> bool:
    """Whether a function needs nothing but its arguments to be called on its device again."""
    word = names.last(name)
    odd = word in names.TRANSFERS or word in CONVOLUTIONS or word in ("to", "rms_norm")
    return not odd and "batch_norm" not in name


def _is_quiet(place: torch.device) -> bool:
    """Whether nothing of the program's state has to be put aside."""
    return watching.default_device(torch.empty) is None and host.is_undisturbed(place)


@contextmanager
def _quiet(
    grad: bool, autocast: torch.dtype | None, draws_nothing: bool, place: torch.device
) -> Iterator[Tensor]:
    """Nothing of the program's state is used or changed: randomness, autocast, default device."""
    if draws_nothing and autocast is None and _is_quiet(place):  # hot path
        with torch.set_grad_enabled(grad):
            yield _NOTHING
        return
    with ExitStack() as stack:
        if not draws_nothing:  # else another thread may draw meanwhile, and must not be set back
            stack.enter_context(host.random_state_kept())
        stack.enter_context(host.own_graph())  # inside a checkpoint, what is saved is counted
        stack.enter_context(host.no_autocast(place))
        if watching.default_device(torch.empty) is not None:
            stack.enter_context(place)
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


def _again(
    call: Call, stand_in: Callable[[Any], Any], place: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = host.mapped(call.args, stand_in), host.mapped(call.kwargs, stand_in)
    if kwargs.get("device") is not None:
        kwargs["device"] = place
    if names.last(call.name) == "to":
        moved = (place if isinstance(a, (str, int)) else a for a in args[1:2])
        args = (*args[:1], *moved, *args[2:])
    if names.last(call.name) in ("rms_norm", "_fused_rms_norm") and (*args, *[None] * 4)[3] is None:
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
    moves = names.TRANSFERS - {"to", "cpu", "to_padded_tensor"}
    if names.last(call.name) in moves:
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
        left_alone = wrote or names.last(before.name) in _MIXED
        return made if left_alone else replace(made, rounded=autocast)
    return replace(made, plain={torch.float16: torch.float32, torch.bfloat16: torch.float32})
