"""A call again on the host, in a wider type: what its results and gradients should have been."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from deeplink import precision, settings
from deeplink.judge.formats import FORMATS, coarser
from deeplink.precision import Precision
from op_tools import host, names, watching
from op_tools.call import Call, tensors

Types = dict[torch.dtype, torch.dtype]
HOST = torch.device("cpu")

WIDE: Types = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.float8_e4m3fn: torch.float64,
    torch.float8_e5m2: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
# What they do depends on the type itself: they are run again in the type that they had.
BY_TYPE = frozenset(
    """
    nextafter nextafter_ nan_to_num nan_to_num_ frexp fake_quantize_per_tensor_affine view_dtype
    fake_quantize_per_channel_affine quantize_per_tensor quantize_per_channel int_repr matrix_rank
    pinv linalg_matrix_rank linalg_pinv linalg_lstsq lstsq q_scale q_zero_point histc item
    _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_
    """.split()
)
# Their results are right up to a sign, a phase or an order: values cannot be held side by side.
NOT_UNIQUE = frozenset(
    """
    svd _linalg_svd linalg_svd eig linalg_eig eigh _linalg_eigh linalg_eigh qr linalg_qr geqrf lu
    lu_factor linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_ldl_factor ldl_factor
    ldl_factor_ex lobpcg linalg_ldl_factor_ex eigvals linalg_eigvals lu_unpack
    """.split()
)
# Many devices round the sum of products before they add the bias to it.
CONVOLUTIONS = frozenset(
    """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
    """.split()
)
CAST = (torch.float32, torch.float16, torch.bfloat16)  # what autocast casts
RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
_CHOICES = frozenset("_fused_sdp_choice _nested_tensor_from_mask_left_aligned".split())
_NO_VALUES = frozenset(
    "numpy pin_memory __iter__ set_ swap_tensors resize_ resize_as_ data".split()
)
_OTHER_PROCESSES = ("torch.distributed", "c10d", "_c10d_functional", "torch._C._distributed")
# Of these a call draws nothing when it is not training, or when p is 0.
_MAY_DRAW = frozenset(
    """
    dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout
    feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ native_dropout
    """.split()
)


class NoReferenceError(Exception):
    """The call cannot be done on the host; the text says why."""


def unfit(call: Call) -> str:
    """Why a call cannot be compared; "" when it can."""
    word = names.last(call.name)
    if word in names.UNINITIALISED:
        return "its result is left as the memory was"
    if word in names.RANDOM and not _draws_nothing(word, call):
        return "it draws random numbers"
    if word in _CHOICES:
        return "it chooses an implementation, which differs between devices"
    if word in _NO_VALUES:
        return "it returns no values that could be compared"
    if call.name.startswith(_OTHER_PROCESSES):
        return "it talks to other processes"
    return kind(tensors(call.args, call.kwargs))


def kind(values: Iterator[Tensor]) -> str:
    """Why a tensor cannot be compared; "" when all can."""
    for tensor in values:
        if tensor.is_nested:
            return "a nested tensor"
        if tensor.layout != torch.strided:
            return f"a tensor of layout {str(tensor.layout).removeprefix('torch.')}"
        if tensor.is_quantized:
            return "a quantized tensor"
    return ""


def _draws_nothing(word: str, call: Call) -> bool:
    def given(place: int, name: str, default: Any) -> Any:
        return call.args[place] if len(call.args) > place else call.kwargs.get(name, default)

    if word in ("rrelu", "rrelu_"):
        return given(3, "training", False) is False
    if word not in _MAY_DRAW:
        return False
    training = "train" if "train" in call.kwargs else "training"
    return given(1, "p", 0.5) == 0 or given(2, training, call.name.startswith("torch.nn")) is False


@dataclass(frozen=True)
class Run:
    """What one run gave: results and arguments after it, in the order of `tensors()`."""

    result: Any
    results: list[Tensor]
    given: list[Tensor]
    leaves: list[Tensor]  # the arguments as they were: gradients are of these
    wrote: list[bool]  # which of them the call wrote, as far as autograd counts it

    def gradients(self, outputs: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of each argument, from those of the results; None where none flows."""
        pairs = [
            (result, grad.to(result.device, result.dtype))
            for result, grad in zip(self.results, outputs, strict=False)
            if grad is not None and result.requires_grad
        ]
        wanted = list({id(leaf): leaf for leaf in self.leaves if leaf.requires_grad}.values())
        if not pairs or not wanted:
            return [None] * len(self.leaves)
        with host.no_autocast(pairs[0][0].device):
            found = torch.autograd.grad(
                [result for result, _ in pairs],
                wanted,
                [grad for _, grad in pairs],
                allow_unused=True,
                retain_graph=True,
            )
        by_leaf = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True)}
        return [by_leaf.pop(id(leaf), None) for leaf in self.leaves]


