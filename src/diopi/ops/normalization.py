# SPDX-License-Identifier: Apache-2.0
"""Normalizations, their gradients, and the pieces of synchronized batch norm."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from diopi.gradient import gradient, gradients
from diopi.op import FLOATS, op

FAMILY = "normalization"
NN = "nn.functional."


def _channels(input: Tensor) -> list[int]:
    return [dim for dim in range(input.dim()) if dim != 1]


def _spread(vector: Tensor, input: Tensor) -> Tensor:
    """Reshape a vector over the channels so that it broadcasts against the input."""
    return vector.view([1, -1] + [1] * (input.dim() - 2))


def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and 1/sqrt(var + eps) of every channel on this rank."""
    dims = _channels(input)
    return input.mean(dims), (input.var(dims, correction=0) + eps).rsqrt()


def batch_norm_elemt(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """Return (input - mean) * invstd * weight + bias; `eps` is already part of invstd."""
    del eps
    out = (input - _spread(mean, input)) * _spread(invstd, input)
    out = out if weight is None else out * _spread(weight, input)
    return out if bias is None else out + _spread(bias, input)


def batch_norm_gather_stats_with_counts(
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the statistics of all ranks from each rank's own (one row per rank)."""
    del input
    counts = counts.to(mean.dtype).view(-1, 1)
    total = counts.sum()
    joint = (mean * counts).sum(0) / total
    variances = invstd.pow(-2) - eps + (mean - joint).square()
    variance = (variances * counts).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(joint.to(running_mean.dtype), momentum)
    if running_var is not None:
        unbiased = variance * total / (total - 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return joint, (variance + eps).rsqrt()


def batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return sums over this rank: dy, dy * (x - mean), and the gradients of weight and bias."""
    del weight
    dims = _channels(input)
    sum_dy = grad_out.sum(dims)
    sum_dy_xmu = (grad_out * (input - _spread(mean, input))).sum(dims)
    return (
        sum_dy if input_g else None,
        sum_dy_xmu if input_g else None,
        sum_dy_xmu * invstd if weight_g else None,
        sum_dy.clone() if bias_g else None,
    )


def batch_norm_backward_elemt(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """Return the gradient of the input from the sums of all ranks."""
    total = count.sum().to(sum_dy.dtype)
    centred = (input - _spread(mean, input)) * _spread(invstd.square() * sum_dy_xmu / total, input)
    scale = invstd if weight is None else invstd * weight
    return (grad_out - _spread(sum_dy / total, input) - centred) * _spread(scale, input)


def layer_norm_gb(
    input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, begin_norm_axis: int
) -> tuple[Tensor, Tensor, Tensor]:
    """layer_norm over all dimensions from `begin_norm_axis` on; also returns mean and 1/std."""
    found: tuple[Tensor, Tensor, Tensor] = torch.native_layer_norm(
        input, input.shape[begin_norm_axis:], weight, bias, eps
    )
    return found


def layer_norm_gb_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    begin_norm_axis: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of layer_norm_gb for input, weight and bias."""
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        grad_output, input, input.shape[begin_norm_axis:], mean, rstd, weight, bias, [True] * 3
    )
    return found


def instance_norm(
    input: Tensor, scale: Tensor, bias: Tensor | None, axis: int, eps: float
) -> Tensor:
    """Normalize each sample's channel (dimension `axis`) by its own statistics."""
    moved = input.movedim(axis, 1)
    return functional.instance_norm(moved, weight=scale, bias=bias, eps=eps).movedim(1, axis)


def instance_norm_backward(
    grad_output: Tensor, input: Tensor, scale: Tensor, bias: Tensor | None, axis: int, eps: float
) -> tuple[Tensor | None, ...]:
    """Return the gradients of instance_norm for input, scale and bias."""
    return gradients(
        lambda x, w, b: instance_norm(x, w, b, axis, eps), (input, scale, bias), grad_output
    )


def normalize(input: Tensor, p: float, axis: int, eps: float) -> Tensor:
    """Return input / max(norm(input, p, axis), eps)."""
    return functional.normalize(input, p, axis, eps)


def normalize_backward(
    grad_output: Tensor, input: Tensor, p: float, axis: int, eps: float
) -> Tensor:
    """Return the gradient of normalize."""
    return gradient(lambda x: normalize(x, p, axis, eps), (input,), grad_output)


def rms_norm(
    input: Tensor,
    normalized_shape: list[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return input / sqrt(mean(input^2) + eps) * weight + bias; also 1/sqrt(…),
    without those dims.
    """
    dims = list(range(-len(normalized_shape), 0))
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    inv_rms = (wide.square().mean(dims, keepdim=True) + eps).rsqrt()
    out = wide * inv_rms
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return out.to(input.dtype), inv_rms.reshape(input.shape[: input.dim() - len(dims)])


def rms_norm_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inv_rms: Tensor,
    normalized_shape: list[int],
    eps: float,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of rms_norm for input, weight and bias."""
    del inv_rms  # a kernel may use it; the value follows from the input
    return gradients(
        lambda x, w, b: rms_norm(x, normalized_shape, w, b, eps)[0],
        (input, weight, bias),
        grad_output,
    )


def fused_rms_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of fused_rms_norm for input and weight; None where masked out."""
    wide = input.to(rstd.dtype)
    dims = list(range(-len(normalized_shape), 0))
    normal, grad = wide * rstd, grad_out.to(rstd.dtype)
    weighted = grad if weight is None else grad * weight
    share = (weighted * normal).mean(dims, keepdim=True)
    grad_input = ((weighted - normal * share) * rstd).to(input.dtype)
    outer = list(range(input.dim() - len(dims)))
    grad_weight = (grad * normal).sum(outer) if outer else grad * normal
    wanted = output_mask[1] and weight is not None
    return (
        grad_input if output_mask[0] else None,
        grad_weight.to(grad_out.dtype) if wanted else None,
    )


# fmt: off
op("batch_norm", FAMILY, aten="native_batch_norm", kind="composite", dtypes=FLOATS,
   written="running_mean running_var", backward="batch_norm_backward",
   opinfo=NN + "batch_norm native_batch_norm")
op("batch_norm_legit", FAMILY, aten="_native_batch_norm_legit", kind="composite", dtypes=FLOATS,
   backward="batch_norm_backward", opinfo=NN + "batch_norm")
op("batch_norm_legit_no_stats", FAMILY, aten="_native_batch_norm_legit.no_stats",
   kind="composite", dtypes=FLOATS, backward="batch_norm_backward", opinfo=NN + "batch_norm")
op("batch_norm_backward", FAMILY, aten="native_batch_norm_backward", kind="composite",
   dtypes=FLOATS, opinfo=NN + "batch_norm")
# torch has these for one device only: the formula is defined here, the schema is torch's.
for function in (
    batch_norm_stats,
    batch_norm_elemt,
    batch_norm_gather_stats_with_counts,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
):
    name = function.__name__
    op(name, FAMILY, aten=name, kind="composite", dtypes=FLOATS, meaning=function, opinfo="",
       written="running_mean running_var" if "gather" in name else "")
op("group_norm", FAMILY, aten="native_group_norm", kind="composite", dtypes=FLOATS,
   backward="group_norm_backward", opinfo=NN + "group_norm")
op("group_norm_backward", FAMILY, aten="native_group_norm_backward", kind="composite",
   dtypes=FLOATS, opinfo=NN + "group_norm")
op("layer_norm", FAMILY, aten="native_layer_norm", kind="composite", dtypes=FLOATS,
   backward="layer_norm_backward", opinfo=NN + "layer_norm native_layer_norm")
op("layer_norm_backward", FAMILY, aten="native_layer_norm_backward", kind="composite",
   dtypes=FLOATS, opinfo=NN + "layer_norm")
op("layer_norm_gb", FAMILY, kind="composite", dtypes=FLOATS, meaning=layer_norm_gb, opinfo="",
   backward="layer_norm_gb_backward", results="out mean rstd")
op("layer_norm_gb_backward", FAMILY, kind="composite", dtypes=FLOATS, opinfo="",
   meaning=layer_norm_gb_backward, results="grad_input grad_weight grad_bias")
op("instance_norm", FAMILY, kind="composite", dtypes=FLOATS, meaning=instance_norm, opinfo="",
   backward="instance_norm_backward")
op("instance_norm_backward", FAMILY, kind="composite", dtypes=FLOATS, opinfo="",
   meaning=instance_norm_backward, results="grad_input grad_scale grad_bias")
op("normalize", FAMILY, kind="composite", dtypes=FLOATS, meaning=normalize, opinfo="",
   backward="normalize_backward")
op("normalize_backward", FAMILY, kind="composite", dtypes=FLOATS, meaning=normalize_backward,
   opinfo="")
op("rms_norm", FAMILY, kind="composite", dtypes=FLOATS, meaning=rms_norm, opinfo="",
   backward="rms_norm_backward", results="out inv_rms")
op("rms_norm_backward", FAMILY, kind="composite", dtypes=FLOATS, meaning=rms_norm_backward,
   opinfo="", results="grad_input grad_weight grad_bias")
op("fused_rms_norm", FAMILY, aten="_fused_rms_norm", kind="composite", dtypes=FLOATS,
   backward="fused_rms_norm_backward", opinfo=NN + "rms_norm")
op("fused_rms_norm_backward", FAMILY, aten="_fused_rms_norm_backward", kind="composite",
   dtypes=FLOATS, meaning=fused_rms_norm_backward, opinfo=NN + "rms_norm")
op("weight_norm", FAMILY, aten="_weight_norm_interface", kind="composite", dtypes=FLOATS,
   backward="weight_norm_backward", opinfo="")
op("weight_norm_backward", FAMILY, aten="_weight_norm_interface_backward", kind="composite",
   dtypes=FLOATS, opinfo="")
