# SPDX-License-Identifier: Apache-2.0
"""Names of operators: from a function to its name and back, and families of operators by name."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

# Functions that reach a mode of torch although they compute nothing: they query a tensor, or change
# how autograd treats it. No tool sees them.
QUERIES = frozenset(
    f"torch.Tensor.{name}"
    for name in """
    __array__ __contains__ __cuda_array_interface__ __deepcopy__ __dlpack__ __dlpack_device__
    __format__ __len__ __reduce_ex__ __repr__ __setstate__ __dir__ __hash__
    _is_view _typed_storage _update_names align_to apply_ backward const_data_ptr data_ptr dim
    dim_order element_size get_device has_names is_complex is_conj is_contiguous is_distributed
    is_floating_point is_inference is_neg is_nonzero_size is_pinned is_same_size is_set_to
    is_shared is_signed ndimension nelement new numel record_stream refine_names register_hook
    register_post_accumulate_grad_hook rename rename_ requires_grad_ retain_grad share_memory_
    size sparse_dim dense_dim storage storage_offset storage_type stride type
    untyped_storage module_load _nested_tensor_size _nested_tensor_strides is_coalesced
    """.split()
) | frozenset(
    """
    torch.is_complex torch.is_conj torch.is_floating_point torch.is_inference torch.is_neg
    torch.is_nonzero torch.is_same_size torch.is_signed torch.numel torch.is_distributed
    torch.is_grad_enabled torch.get_device torch.result_type torch.can_cast torch.promote_types
    torch._has_compatible_shallow_copy_type torch._C._nn._parse_to torch.broadcast_shapes
    torch.autograd.backward torch.autograd.grad torch.nn.functional.has_torch_function
    torch.device torch._debug_has_internal_overlap torch.layout torch._is_zerotensor
    torch.overrides.is_tensor_like torch._C._TensorBase.__new__ torch._use_cudnn_ctc_loss
    torch.Tensor.is_sparse_csr torch.set_default_device torch.typename torch.is_tensor
    torch.cudnn_is_acceptable torch.get_default_device torch.set_default_dtype
    torch._C._set_grad_enabled profiler._record_function_enter profiler._record_function_enter_new
    profiler._record_function_exit profiler._record_function_exit._RecordFunction
    """.split()
)

# Their results share memory with an argument: nothing is computed.
VIEWS = frozenset(
    """
    adjoint alias as_strided as_strided_ atleast_1d atleast_2d atleast_3d broadcast_tensors
    broadcast_to chunk conj detach detach_ diagonal dsplit expand expand_as flatten hsplit imag
    mT mH H T mT_ matrix_H movedim moveaxis narrow permute positive ravel real reshape reshape_as
    resolve_conj resolve_neg select slice split split_with_sizes squeeze squeeze_ swapaxes
    swapaxes_ swapdims swapdims_ t t_ tensor_split transpose transpose_ unbind unflatten unfold
    unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as
    view_as_complex view_as_real vsplit values indices crow_indices col_indices ccol_indices
    row_indices contiguous lift_fresh swap_tensors set_ data
    """.split()
)

_CUTS = (int, slice, type(None), type(...))  # indices that copy nothing


def is_view(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call returns a view, if the strides allow one."""
    word = last(name)
    if word != "__getitem__" or len(args) < 2:
        return word in VIEWS
    index = args[1] if type(args[1]) is tuple else args[1:2]
    return all(type(part) in _CUTS for part in index)


# Operators that return a view of any strides: nothing runs on the device.
NEVER_COPY = frozenset(
    """
    chunk detach diagonal expand expand_as movedim narrow permute select split squeeze swapaxes
    swapdims t transpose unbind unsqueeze view view_as
    """.split()
)

# Operators that copy a tensor to a device or a type that the caller names.
TRANSFERS = frozenset("to cpu cuda npu mlu xpu dipu ipu hpu mtia to_padded_tensor numpy".split())
TRANSFERS |= frozenset("pin_memory copy_to_host __cuda_array_interface__ from_numpy".split())

# Methods that copy a tensor to the device that they are named after.
UPLOADS = frozenset("cuda npu mlu xpu dipu ipu hpu mtia".split())

# Operators on the device that an argument names, even if their tensors are on the host.
PLACING = UPLOADS | frozenset(
    """
    to _to_copy as_tensor asarray new_tensor new_zeros new_ones new_full new_empty
    new_empty_strided empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    """.split()
)

# Operators that return random numbers or uninitialised memory: there is no value to compare with.
RANDOM = frozenset(
    """
    rand rand_like randn randn_like randint randint_like randperm bernoulli bernoulli_ poisson
    multinomial normal normal_ uniform_ random_ cauchy_ exponential_ geometric_ log_normal_
    uniform kaiming_uniform_ kaiming_normal_ xavier_uniform_ xavier_normal_ trunc_normal_ sparse_
    orthogonal_ dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_
    feature_dropout feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ native_dropout
    rrelu rrelu_ gumbel_softmax fractional_max_pool2d fractional_max_pool3d
    fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices rrelu_with_noise
    rrelu_with_noise_ svd_lowrank pca_lowrank
    """.split()
)
UNINITIALISED = frozenset(
    """
    empty empty_like empty_permuted empty_strided empty_quantized new_empty new_empty_strided
    resize_ resize resize_as_ resize_as_sparse_
    """.split()
)

# Operators that write running statistics, which autograd's version counters do not count.
UNCOUNTED = frozenset(
    """
    batch_norm instance_norm native_batch_norm cudnn_batch_norm miopen_batch_norm
    _native_batch_norm_legit _batch_norm_with_update _batch_norm_impl_index
    """.split()
)