@dataclass
class Again:
    """A call whose arguments are on the host, as they were before it, to be run from there."""

    call: Call  # with arguments on the host
    requires: frozenset[int]  # ids of those arguments whose gradient is wanted
    writes: bool  # whether the call writes an argument
    types: Types  # of the reference
    rounded: torch.dtype | None = None  # autocast rounded arguments to this type first
    plain: Types = field(default_factory=dict)  # casts that the plain run needs, under autocast
    inside: torch.dtype | None = None  # of a module: autocast was on, with this type
    draws_nothing: bool = False  # known from the device's own call
    place: torch.device = HOST  # where the arguments are
    precision: Precision = precision.EXACT  # what the device may do to float32

    @property
    def stored(self) -> torch.dtype:
        """The narrowest floating type that values were stored in on the way."""
        found = torch.float64
        for tensor in tensors(self.call.args, self.call.kwargs):
            found = coarser(found, tensor.dtype) if tensor.dtype in FORMATS else found
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

        def stand_in(value: Any) -> Any:
            if isinstance(value, Tensor):
                if id(value) not in used:
                    leaf = self._leaf(value, types, grad)
                    leaves[id(value)] = leaf
                    shared = leaf.requires_grad or leaf.data_ptr() == value.data_ptr()
                    used[id(value)] = leaf.clone() if may_write and shared else leaf
                    counts[id(value)] = used[id(value)]._version
                return used[id(value)]
            if isinstance(value, torch.dtype):
                return types.get(value, value)
            return self.place if isinstance(value, torch.device) else value

        own = [(t, id(t)) for t in tensors(self.call.args, self.call.kwargs)]
        quiet = _quiet(grad, autocast, self.draws_nothing, self.place)
        with quiet as state, _module_kept(self.call):
            args, kwargs = _again(self.call, stand_in, self.place)
            result = function_on_host(self.call)(*args, **kwargs)
            if not self.draws_nothing and not torch.equal(state, torch.get_rng_state()):
                raise NoReferenceError("it draws random numbers")
        return Run(
            result,
            list(tensors(result)),
            [used.get(at, t) for t, at in own],
            [leaves.get(at, t) for t, at in own],
            [at in used and used[at]._version != counts[at] for _, at in own],
        )

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
    return f"the CPU cannot do it: {text}" if text else "the CPU cannot do it"


@contextmanager
def _quiet(
    grad: bool, autocast: torch.dtype | None, draws_nothing: bool, place: torch.device
) -> Iterator[Tensor]:
    """Nothing of the program's state is used or changed: randomness, autocast, default device."""
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
        yield torch.empty(0) if draws_nothing else torch.get_rng_state()


def random_state(call: Call, device: torch.device) -> list[Tensor] | None:
    """The states of the generators that a call may draw from; None where they cannot be had."""
    module = getattr(torch, device.type, torch)
    if not hasattr(module, "get_rng_state"):
        return None
    states = [module.get_rng_state() if module is torch else module.get_rng_state(device)]
    return [*states, torch.get_rng_state()] if call.level == "module" else states


def modules_of(call: Call) -> list[nn.Module]:
    """The module that a call of one is."""
    cells = getattr(call.func, "__closure__", None) or () if call.level == "module" else ()
    return [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, nn.Module)]


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
    if names.last(call.name) == "rms_norm" and len(args) < 4 and kwargs.get("eps") is None:
        # without an epsilon it takes that of the type, which is another one here
        kwargs = {**kwargs, "eps": torch.finfo(call.args[0].dtype).eps}
    return args, kwargs


