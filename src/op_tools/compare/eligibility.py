# SPDX-License-Identifier: Apache-2.0
"""Eligibility of calls for a rerun on the host: which calls, in which types, what they wrote."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from deeplink import settings
from deeplink.i18n import _
from op_tools.core import op_names
from op_tools.core.call import Call
from op_tools.tensors import host_transfer, mutation
from op_tools.tensors.mutation import written_by_schema

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
# Their results depend on the type itself: they are rerun in the type that they had.
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
# They compute nothing: their results are right when they are the host's, bit for bit.
COPIES = frozenset(
    """
    clone contiguous copy_ to _to_copy type_as float half bfloat16 double cat stack reshape flatten
    repeat flip roll index_select gather index embedding tril triu one_hot _unsafe_view
    repeat_interleave split_with_sizes_copy
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
# Copies of arguments carry no tangent.
_TANGENTS = frozenset({"_unpack_dual"})
_OTHER_PROCESSES = ("torch.distributed", "c10d", "_c10d_functional", "torch._C._distributed")
# Of these a call draws nothing when it is not training, or when p is 0.
_MAY_DRAW = frozenset(
    """
    dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout
    feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ native_dropout
    """.split()
)


class NoReferenceError(Exception):
    """The call cannot be rerun on the host, for the reason in the text."""


def unfit(call: Call) -> str:
    """Why a call cannot be compared; "" when it can."""
    reason = _unfit_name(call.name)
    if reason == _RANDOM and _draws_nothing(op_names.last(call.name), call):
        reason = ""
    return reason or kind(call.inputs)


_RANDOM = _("random operators cannot be compared")


@cache
def _unfit_name(name: str) -> str:
    word = op_names.last(name)
    if word in op_names.UNINITIALISED:
        return _("its result is left as the memory was")
    if word in op_names.RANDOM:
        return _RANDOM
    if word in _CHOICES:
        return _("it chooses an implementation, which differs between devices")
    if word in _NO_VALUES:
        return _("it returns no values that could be compared")
    if word in _TANGENTS:
        return _("it reads a tangent of forward-mode differentiation")
    return _("it talks to other processes") if name.startswith(_OTHER_PROCESSES) else ""


def kind(values: list[Tensor]) -> str:
    """Why a tensor cannot be compared; "" when all can."""
    for tensor in values:
        if tensor.is_nested:
            return _("a nested tensor")
        if tensor.layout != torch.strided:
            return _("a tensor of layout {layout}").format(
                layout=str(tensor.layout).removeprefix("torch.")
            )
        if tensor.is_quantized:
            return _("a quantized tensor")
    return ""


def argument(call: Call, place: int, *names: str, default: Any = None) -> Any:
    """An argument by its place or by one of its names."""
    if len(call.args) > place:
        return call.args[place]
    return next((call.kwargs[name] for name in names if name in call.kwargs), default)


def _draws_nothing(word: str, call: Call) -> bool:
    if word in ("rrelu", "rrelu_"):
        return argument(call, 3, "training", default=False) is False
    if word not in _MAY_DRAW:
        return False
    is_function = call.name.startswith("torch.nn")
    training = argument(call, 2, "train", "training", default=is_function)
    return argument(call, 1, "p", default=0.5) == 0 or training is False


_WITHOUT_OFFSET = {"cpu"}  # kinds of devices whose generators do not count what they draw
RandomState = list[Tensor | tuple[int, int]]


def random_state(call: Call, device: torch.device) -> RandomState | None:
    """The states of the generators that a call may draw from; None where they cannot be had."""
    module = getattr(torch, device.type, torch)
    if not hasattr(module, "get_rng_state"):
        return None
    states: RandomState = [_state_of(module, device)]
    return [*states, torch.get_rng_state()] if call.level == "module" else states


def _state_of(module: Any, device: torch.device) -> Tensor | tuple[int, int]:
    if device.type not in _WITHOUT_OFFSET:
        try:
            generator = module.default_generators[device.index]
            return generator.initial_seed(), generator.get_offset()  # the whole state takes long
        except (AttributeError, IndexError, TypeError, RuntimeError):
            _WITHOUT_OFFSET.add(device.type)
    state: Tensor = module.get_rng_state() if module is torch else module.get_rng_state(device)
    return state


def drew_nothing(before: RandomState, call: Call, device: torch.device) -> bool:
    """Whether the states of the generators are as they were before a call."""
    after = random_state(call, device)
    return after is not None and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(before, after, strict=True)
    )


def modules_of(call: Call) -> list[nn.Module]:
    """The module that a call of one is."""
    cells = getattr(call.func, "__closure__", None) or () if call.level == "module" else ()
    return [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, nn.Module)]


def types_for(call: Call) -> Types:
    """The types of a call's reference: {OP}_OP_DTYPE_CAST_DICT, else float64."""
    word = op_names.last(call.name)
    if word in BY_TYPE or (word == "view" and _has_dtype(call)):
        return {}
    asked = settings.op_casts(call.operator)
    if asked is None:
        return WIDE
    return {getattr(torch, a): getattr(torch, b) for a, b in asked.items()}


def _has_dtype(call: Call) -> bool:
    return any(isinstance(v, torch.dtype) for v in (*call.args, *call.kwargs.values()))


def declared(call: Call) -> frozenset[int]:
    """The ids of the arguments that a call declares as written. Autograd does not count the writes
    of fused optimizers, nor those of list functions under a dispatch mode of the program.
    """
    return mutation.declared(call) if mutation.may_write(call) else frozenset()


def writes(call: Call, versions: list[int], now: list[int]) -> bool:
    """Whether a call wrote an argument, by the versions before it and after it."""
    if isinstance(call.func, OpOverload):  # autograd does not count below it
        return bool(call.func._schema.is_mutable)
    if versions != now or declared(call):
        return True
    return NO_COUNT in now and op_names.sounds_in_place(call.name)


def unwritten(call: Call, versions: list[int], now: list[int]) -> set[int]:
    """The places of the arguments that a call does not declare as written, and did not count."""
    if isinstance(call.func, OpOverload):
        by_kernel = {id(tensor) for tensor in written_by_schema(call)}
        return {at for at, tensor in enumerate(call.inputs) if id(tensor) not in by_kernel}
    named, given = declared(call), call.inputs
    pairs = enumerate(zip(versions, now, strict=True))
    same = [at for at, (before, after) in pairs if before == after != NO_COUNT]
    return {at for at in same if id(given[at]) not in named}


def versions(call: Call) -> list[int]:
    """Autograd's counts of writes, of the arguments."""
    return [NO_COUNT if tensor.is_inference() else tensor._version for tensor in call.inputs]


NO_COUNT = -1  # the version of a tensor of inference mode


def autocast_of(device: torch.device) -> torch.dtype | None:
    """The type of autocast, where it is on."""
    if device.type in ("cpu", "meta") and not torch.is_autocast_enabled("cpu"):
        return None
    if not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


_INDICES = (torch.int64, torch.int32)


def outline(tensor: Tensor) -> Tensor:
    """A tensor of the same shape, in the same place of a memory as large, without its values;
    with them where they may say where the others are cut.
    """
    if tensor.dtype in _INDICES and tensor.dim() < 2:
        return host_transfer.host_copy(tensor)
    storage = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    memory = torch.zeros(1, dtype=tensor.dtype).expand(0) if not storage else None
    if memory is None:
        memory = torch.empty(storage, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