# Names that a user may write for what torch calls torch.functional.split …
SHORT = tuple(f"torch.{name}" for name in torch.functional.__all__)

# Functions that are equal for Python, so that torch returns the name of the other one.
EQUAL = {
    "torch.spmm": "torch.mm",
    "torch.dsmm": "torch.mm",
    "torch.hsmm": "torch.hspmm",
    "torch.saddmm": "torch.sspaddmm",
}


@cache
def name_of(func: Callable[..., Any]) -> str:
    """The full name of a function as torch resolves it; "" when it has none."""
    try:
        name = resolve_name(func)
    except TypeError:  # the function has no `__name__`
        name = None
    if name is None:
        name = _declared(func)
    return EQUAL.get(name, name) or ""


def _declared(func: Any) -> str:
    owner, own = getattr(func, "__objclass__", None), getattr(func, "__name__", "")
    if own in ("__get__", "__set__", "__delete__"):  # of a property: func is bound to it
        return f"torch.Tensor.{getattr(func.__self__, '__name__', '')}.{own}"
    if owner is not None and issubclass(torch.Tensor, owner):
        return f"torch.Tensor.{own}"
    module = getattr(func, "__module__", None) or ""
    if not module and hasattr(torch._VF, own):  # a function of torch without a module
        module = "torch._VF"
    return f"{module}.{own}" if own else ""


def is_operator(name: str) -> bool:
    """Whether a name is that of an operator, and not of a query of a tensor."""
    return bool(name) and name not in QUERIES and not name.endswith(("__get__", "__set__"))


@cache
def last(name: str) -> str:
    """The word of an operator: "add" of torch.Tensor.add and of aten.add.Tensor."""
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]


@cache
def sounds_in_place(name: str) -> bool:
    """Whether an operator may write its first argument, by its name."""
    word = last(name)
    if word.endswith("__"):
        return word == "__setitem__" or word.startswith("__i")
    return word.endswith("_")


@cache
def may_write(name: str) -> bool:
    """Whether a function may write its arguments, by its name; unknown functions may."""
    known = name.startswith("torch.") and not name.startswith(("torch.ops.", "torch.distributed."))
    return not known or last(name) in UNCOUNTED or sounds_in_place(name)


def is_random(name: str) -> bool:
    """Whether an operator returns random numbers or uninitialised memory."""
    return last(name) in RANDOM or last(name) in UNINITIALISED


@cache
def canonical(name: str) -> str:
    """The name that torch resolves: torch.conv2d is torch.nn.functional.conv2d. A name of another
    package is returned unchanged.
    """
    try:
        return name_of(resolve(name)) if name.startswith("torch.") else name
    except LookupError:
        return name


def resolve(name: str) -> Callable[..., Any]:
    """The function of a name; LookupError names the part that does not exist."""
    owner, word = owner_of(name)
    function: Callable[..., Any] = _attribute(owner, word, name)
    if not callable(function):
        raise LookupError(f"{name!r} is no function{suggestion(name)}")
    return function


def owner_of(name: str) -> tuple[Any, str]:
    """The module or class whose attribute a function is, and the attribute; LookupError: none."""
    parts = name.split(".")
    if parts[0] == "aten":
        parts = ["torch", "ops", *parts]
    for length in range(len(parts) - 1, 0, -1):
        try:
            owner: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:-1]:
            owner = _attribute(owner, part, name)
        return owner, parts[-1]
    raise LookupError(f"no module {parts[0]!r} to find {name!r} in{suggestion(name)}")


def _attribute(owner: Any, part: str, name: str) -> Any:
    if not hasattr(owner, part):
        raise LookupError(f"{name!r}: {owner!r:.60} has no {part!r}{suggestion(name)}")
    return getattr(owner, part)


@cache
def known() -> tuple[str, ...]:
    """The name of every operator that torch offers at the api level."""
    names = {name_of(f) for functions in get_overridable_functions().values() for f in functions}
    return tuple(sorted(name for name in names if is_operator(name)))


@cache
def by_word() -> dict[str, list[str]]:
    """The full names of functions and of kernels ("aten.mm") by their own word."""
    names: dict[str, list[str]] = {}
    for name in (*known(), *SHORT):
        names.setdefault(last(name), []).append(name)
    # private: torch has no other list of kernels; used for look-up and suggestions only
    kernels = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    for word in dict.fromkeys(name[6:].partition(".")[0] for name in kernels):
        names.setdefault(word, []).append(f"aten.{word}")
    return names


def suggestions(name: str) -> list[str]:
    """The names of operators that are similar to a misspelt one, the nearest first; at most 3."""
    parts = name.replace("::", ".").removeprefix("torch.ops.").split(".")
    kernel = parts[0] == "aten" or name.startswith("diopi")
    word = last(".".join(parts))
    if name.startswith("diopi"):
        word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[len("diopi") :]).lower()
    words = difflib.get_close_matches(word, by_word(), n=3, cutoff=0.7)
    if not words:  # mm.oot: the word of a kernel is before its overload
        word, kernel = parts[0], True
        words = difflib.get_close_matches(word, by_word(), n=3, cutoff=0.7)
    names = [full for each in words for full in by_word()[each]]

    def distance(full: str) -> tuple[bool, float, float]:
        of_word = difflib.SequenceMatcher(None, word, last(full)).ratio()
        of_name = difflib.SequenceMatcher(None, name, full).ratio()
        return full.startswith("aten.") != kernel, -of_word, -of_name

    return sorted(dict.fromkeys(names), key=distance)[:3]


def suggestion(name: str) -> str:
    """The end of an error message: "; did you mean …?" or nothing."""
    similar = suggestions(name)
    return f"; did you mean {similar[0]!r}?" if similar else ""