def function_on_host(call: Call) -> Callable[..., Any]:
    """What does the call's work on the host."""
    moves = names.TRANSFERS - {"to", "cpu", "to_padded_tensor"}
    if names.last(call.name) in moves:
        return lambda tensor, *args, **kwargs: tensor.clone()
    if call.operator in CONVOLUTIONS:
        return partial(_in_two_steps, call.func)
    return call.func


def _in_two_steps(
    convolve: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """A convolution, and then its bias: what lies between may be rounded."""
    made = convolve(input, weight, None, *args, **kwargs)
    if bias is None:
        return made
    return made + bias.view(-1, *[1] * (weight.dim() - 2))


def types_for(call: Call) -> Types:
    """The types of a call's reference: {OP}_OP_DTYPE_CAST_DICT, else float64."""
    word = names.last(call.name)
    if word in BY_TYPE or (word == "view" and _has_dtype(call)):
        return {}
    asked = settings.op_casts(call.operator)
    if asked is None:
        return WIDE
    return {getattr(torch, a): getattr(torch, b) for a, b in asked.items()}


def _has_dtype(call: Call) -> bool:
    return any(isinstance(v, torch.dtype) for v in (*call.args, *call.kwargs.values()))


def written_by_schema(call: Call) -> list[Tensor]:
    """The arguments that a kernel says it writes; of a function of torch's, nothing is known."""
    if not isinstance(call.func, OpOverload):
        return []
    arguments = call.func._schema.arguments
    given = dict(zip((a.name for a in arguments), call.args, strict=False)) | call.kwargs
    return list(tensors([given.get(a.name) for a in arguments if a.is_write]))


def writes(call: Call, versions: Sequence[int]) -> bool:
    """Whether a call, which has been made, wrote an argument; `versions` are from before it."""
    if isinstance(call.func, OpOverload):  # autograd's counts are not kept below it
        return bool(call.func._schema.is_mutable)
    now = [_version(tensor) for tensor in tensors(call.args, call.kwargs)]
    named = names.last(call.name).endswith("_") or call.kwargs.get("out") is not None
    return list(versions) != now or (named and NO_COUNT in now)


def unwritten(call: Call, versions: Sequence[int]) -> set[int]:
    """The places of the arguments that a call, which has been made, did not write, as it says."""
    given = list(tensors(call.args, call.kwargs))
    if isinstance(call.func, OpOverload):
        named = {id(tensor) for tensor in written_by_schema(call)}
        return {at for at, tensor in enumerate(given) if id(tensor) not in named}
    return {at for at, t in enumerate(given) if versions[at] == _version(t) != NO_COUNT}


def versions(call: Call) -> list[int]:
    """Autograd's counts of writes, of the arguments."""
    return [_version(tensor) for tensor in tensors(call.args, call.kwargs)]


NO_COUNT = -1  # of a tensor that was made in inference mode


def _version(tensor: Tensor) -> int:
    return NO_COUNT if tensor.is_inference() else tensor._version


def autocast_of(device: torch.device) -> torch.dtype | None:
    """The type of autocast, where it is on."""
    if device.type in ("cpu", "meta") and not torch.is_autocast_enabled("cpu"):
        return None
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def again(
    before: Call,
    requires: frozenset[int],
    wrote: bool,
    autocast: torch.dtype | None,
    result_types: Sequence[torch.dtype],
) -> Again:
    """The call that was made, from the copies of its arguments that were taken before it."""
    made = Again(before, requires, wrote, types_for(before))
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


# Autocast leaves them alone: their weights may be of another type than their values.
_MIXED = frozenset("batch_norm instance_norm layer_norm group_norm rms_norm".split())
_INDICES = (torch.int64, torch.int32)


def outline(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, in the same place of a memory as large, without its values;
    with them where they may say where the others are cut.
    """
    if tensor.dtype in _INDICES and tensor.dim() < 2:
        return host.host_copy(tensor)
    storage = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    memory = torch.zeros(1, dtype=tensor.dtype).expand(0) if not storage else None
    if memory is None:
        memory = torch.empty(storage, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
