# SPDX-License-Identifier: Apache-2.0
"""Rounding classes of ATen kernels, by name without overload and without the in-place `_`."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

# No arithmetic: views, copies, selections, comparisons, rounding to integers.
EXACT = frozenset(
    """
    _conj _local_scalar_dense _neg_view _physical _reshape_alias _resize_output _to_copy
    _unsafe_view abs alias all amax amin aminmax any arange argmax argmin argsort as_strided
    bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_in_dim bucketize cat ceil clamp
    clamp_max clamp_min clone collapse_view col_indices complex conj constant_pad_nd copy copysign
    crow_indices cummax cummin detach diag_embed diagonal diagonal_backward embedding empty
    empty_like empty_permuted empty_strided eq expand eye fill flip floor fmax fmin full full_like
    gather ge gt heaviside index index_copy index_fill index_select is_nonzero isfinite isinf isnan
    isneginf isposinf item kthvalue le lift lift_fresh lift_fresh_copy logical_and logical_not
    logical_or logical_xor lt masked_fill masked_scatter masked_select max max_pool2d_with_indices
    max_pool2d_with_indices_backward max_pool3d_with_indices maximum median min minimum mode movedim
    nan_to_num nanmedian ne neg new_empty new_empty_strided new_full new_ones new_zeros
    nonzero one_hot ones ones_like permute pixel_shuffle pixel_unshuffle positive real imag
    reflection_pad1d reflection_pad2d reflection_pad3d relu relu6 hardtanh repeat repeat_interleave
    replication_pad1d replication_pad2d replication_pad3d reshape resolve_conj resolve_neg roll
    rot90 round scalar_tensor scatter searchsorted select select_backward select_scatter set sgn
    sign signbit slice slice_backward slice_scatter sort split split_with_sizes squeeze stack t take
    threshold threshold_backward topk transpose tril triu trunc unbind unfold unsafe_split
    unsafe_split_with_sizes unsqueeze view view_as_complex view_as_real where zero zeros zeros_like
    """.split()
)
# One rounding of the result, plus the error of the function's approximation.
TRANSCENDENTAL = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 hypot
    lgamma log log10 log1p log2 logaddexp logaddexp2 pow reciprocal rsqrt sigmoid sin sinh sqrt tan
    tanh xlogy
    """.split()
)
# One rounding.
PLAIN = frozenset(
    "add sub rsub mul div addcmul addcdiv lerp remainder fmod square dropout linspace".split()
)
# Sums of products: the error follows the product of the magnitudes.
CONTRACT = frozenset(
    "mm bmm addmm baddbmm addbmm convolution convolution_backward dot vdot mv addmv".split()
)
# Those of the products above whose sum a device may cut into parts.
SPLIT = frozenset("mm bmm addmm baddbmm".split())
# Sums: the error follows the sum of the magnitudes.
REDUCE = frozenset(
    """
    sum mean cumsum nansum scatter_add index_add index_put _unsafe_index_put scatter_reduce
    embedding_dense_backward avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward unfold_backward im2col
    col2im trace upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
    upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward
    """.split()
)
# Reductions whose error is relative to their own result.
RELATIVE = frozenset(
    """
    var var_mean std std_mean linalg_vector_norm prod logsumexp logcumsumexp cumprod _cdist_forward
    _foreach_norm
    """.split()
)
# A product is rounded before it is added: the error follows the magnitudes of both.
FUSED = frozenset("addcmul addcdiv lerp".split())
# Kernels of which some devices store an intermediate product in the call's own type.
STORES_PRODUCT = frozenset(
    {"_softmax_backward_data", "_log_softmax_backward_data", "native_batch_norm_backward"}
)
# Kernels of which some devices exchange partial sums between threads in the call's own type.
STORES_SUMS = frozenset({"native_batch_norm_backward"})


def growth(base: str, args: Any, out: Tensor, place: int) -> float:
    """Return the growth of a kernel's error: the square root of the number of terms it adds."""
    if base in CONTRACT:
        return math.sqrt(max(1, _terms(base, args, place)))
    if base in REDUCE or base in RELATIVE:
        source = next(t for t in tree_leaves(args) if isinstance(t, Tensor))
        if base in ("cumsum", "logcumsumexp", "cumprod"):
            return math.sqrt(max(1, source.shape[args[1]])) if source.dim() else 1.0
        return 2 * math.sqrt(max(1, source.numel() / max(1, out.numel())))
    return 3.0 if base in TRANSCENDENTAL else 1.0


def _terms(base: str, args: Any, place: int) -> int:
    if base in ("mm", "bmm", "mv"):
        return int(args[0].shape[-1])
    if base in ("addmm", "baddbmm", "addmv"):
        return int(args[1].shape[-1])
    if base == "addbmm":
        return int(args[1].shape[-1] * args[1].shape[0])
    if base == "convolution":
        return int(args[1][0].numel())
    if base == "convolution_backward":
        grad, _, weight = args[:3]
        spread = grad.shape[0] * grad[0, 0].numel()
        return int(weight.shape[0] * weight[0, 0].numel()) if place == 0 else int(spread)
    return max(t.numel() for t in tree_leaves(args) if isinstance(t, Tensor))
