# SPDX-License-Identifier: Apache-2.0
"""The kernels that a vendor may have. Written by `python -m diopi.codegen`; do not edit.

A class with any subset of these methods is an implementation. To have what is there checked:

    class Kernels(protocol.Kernels if TYPE_CHECKING else object): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

Number = bool | int | float | complex


class Kernels(Protocol):
    """One method for each op, named like it; docs/diopi describes them."""

    # activation

    def relu(self, input: Tensor) -> Tensor: ...

    def relu6(self, input: Tensor) -> Tensor: ...

    def threshold(self, input: Tensor, threshold: Number, value: Number) -> Tensor: ...

    def threshold_backward(
        self, grad_output: Tensor, input: Tensor, threshold: Number
    ) -> Tensor: ...

    def hardtanh(self, input: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor: ...

    def hardtanh_backward(
        self, grad_output: Tensor, input: Tensor, min_val: Number, max_val: Number
    ) -> Tensor: ...

    def hardshrink(self, input: Tensor, lambd: Number = 0.5) -> Tensor: ...

    def hardshrink_backward(self, grad_out: Tensor, input: Tensor, lambd: Number) -> Tensor: ...

    def softshrink(self, input: Tensor, lambd: Number = 0.5) -> Tensor: ...

    def softshrink_backward(self, grad_output: Tensor, input: Tensor, lambd: Number) -> Tensor: ...

    def hardswish(self, input: Tensor) -> Tensor: ...

    def hardswish_backward(self, grad_output: Tensor, input: Tensor) -> Tensor: ...

    def hardsigmoid(self, input: Tensor) -> Tensor: ...

    def hardsigmoid_backward(self, grad_output: Tensor, input: Tensor) -> Tensor: ...

    def leaky_relu(self, input: Tensor, negative_slope: Number = 0.01) -> Tensor: ...

    def leaky_relu_backward(
        self, grad_output: Tensor, input: Tensor, negative_slope: Number, self_is_result: bool
    ) -> Tensor: ...

    def gelu(self, input: Tensor, *, approximate: str = "none") -> Tensor: ...

    def gelu_backward(
        self, grad_output: Tensor, input: Tensor, *, approximate: str = "none"
    ) -> Tensor: ...

    def silu(self, input: Tensor) -> Tensor: ...

    def silu_backward(self, grad_output: Tensor, input: Tensor) -> Tensor: ...

    def elu(
        self, input: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
    ) -> Tensor: ...

    def elu_backward(
        self,
        grad_output: Tensor,
        alpha: Number,
        scale: Number,
        input_scale: Number,
        is_result: bool,
        self_or_result: Tensor,
    ) -> Tensor: ...

    def softplus(self, input: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor: ...

    def softplus_backward(
        self, grad_output: Tensor, input: Tensor, beta: Number, threshold: Number
    ) -> Tensor: ...

    def mish(self, input: Tensor) -> Tensor: ...

    def mish_backward(self, grad_output: Tensor, input: Tensor) -> Tensor: ...

    def glu(self, input: Tensor, dim: int = -1) -> Tensor: ...

    def glu_backward(self, grad_output: Tensor, input: Tensor, dim: int) -> Tensor: ...

    def celu(self, input: Tensor, alpha: Number = 1.0) -> Tensor: ...

    def selu(self, input: Tensor) -> Tensor: ...

    def log_sigmoid(self, input: Tensor) -> tuple[Tensor, Tensor]: ...

    def log_sigmoid_backward(
        self, grad_output: Tensor, input: Tensor, buffer: Tensor
    ) -> Tensor: ...

    def prelu(self, input: Tensor, weight: Tensor) -> Tensor: ...

    def prelu_backward(
        self, grad_output: Tensor, input: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]: ...

    def softmax(self, input: Tensor, dim: int, half_to_float: bool = False) -> Tensor: ...

    def softmax_backward(
        self, grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
    ) -> Tensor: ...

    def log_softmax(self, input: Tensor, dim: int, half_to_float: bool = False) -> Tensor: ...

    def log_softmax_backward(
        self, grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
    ) -> Tensor: ...

    def safe_softmax(self, input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor: ...

    # attention

    def flash_attention(
        self,
        gen: torch.Generator | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alibi_slopes: Tensor | None,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
    ) -> tuple[Tensor, Tensor]: ...

    def flash_attention_backward(
        self,
        grad_output: Tensor,
        gen: torch.Generator | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alibi_slopes: Tensor | None,
        attention_out: Tensor,
        softmax_lse: Tensor,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def flash_attention_var_len(
        self,
        gen: torch.Generator | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cum_seq_q: Tensor,
        cum_seq_kv: Tensor,
        alibi_slopes: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_kv: int,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
    ) -> tuple[Tensor, Tensor]: ...

    def flash_attention_var_len_backward(
        self,
        grad_output: Tensor,
        gen: torch.Generator | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cum_seq_q: Tensor,
        cum_seq_kv: Tensor,
        alibi_slopes: Tensor | None,
        attention_out: Tensor,
        softmax_lse: Tensor,
        max_seqlen_q: int,
        max_seqlen_kv: int,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def scaled_masked_softmax(
        self, input: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
    ) -> Tensor: ...

    def scaled_masked_softmax_backward(
        self, grad_output: Tensor, output: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool
    ) -> Tensor: ...

    def rotary_embedding(
        self, x: Tensor, cos: Tensor, sin: Tensor, conj: bool, interleaved: bool
    ) -> Tensor: ...

    def rotary_embedding_v2(
        self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, dim: int
    ) -> None: ...

    # attention_dialects

    def customized_flash_attention(
        self,
        gen: torch.Generator | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alibi_slopes: Tensor | None,
        attention_mask: Tensor | None,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
        head_num: int,
        input_layout: str,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...

    def customized_flash_attention_backward(
        self,
        grad_output: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alibi_slopes: Tensor | None,
        attention_out: Tensor,
        attention_mask: Tensor | None,
        dropout_mask: Tensor | None,
        softmax_max: Tensor | None,
        softmax_sum: Tensor | None,
        softmax_out: Tensor | None,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
        head_num: int,
        input_layout: str,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def customized_flash_attention_var_len(
        self,
        gen: torch.Generator | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cum_seq_q: Sequence[int],
        cum_seq_kv: Sequence[int],
        alibi_slopes: Tensor | None,
        attention_mask: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_kv: int,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...

    def customized_flash_attention_var_len_backward(
        self,
        grad_output: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cum_seq_q: Sequence[int],
        cum_seq_kv: Sequence[int],
        alibi_slopes: Tensor | None,
        attention_out: Tensor,
        attention_mask: Tensor | None,
        dropout_mask: Tensor | None,
        softmax_max: Tensor | None,
        softmax_sum: Tensor | None,
        softmax_out: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_kv: int,
        p_dropout: float,
        softmax_scale: float,
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def multi_head_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        dropout_p: float,
        is_causal: bool,
        return_debug_mask: bool,
        scale: float,
        gen: torch.Generator | None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def multi_head_attention_backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        softmax_lse: Tensor,
        dropout_p: float,
        is_causal: bool,
        gen: torch.Generator | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def multi_head_attention_var_len(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cum_seq_q: Tensor,
        cum_seq_k: Tensor,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        return_debug_mask: bool,
        scale: float,
        gen: torch.Generator | None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def multi_head_attention_var_len_backward(
        self,
        grad_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        softmax_lse: Tensor,
        cum_seq_q: Tensor,
        cum_seq_k: Tensor,
        max_q: int,
        max_k: int,
        dropout_p: float,
        is_causal: bool,
        gen: torch.Generator | None,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    # convolution

    def convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Tensor: ...

    def convolution_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias_sizes: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def convolution_backward_overrideable(
        self,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def im2col(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[int],
        stride: Sequence[int],
    ) -> Tensor: ...

    def col2im(
        self,
        input: Tensor,
        output_size: Sequence[int],
        kernel_size: Sequence[int],
        dilation: Sequence[int],
        padding: Sequence[int],
        stride: Sequence[int],
    ) -> Tensor: ...

    # creation

    def arange(
        self, start: Number, end: Number, step: Number = 1, *, dtype: torch.dtype | None = None
    ) -> Tensor: ...

    def arange_end(self, end: Number, *, dtype: torch.dtype | None = None) -> Tensor: ...

    def linspace(
        self, start: Number, end: Number, steps: int, *, dtype: torch.dtype | None = None
    ) -> Tensor: ...

    def logspace(
        self,
        start: Number,
        end: Number,
        steps: int,
        base: float = 10.0,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def zeros(self, size: Sequence[int], *, dtype: torch.dtype | None = None) -> Tensor: ...

    def ones(self, size: Sequence[int], *, dtype: torch.dtype | None = None) -> Tensor: ...

    def full(
        self, size: Sequence[int], fill_value: Number, *, dtype: torch.dtype | None = None
    ) -> Tensor: ...

    def eye(self, n: int, *, dtype: torch.dtype | None = None) -> Tensor: ...

    def zeros_like(
        self,
        input: Tensor,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor: ...

    def ones_like(
        self,
        input: Tensor,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor: ...

    def full_like(
        self,
        input: Tensor,
        fill_value: Number,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor: ...

    def new_zeros(
        self, input: Tensor, size: Sequence[int], *, dtype: torch.dtype | None = None
    ) -> Tensor: ...

    def new_ones(
        self, input: Tensor, size: Sequence[int], *, dtype: torch.dtype | None = None
    ) -> Tensor: ...

    def new_full(
        self,
        input: Tensor,
        size: Sequence[int],
        fill_value: Number,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def scalar_tensor(self, s: Number, *, dtype: torch.dtype | None = None) -> Tensor: ...

    def item(self, input: Tensor) -> Number: ...

    def fill(self, input: Tensor, value: Tensor) -> Tensor: ...

    def zero(self, input: Tensor) -> Tensor: ...

    def copy(self, input: Tensor, src: Tensor) -> Tensor: ...

    def clone(
        self, input: Tensor, *, memory_format: torch.memory_format | None = None
    ) -> Tensor: ...

    def to_copy(
        self,
        input: Tensor,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor: ...

    def tril_indices(
        self, row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
    ) -> Tensor: ...

    def triu_indices(
        self, row: int, col: int, offset: int = 0, *, dtype: torch.dtype | None = torch.int64
    ) -> Tensor: ...

    def native_memory_format_cast(self, input: Tensor, format: int) -> Tensor: ...

    def get_native_memory_format(self, input: Tensor) -> int: ...

    def tensor_destruction_hook(self, ptr: int) -> None: ...

    # elementwise

    def ceil(self, input: Tensor) -> Tensor: ...

    def floor(self, input: Tensor) -> Tensor: ...

    def trunc(self, input: Tensor) -> Tensor: ...

    def sign(self, input: Tensor) -> Tensor: ...

    def abs(self, input: Tensor) -> Tensor: ...

    def neg(self, input: Tensor) -> Tensor: ...

    def positive(self, input: Tensor) -> Tensor: ...

    def round(self, input: Tensor) -> Tensor: ...

    def round_decimals(self, input: Tensor, *, decimals: int) -> Tensor: ...

    def frac(self, input: Tensor) -> Tensor: ...

    def sgn(self, input: Tensor) -> Tensor: ...

    def signbit(self, input: Tensor) -> Tensor: ...

    def copysign(self, input: Tensor, other: Tensor) -> Tensor: ...

    def eq(self, input: Tensor, other: Tensor) -> Tensor: ...

    def ne(self, input: Tensor, other: Tensor) -> Tensor: ...

    def lt(self, input: Tensor, other: Tensor) -> Tensor: ...

    def le(self, input: Tensor, other: Tensor) -> Tensor: ...

    def gt(self, input: Tensor, other: Tensor) -> Tensor: ...

    def ge(self, input: Tensor, other: Tensor) -> Tensor: ...

    def isnan(self, input: Tensor) -> Tensor: ...

    def isinf(self, input: Tensor) -> Tensor: ...

    def isposinf(self, input: Tensor) -> Tensor: ...

    def isneginf(self, input: Tensor) -> Tensor: ...

    def isfinite(self, input: Tensor) -> Tensor: ...

    def equal(self, input: Tensor, other: Tensor) -> bool: ...

    def logical_and(self, input: Tensor, other: Tensor) -> Tensor: ...

    def logical_or(self, input: Tensor, other: Tensor) -> Tensor: ...

    def logical_xor(self, input: Tensor, other: Tensor) -> Tensor: ...

    def logical_not(self, input: Tensor) -> Tensor: ...

    def bitwise_and(self, input: Tensor, other: Tensor) -> Tensor: ...

    def bitwise_or(self, input: Tensor, other: Tensor) -> Tensor: ...

    def bitwise_xor(self, input: Tensor, other: Tensor) -> Tensor: ...

    def bitwise_left_shift(self, input: Tensor, other: Tensor) -> Tensor: ...

    def bitwise_right_shift(self, input: Tensor, other: Tensor) -> Tensor: ...

    def bitwise_not(self, input: Tensor) -> Tensor: ...

    def maximum(self, input: Tensor, other: Tensor) -> Tensor: ...

    def minimum(self, input: Tensor, other: Tensor) -> Tensor: ...

    def fmax(self, input: Tensor, other: Tensor) -> Tensor: ...

    def fmin(self, input: Tensor, other: Tensor) -> Tensor: ...

    def clamp(
        self, input: Tensor, min: Tensor | None = None, max: Tensor | None = None
    ) -> Tensor: ...

    def clamp_min(self, input: Tensor, min: Tensor) -> Tensor: ...

    def clamp_max(self, input: Tensor, max: Tensor) -> Tensor: ...

    def where(self, condition: Tensor, input: Tensor, other: Tensor) -> Tensor: ...

    def nan_to_num(
        self,
        input: Tensor,
        nan: float | None = None,
        posinf: float | None = None,
        neginf: float | None = None,
    ) -> Tensor: ...

    def heaviside(self, input: Tensor, values: Tensor) -> Tensor: ...

    def nextafter(self, input: Tensor, other: Tensor) -> Tensor: ...

    def gcd(self, input: Tensor, other: Tensor) -> Tensor: ...

    def lcm(self, input: Tensor, other: Tensor) -> Tensor: ...

    def add(self, input: Tensor, other: Tensor, *, alpha: Number = 1) -> Tensor: ...

    def sub(self, input: Tensor, other: Tensor, *, alpha: Number = 1) -> Tensor: ...

    def rsub(self, input: Tensor, other: Tensor, *, alpha: Number = 1) -> Tensor: ...

    def mul(self, input: Tensor, other: Tensor) -> Tensor: ...

    def div(self, input: Tensor, other: Tensor, *, rounding_mode: str | None = None) -> Tensor: ...

    def floor_divide(self, input: Tensor, other: Tensor) -> Tensor: ...

    def remainder(self, input: Tensor, other: Tensor) -> Tensor: ...

    def fmod(self, input: Tensor, other: Tensor) -> Tensor: ...

    def addcmul(
        self, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1
    ) -> Tensor: ...

    def addcdiv(
        self, input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1
    ) -> Tensor: ...

    def lerp(self, input: Tensor, end: Tensor, weight: Tensor) -> Tensor: ...

    def sqrt(self, input: Tensor) -> Tensor: ...

    def rsqrt(self, input: Tensor) -> Tensor: ...

    def reciprocal(self, input: Tensor) -> Tensor: ...

    def square(self, input: Tensor) -> Tensor: ...

    def hypot(self, input: Tensor, other: Tensor) -> Tensor: ...

    def deg2rad(self, input: Tensor) -> Tensor: ...

    def rad2deg(self, input: Tensor) -> Tensor: ...

    def sin(self, input: Tensor) -> Tensor: ...

    def cos(self, input: Tensor) -> Tensor: ...

    def tan(self, input: Tensor) -> Tensor: ...

    def asin(self, input: Tensor) -> Tensor: ...

    def acos(self, input: Tensor) -> Tensor: ...

    def atan(self, input: Tensor) -> Tensor: ...

    def sinh(self, input: Tensor) -> Tensor: ...

    def cosh(self, input: Tensor) -> Tensor: ...

    def tanh(self, input: Tensor) -> Tensor: ...

    def asinh(self, input: Tensor) -> Tensor: ...

    def acosh(self, input: Tensor) -> Tensor: ...

    def atanh(self, input: Tensor) -> Tensor: ...

    def exp(self, input: Tensor) -> Tensor: ...

    def exp2(self, input: Tensor) -> Tensor: ...

    def expm1(self, input: Tensor) -> Tensor: ...

    def log(self, input: Tensor) -> Tensor: ...

    def log2(self, input: Tensor) -> Tensor: ...

    def log10(self, input: Tensor) -> Tensor: ...

    def log1p(self, input: Tensor) -> Tensor: ...

    def sigmoid(self, input: Tensor) -> Tensor: ...

    def erf(self, input: Tensor) -> Tensor: ...

    def erfc(self, input: Tensor) -> Tensor: ...

    def erfinv(self, input: Tensor) -> Tensor: ...

    def lgamma(self, input: Tensor) -> Tensor: ...

    def digamma(self, input: Tensor) -> Tensor: ...

    def i0(self, input: Tensor) -> Tensor: ...

    def logit(self, input: Tensor, eps: float | None = None) -> Tensor: ...

    def sinc(self, input: Tensor) -> Tensor: ...

    def tanh_backward(self, grad_output: Tensor, output: Tensor) -> Tensor: ...

    def sigmoid_backward(self, grad_output: Tensor, output: Tensor) -> Tensor: ...

    def logit_backward(
        self, grad_output: Tensor, input: Tensor, eps: float | None = None
    ) -> Tensor: ...

    def pow(self, input: Tensor, exponent: Tensor) -> Tensor: ...

    def atan2(self, input: Tensor, other: Tensor) -> Tensor: ...

    def logaddexp(self, input: Tensor, other: Tensor) -> Tensor: ...

    def logaddexp2(self, input: Tensor, other: Tensor) -> Tensor: ...

    def xlogy(self, input: Tensor, other: Tensor) -> Tensor: ...

    def polar(self, abs: Tensor, angle: Tensor) -> Tensor: ...

    def complex(self, real: Tensor, imag: Tensor) -> Tensor: ...

    def conj_physical(self, input: Tensor) -> Tensor: ...

    def angle(self, input: Tensor) -> Tensor: ...

    # fft

    def fft_c2c(
        self, input: Tensor, dim: Sequence[int], normalization: int, forward: bool
    ) -> Tensor: ...

    def fft_r2c(
        self, input: Tensor, dim: Sequence[int], normalization: int, onesided: bool
    ) -> Tensor: ...

    def fft_c2r(
        self, input: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int
    ) -> Tensor: ...

    # foreach

    def foreach_add_scalar(self, input: Sequence[Tensor], scalar: Number) -> list[Tensor]: ...

    def foreach_add_list(
        self, input: Sequence[Tensor], other: Sequence[Tensor], *, alpha: Number = 1
    ) -> list[Tensor]: ...

    def foreach_add_scalars(
        self, input: Sequence[Tensor], scalars: Sequence[Number]
    ) -> list[Tensor]: ...

    def foreach_add_tensor(
        self, input: Sequence[Tensor], other: Tensor, *, alpha: Number = 1
    ) -> list[Tensor]: ...

    def foreach_sub_scalar(self, input: Sequence[Tensor], scalar: Number) -> list[Tensor]: ...

    def foreach_sub_list(
        self, input: Sequence[Tensor], other: Sequence[Tensor], *, alpha: Number = 1
    ) -> list[Tensor]: ...

    def foreach_sub_scalars(
        self, input: Sequence[Tensor], scalars: Sequence[Number]
    ) -> list[Tensor]: ...

    def foreach_mul_scalar(self, input: Sequence[Tensor], scalar: Number) -> list[Tensor]: ...

    def foreach_mul_list(
        self, input: Sequence[Tensor], other: Sequence[Tensor]
    ) -> list[Tensor]: ...

    def foreach_mul_scalars(
        self, input: Sequence[Tensor], scalars: Sequence[Number]
    ) -> list[Tensor]: ...

    def foreach_mul_tensor(self, input: Sequence[Tensor], other: Tensor) -> list[Tensor]: ...

    def foreach_div_scalar(self, input: Sequence[Tensor], scalar: Number) -> list[Tensor]: ...

    def foreach_div_list(
        self, input: Sequence[Tensor], other: Sequence[Tensor]
    ) -> list[Tensor]: ...

    def foreach_div_scalars(
        self, input: Sequence[Tensor], scalars: Sequence[Number]
    ) -> list[Tensor]: ...

    def foreach_div_tensor(self, input: Sequence[Tensor], other: Tensor) -> list[Tensor]: ...

    def foreach_addcmul_scalar(
        self,
        input: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        value: Number = 1,
    ) -> list[Tensor]: ...

    def foreach_addcmul_scalars(
        self,
        input: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        scalars: Sequence[Number],
    ) -> list[Tensor]: ...

    def foreach_addcmul_tensor(
        self,
        input: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        scalars: Tensor,
    ) -> list[Tensor]: ...

    def foreach_addcdiv_scalar(
        self,
        input: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        value: Number = 1,
    ) -> list[Tensor]: ...

    def foreach_addcdiv_scalars(
        self,
        input: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        scalars: Sequence[Number],
    ) -> list[Tensor]: ...

    def foreach_addcdiv_tensor(
        self,
        input: Sequence[Tensor],
        tensor1: Sequence[Tensor],
        tensor2: Sequence[Tensor],
        scalars: Tensor,
    ) -> list[Tensor]: ...

    def foreach_neg(self, input: Sequence[Tensor]) -> list[Tensor]: ...

    def foreach_abs(self, input: Sequence[Tensor]) -> list[Tensor]: ...

    def foreach_sign(self, input: Sequence[Tensor]) -> list[Tensor]: ...

    def foreach_sqrt(self, input: Sequence[Tensor]) -> list[Tensor]: ...

    def foreach_reciprocal(self, input: Sequence[Tensor]) -> list[Tensor]: ...

    def foreach_exp(self, input: Sequence[Tensor]) -> list[Tensor]: ...

    def foreach_lerp_scalar(
        self, input: Sequence[Tensor], tensors1: Sequence[Tensor], weight: Number
    ) -> list[Tensor]: ...

    def foreach_norm(
        self, input: Sequence[Tensor], ord: Number = 2, dtype: torch.dtype | None = None
    ) -> list[Tensor]: ...

    def amp_foreach_non_finite_check_and_unscale(
        self, input: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor
    ) -> None: ...

    def amp_update_scale(
        self,
        input: Tensor,
        growth_tracker: Tensor,
        found_inf: Tensor,
        scale_growth_factor: float,
        scale_backoff_factor: float,
        growth_interval: int,
    ) -> Tensor: ...

    # indexing

    def index(self, input: Tensor, indices: Sequence[Tensor | None]) -> Tensor: ...

    def index_backward(
        self, grad_output: Tensor, zeros_like_input: Tensor, indices: Sequence[Tensor | None]
    ) -> Tensor: ...

    def index_put(
        self,
        input: Tensor,
        indices: Sequence[Tensor | None],
        values: Tensor,
        accumulate: bool = False,
        unsafe: bool = False,
    ) -> Tensor: ...

    def index_select(self, input: Tensor, dim: int, index: Tensor) -> Tensor: ...

    def index_select_backward(
        self, grad: Tensor, self_sizes: Sequence[int], dim: int, index: Tensor
    ) -> Tensor: ...

    def index_add(
        self, input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1
    ) -> Tensor: ...

    def index_copy(self, input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor: ...

    def index_fill(self, input: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor: ...

    def index_reduce(
        self,
        input: Tensor,
        dim: int,
        index: Tensor,
        source: Tensor,
        reduce: str,
        *,
        include_self: bool = True,
    ) -> Tensor: ...

    def gather(
        self, input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False
    ) -> Tensor: ...

    def gather_backward(
        self, grad: Tensor, input: Tensor, dim: int, index: Tensor, sparse_grad: bool
    ) -> Tensor: ...

    def scatter(
        self, input: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str | None = None
    ) -> Tensor: ...

    def scatter_value(
        self, input: Tensor, dim: int, index: Tensor, value: Number, *, reduce: str | None = None
    ) -> Tensor: ...

    def scatter_add(self, input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor: ...

    def scatter_reduce(
        self,
        input: Tensor,
        dim: int,
        index: Tensor,
        src: Tensor,
        reduce: str,
        *,
        include_self: bool = True,
    ) -> Tensor: ...

    def take(self, input: Tensor, index: Tensor) -> Tensor: ...

    def take_along_dim(self, input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor: ...

    def put(
        self, input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
    ) -> Tensor: ...

    def masked_fill(self, input: Tensor, mask: Tensor, value: Tensor) -> Tensor: ...

    def masked_select(self, input: Tensor, mask: Tensor) -> Tensor: ...

    def masked_select_backward(self, grad: Tensor, input: Tensor, mask: Tensor) -> Tensor: ...

    def masked_scatter(self, input: Tensor, mask: Tensor, source: Tensor) -> Tensor: ...

    def nonzero(self, input: Tensor) -> Tensor: ...

    def embedding(
        self,
        weight: Tensor,
        indices: Tensor,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor: ...

    def embedding_backward(
        self,
        grad_output: Tensor,
        indices: Tensor,
        num_weights: int,
        padding_idx: int,
        scale_grad_by_freq: bool,
    ) -> Tensor: ...

    def embedding_bag(
        self,
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        sparse: bool = False,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int = -1,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def embedding_renorm(
        self, input: Tensor, indices: Tensor, max_norm: float, norm_type: float
    ) -> Tensor: ...

    def one_hot(self, input: Tensor, num_classes: int = -1) -> Tensor: ...

    # inference

    def apply_penalty(
        self,
        logits: Tensor,
        presence_penalty: Tensor,
        frequency_penalty: Tensor,
        p_token_ids: Tensor,
        p_token_counts: Tensor,
        p_cumsum_seq_len: Tensor,
        p_max_len_in_batch: int,
    ) -> None: ...

    def apply_penalty_v2(
        self,
        logits: Tensor,
        presence_penalty: Tensor,
        frequency_penalty: Tensor,
        repetition_penalty: Tensor,
        p_token_ids: Tensor,
        p_token_counts: Tensor,
    ) -> None: ...

    def dest_index_copy_kv(self, out: Tensor, k: Tensor, dest_loc: Tensor) -> None: ...

    def token_attention_inference(
        self,
        q: Tensor,
        k: Tensor,
        b_loc: Tensor,
        b_start_loc: Tensor,
        b_seq_len: Tensor,
        max_input_len: int,
    ) -> Tensor: ...

    def token_softmax_reduce_v_inference(
        self,
        logics: Tensor,
        v: Tensor,
        b_loc: Tensor,
        b_start_loc: Tensor,
        b_seq_len: Tensor,
        max_input_len: int,
        other_kv_index: int,
    ) -> Tensor: ...

    def context_attention_inference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        b_start_loc: Tensor,
        b_seq_len: Tensor,
        max_input_len: int,
    ) -> Tensor: ...

    def paged_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        atten_mask: Tensor | None,
        actual_seq_lengths: Sequence[int],
        num_heads: int,
        num_kv_heads: int,
        dim: int,
        block_table: Tensor,
        block_size: int,
    ) -> Tensor: ...

    def prompt_flash_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        atten_mask: Tensor | None,
        actual_seq_lengths: Sequence[int],
        max_input_len: int,
        num_heads: int,
        num_kv_heads: int,
        dim: int,
    ) -> Tensor: ...

    def matmul_all_reduce(
        self,
        x1: Tensor,
        x2: Tensor,
        bias: Tensor | None,
        group: str,
        reduce_op: str,
        comm_turn: int,
        stream_mode: int,
    ) -> Tensor: ...

    # linalg

    def cholesky(
        self, input: Tensor, *, upper: bool = False, check_errors: bool = False
    ) -> tuple[Tensor, Tensor]: ...

    def cholesky_backward(self, grad_output: Tensor, L: Tensor, upper: bool) -> Tensor: ...

    def triangular_solve(
        self,
        input: Tensor,
        A: Tensor,
        upper: bool = True,
        transpose: bool = False,
        unitriangular: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def triangular_solve_backward(
        self,
        grad_x: Tensor,
        grad_cloned_mat: Tensor | None,
        x: Tensor,
        b: Tensor,
        mat: Tensor,
        upper: bool,
        transpose: bool,
        unitriangular: bool,
    ) -> tuple[Tensor, Tensor]: ...

    def linalg_qr(self, A: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]: ...

    def linalg_solve_triangular(
        self,
        input: Tensor,
        B: Tensor,
        *,
        upper: bool,
        left: bool = True,
        unitriangular: bool = False,
    ) -> Tensor: ...

    def linalg_inv_ex(self, A: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]: ...

    def linalg_lu_factor_ex(
        self, A: Tensor, *, pivot: bool = True, check_errors: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def linalg_solve_ex(
        self, A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def linalg_eigh(
        self, A: Tensor, UPLO: str = "L", compute_v: bool = True
    ) -> tuple[Tensor, Tensor]: ...

    def linalg_slogdet(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def linalg_det(self, A: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...

    def linalg_svd(
        self,
        A: Tensor,
        full_matrices: bool = False,
        compute_uv: bool = True,
        *,
        driver: str | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def matrix_exp(self, input: Tensor) -> Tensor: ...

    # loss

    def mse_loss(self, input: Tensor, target: Tensor, reduction: int = 1) -> Tensor: ...

    def mse_loss_backward(
        self, grad_output: Tensor, input: Tensor, target: Tensor, reduction: int
    ) -> Tensor: ...

    def smooth_l1_loss(
        self, input: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0
    ) -> Tensor: ...

    def smooth_l1_loss_backward(
        self, grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, beta: float
    ) -> Tensor: ...

    def huber_loss(
        self, input: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0
    ) -> Tensor: ...

    def huber_loss_backward(
        self, grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, delta: float
    ) -> Tensor: ...

    def soft_margin_loss(self, input: Tensor, target: Tensor, reduction: int = 1) -> Tensor: ...

    def soft_margin_loss_backward(
        self, grad_output: Tensor, input: Tensor, target: Tensor, reduction: int
    ) -> Tensor: ...

    def binary_cross_entropy(
        self, input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
    ) -> Tensor: ...

    def binary_cross_entropy_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = 1,
    ) -> Tensor: ...

    def multi_margin_loss(
        self,
        input: Tensor,
        target: Tensor,
        p: Number = 1,
        margin: Number = 1,
        weight: Tensor | None = None,
        reduction: int = 1,
    ) -> Tensor: ...

    def multi_margin_loss_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        target: Tensor,
        p: Number,
        margin: Number,
        weight: Tensor | None = None,
        reduction: int = 1,
    ) -> Tensor: ...

    def multilabel_margin_loss(
        self, input: Tensor, target: Tensor, reduction: int
    ) -> tuple[Tensor, Tensor]: ...

    def multilabel_margin_loss_backward(
        self, grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, is_target: Tensor
    ) -> Tensor: ...

    def l1_loss(self, input: Tensor, target: Tensor, reduction: int = 1) -> Tensor: ...

    def kl_div(
        self, input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False
    ) -> Tensor: ...

    def hinge_embedding_loss(
        self, input: Tensor, target: Tensor, margin: float = 1.0, reduction: int = 1
    ) -> Tensor: ...

    def margin_ranking_loss(
        self,
        input1: Tensor,
        input2: Tensor,
        target: Tensor,
        margin: float = 0.0,
        reduction: int = 1,
    ) -> Tensor: ...

    def cosine_similarity(
        self, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08
    ) -> Tensor: ...

    def nll_loss(
        self,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
    ) -> tuple[Tensor, Tensor]: ...

    def nll_loss_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
        total_weight: Tensor,
    ) -> Tensor: ...

    def cross_entropy_loss(
        self,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = 1,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Tensor: ...

    def cross_entropy_loss_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignore_index: int,
        label_smoothing: float,
    ) -> Tensor: ...

    def binary_cross_entropy_with_logits(
        self,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        pos_weight: Tensor | None = None,
        reduction: int = 1,
    ) -> Tensor: ...

    def binary_cross_entropy_with_logits_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        pos_weight: Tensor | None,
        reduction: int,
    ) -> Tensor: ...

    def sigmoid_focal_loss(
        self, inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: int
    ) -> Tensor: ...

    def sigmoid_focal_loss_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        target: Tensor,
        gamma: float,
        alpha: float,
        reduction: int,
    ) -> Tensor: ...

    def ctc_loss(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank: int,
        reduction: int,
        zero_infinity: bool,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def ctc_loss_backward(
        self,
        grad_output: Tensor,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        neg_log_likelihood: Tensor,
        log_alpha: Tensor,
        blank: int,
        reduction: int,
        zero_infinity: bool,
    ) -> Tensor: ...

    def ctc_loss_lists(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Sequence[int],
        target_lengths: Sequence[int],
        blank: int = 0,
        zero_infinity: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def ctc_loss_lists_backward(
        self,
        grad: Tensor,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Sequence[int],
        target_lengths: Sequence[int],
        neg_log_likelihood: Tensor,
        log_alpha: Tensor,
        blank: int,
        zero_infinity: bool = False,
    ) -> Tensor: ...

    def ctc_loss_forward(
        self,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank: int = 0,
        zero_infinity: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def ctc_loss_forward_backward(
        self,
        grad: Tensor,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        neg_log_likelihood: Tensor,
        log_alpha: Tensor,
        blank: int,
        zero_infinity: bool = False,
    ) -> Tensor: ...

    # matmul

    def mm(self, input: Tensor, mat2: Tensor) -> Tensor: ...

    def bmm(self, input: Tensor, mat2: Tensor) -> Tensor: ...

    def matmul(self, input: Tensor, other: Tensor) -> Tensor: ...

    def matmul_backward(
        self, grad: Tensor, input: Tensor, other: Tensor, mask: Sequence[bool]
    ) -> tuple[Tensor, Tensor]: ...

    def linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def linear_backward(
        self, input: Tensor, grad_output: Tensor, weight: Tensor, output_mask: Sequence[bool]
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def mv(self, input: Tensor, vec: Tensor) -> Tensor: ...

    def dot(self, input: Tensor, tensor: Tensor) -> Tensor: ...

    def vdot(self, input: Tensor, other: Tensor) -> Tensor: ...

    def outer(self, input: Tensor, vec2: Tensor) -> Tensor: ...

    def addmm(
        self, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Number = 1, alpha: Number = 1
    ) -> Tensor: ...

    def addbmm(
        self, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
    ) -> Tensor: ...

    def baddbmm(
        self, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = 1, alpha: Number = 1
    ) -> Tensor: ...

    def addmv(
        self, input: Tensor, mat: Tensor, vec: Tensor, *, beta: Number = 1, alpha: Number = 1
    ) -> Tensor: ...

    def addr(
        self, input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Number = 1, alpha: Number = 1
    ) -> Tensor: ...

    def kron(self, input: Tensor, other: Tensor) -> Tensor: ...

    def cross(self, input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor: ...

    def scaled_dot_product_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor: ...

    # normalization

    def batch_norm(
        self,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def batch_norm_legit(
        self,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def batch_norm_legit_no_stats(
        self,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def batch_norm_backward(
        self,
        grad_out: Tensor,
        input: Tensor,
        weight: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        save_mean: Tensor | None,
        save_invstd: Tensor | None,
        train: bool,
        eps: float,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def batch_norm_stats(self, input: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...

    def batch_norm_elemt(
        self,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        invstd: Tensor,
        eps: float,
    ) -> Tensor: ...

    def batch_norm_gather_stats_with_counts(
        self,
        input: Tensor,
        mean: Tensor,
        invstd: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor]: ...

    def batch_norm_backward_reduce(
        self,
        grad_out: Tensor,
        input: Tensor,
        mean: Tensor,
        invstd: Tensor,
        weight: Tensor | None,
        input_g: bool,
        weight_g: bool,
        bias_g: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...

    def batch_norm_backward_elemt(
        self,
        grad_out: Tensor,
        input: Tensor,
        mean: Tensor,
        invstd: Tensor,
        weight: Tensor | None,
        sum_dy: Tensor,
        sum_dy_xmu: Tensor,
        count: Tensor,
    ) -> Tensor: ...

    def group_norm(
        self,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        N: int,
        C: int,
        HxW: int,
        group: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def group_norm_backward(
        self,
        grad_out: Tensor,
        input: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        N: int,
        C: int,
        HxW: int,
        group: int,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def layer_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def layer_norm_backward(
        self,
        grad_out: Tensor,
        input: Tensor,
        normalized_shape: Sequence[int],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def layer_norm_gb(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, eps: float, begin_norm_axis: int
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def layer_norm_gb_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        begin_norm_axis: int,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def instance_norm(
        self, input: Tensor, scale: Tensor, bias: Tensor | None, axis: int, eps: float
    ) -> Tensor: ...

    def instance_norm_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        scale: Tensor,
        bias: Tensor | None,
        axis: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def normalize(self, input: Tensor, p: float, axis: int, eps: float) -> Tensor: ...

    def normalize_backward(
        self, grad_output: Tensor, input: Tensor, p: float, axis: int, eps: float
    ) -> Tensor: ...

    def rms_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> tuple[Tensor, Tensor]: ...

    def rms_norm_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        inv_rms: Tensor,
        normalized_shape: Sequence[int],
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def fused_rms_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        eps: float | None,
    ) -> tuple[Tensor, Tensor]: ...

    def fused_rms_norm_backward(
        self,
        grad_out: Tensor,
        input: Tensor,
        normalized_shape: Sequence[int],
        rstd: Tensor,
        weight: Tensor | None,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor]: ...

    def weight_norm(self, v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]: ...

    def weight_norm_backward(
        self, grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
    ) -> tuple[Tensor, Tensor]: ...

    # optimizer

    def sgd(
        self,
        param: Tensor,
        grad: Tensor,
        buf: Tensor,
        lr: float,
        momentum: float,
        dampening: float,
        weight_decay: float,
        nesterov: bool,
    ) -> None: ...

    def adam(
        self,
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        max_exp_avg_sq: Tensor | None,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        step: int,
        amsgrad: bool,
    ) -> None: ...

    def adamw(
        self,
        param: Tensor,
        grad: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        max_exp_avg_sq: Tensor | None,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        step: int,
        amsgrad: bool,
    ) -> None: ...

    def adadelta(
        self,
        param: Tensor,
        grad: Tensor,
        square_avg: Tensor,
        acc_delta: Tensor,
        lr: float,
        rho: float,
        eps: float,
        weight_decay: float,
    ) -> None: ...

    def rmsprop(
        self,
        param: Tensor,
        grad: Tensor,
        square_avg: Tensor,
        grad_avg: Tensor | None,
        momentum_buf: Tensor | None,
        lr: float,
        alpha: float,
        eps: float,
        weight_decay: float,
        momentum: float,
        centered: bool,
    ) -> None: ...

    def clip_grad_norm(
        self, grads: Sequence[Tensor], max_norm: float, norm_type: float, error_if_nonfinite: bool
    ) -> float: ...

    def fused_adam(
        self,
        input: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None: ...

    def fused_adamw(
        self,
        input: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: float,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None: ...

    def fused_sgd(
        self,
        input: Sequence[Tensor],
        grads: Sequence[Tensor],
        momentum_buffer_list: Sequence[Tensor],
        *,
        weight_decay: float,
        momentum: float,
        lr: float,
        dampening: float,
        nesterov: bool,
        maximize: bool,
        is_first_step: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None: ...

    def fused_adagrad(
        self,
        input: Sequence[Tensor],
        grads: Sequence[Tensor],
        state_sums: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: float,
        lr_decay: float,
        weight_decay: float,
        eps: float,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None: ...

    # pooling

    def max_pool1d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor: ...

    def avg_pool1d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
    ) -> Tensor: ...

    def adaptive_max_pool1d_backward(
        self, grad_output: Tensor, input: Tensor, indices: Tensor
    ) -> Tensor: ...

    def adaptive_avg_pool1d_backward(self, grad_output: Tensor, input: Tensor) -> Tensor: ...

    def max_pool1d(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Tensor: ...

    def max_pool1d_with_indices(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def avg_pool1d(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Tensor: ...

    def adaptive_max_pool1d(
        self, input: Tensor, output_size: Sequence[int]
    ) -> tuple[Tensor, Tensor]: ...

    def adaptive_avg_pool1d(self, input: Tensor, output_size: Sequence[int]) -> Tensor: ...

    def pool1d(
        self,
        input: Tensor,
        mode: str,
        ksize: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        output_size: Sequence[int],
    ) -> Tensor: ...

    def pool1d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        mode: str,
        ksize: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        indices: Tensor | None = None,
    ) -> Tensor: ...

    def max_pool2d(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Tensor: ...

    def max_pool2d_with_indices(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def avg_pool2d(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor: ...

    def adaptive_max_pool2d(
        self, input: Tensor, output_size: Sequence[int]
    ) -> tuple[Tensor, Tensor]: ...

    def adaptive_avg_pool2d(self, input: Tensor, output_size: Sequence[int]) -> Tensor: ...

    def pool2d(
        self,
        input: Tensor,
        mode: str,
        ksize: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        output_size: Sequence[int],
    ) -> Tensor: ...

    def pool2d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        mode: str,
        ksize: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        indices: Tensor | None = None,
    ) -> Tensor: ...

    def max_pool2d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor: ...

    def avg_pool2d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor: ...

    def adaptive_max_pool2d_backward(
        self, grad_output: Tensor, input: Tensor, indices: Tensor
    ) -> Tensor: ...

    def adaptive_avg_pool2d_backward(self, grad_output: Tensor, input: Tensor) -> Tensor: ...

    def max_pool3d(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Tensor: ...

    def max_pool3d_with_indices(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def avg_pool3d(
        self,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor: ...

    def adaptive_max_pool3d(
        self, input: Tensor, output_size: Sequence[int]
    ) -> tuple[Tensor, Tensor]: ...

    def adaptive_avg_pool3d(self, input: Tensor, output_size: Sequence[int]) -> Tensor: ...

    def pool3d(
        self,
        input: Tensor,
        mode: str,
        ksize: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        output_size: Sequence[int],
    ) -> Tensor: ...

    def pool3d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        mode: str,
        ksize: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        exclusive: bool,
        adaptive: bool,
        indices: Tensor | None = None,
    ) -> Tensor: ...

    def max_pool3d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor: ...

    def avg_pool3d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Tensor: ...

    def adaptive_max_pool3d_backward(
        self, grad_output: Tensor, input: Tensor, indices: Tensor
    ) -> Tensor: ...

    def adaptive_avg_pool3d_backward(self, grad_output: Tensor, input: Tensor) -> Tensor: ...

    # random

    def dropout(
        self, input: Tensor, p: float, train: bool | None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def dropout_backward(self, grad_output: Tensor, mask: Tensor, scale: float) -> Tensor: ...

    def uniform(
        self,
        input: Tensor,
        low: float = 0.0,
        high: float = 1.0,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

    def random(
        self,
        input: Tensor,
        low: int = 0,
        high: int | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

    def normal(
        self,
        input: Tensor,
        mean: float = 0,
        std: float = 1,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

    def normal_tensor_float(
        self, mean: Tensor, std: float = 1.0, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def normal_float_tensor(
        self, mean: float, std: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def normal_tensor_tensor(
        self, mean: Tensor, std: Tensor, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def bernoulli(self, input: Tensor, *, generator: torch.Generator | None = None) -> Tensor: ...

    def bernoulli_p(
        self, input: Tensor, p: float, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def randperm(
        self, n: int, *, generator: torch.Generator | None = None, dtype: torch.dtype | None = None
    ) -> Tensor: ...

    def rand(
        self,
        size: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def randn(
        self,
        size: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def multinomial(
        self,
        input: Tensor,
        num_samples: int,
        replacement: bool = False,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

    def exponential(
        self, input: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def geometric(
        self, input: Tensor, p: float, *, generator: torch.Generator | None = None
    ) -> Tensor: ...

    def cauchy(
        self,
        input: Tensor,
        median: float = 0.0,
        sigma: float = 1.0,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

    def log_normal(
        self,
        input: Tensor,
        mean: float = 1.0,
        std: float = 2.0,
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor: ...

    def poisson(self, input: Tensor, generator: torch.Generator | None = None) -> Tensor: ...

    # reduction

    def sum(
        self,
        input: Tensor,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def mean(
        self,
        input: Tensor,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def nansum(
        self,
        input: Tensor,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def prod(
        self,
        input: Tensor,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def any(self, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor: ...

    def all(self, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor: ...

    def std(
        self,
        input: Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> Tensor: ...

    def std_mean(
        self,
        input: Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def var(
        self,
        input: Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> Tensor: ...

    def var_mean(
        self,
        input: Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> tuple[Tensor, Tensor]: ...

    def max(self, input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...

    def max_all(self, input: Tensor) -> Tensor: ...

    def amax(self, input: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor: ...

    def argmax(self, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor: ...

    def cummax(self, input: Tensor, dim: int) -> tuple[Tensor, Tensor]: ...

    def min(self, input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...

    def min_all(self, input: Tensor) -> Tensor: ...

    def amin(self, input: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor: ...

    def argmin(self, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor: ...

    def cummin(self, input: Tensor, dim: int) -> tuple[Tensor, Tensor]: ...

    def aminmax(
        self, input: Tensor, *, dim: int | None = None, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]: ...

    def logsumexp(self, input: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor: ...

    def count_nonzero(self, input: Tensor, dim: Sequence[int]) -> Tensor: ...

    def cumsum(self, input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor: ...

    def cumsum_backward(self, grad_output: Tensor, dim: int) -> Tensor: ...

    def cumprod(self, input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor: ...

    def logcumsumexp(self, input: Tensor, dim: int) -> Tensor: ...

    def trace(self, input: Tensor) -> Tensor: ...

    def norm(
        self, input: Tensor, p: Number | None, dim: Sequence[int], keepdim: bool = False
    ) -> Tensor: ...

    def norm_backward(
        self, grad_output: Tensor, input: Tensor, norm: Tensor, dim: Sequence[int], p: Number
    ) -> Tensor: ...

    def linalg_vector_norm(
        self,
        input: Tensor,
        ord: Number = 2,
        dim: Sequence[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor: ...

    def renorm(self, input: Tensor, p: Number, dim: int, maxnorm: Number) -> Tensor: ...

    def dist(self, input: Tensor, other: Tensor, p: Number = 2) -> Tensor: ...

    def cdist(self, x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor: ...

    def pdist(self, input: Tensor, p: float = 2.0) -> Tensor: ...

    def pdist_backward(self, grad: Tensor, input: Tensor, p: float, pdist: Tensor) -> Tensor: ...

    def cdist_backward(
        self, grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor
    ) -> Tensor: ...

    # shape

    def cat(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor: ...

    def stack(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor: ...

    def expand(self, input: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor: ...

    def permute(self, input: Tensor, dims: Sequence[int]) -> Tensor: ...

    def repeat(self, input: Tensor, repeats: Sequence[int]) -> Tensor: ...

    def roll(self, input: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor: ...

    def flip(self, input: Tensor, dims: Sequence[int]) -> Tensor: ...

    def tril(self, input: Tensor, diagonal: int = 0) -> Tensor: ...

    def triu(self, input: Tensor, diagonal: int = 0) -> Tensor: ...

    def diag(self, input: Tensor, diagonal: int = 0) -> Tensor: ...

    def diag_embed(
        self, input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1
    ) -> Tensor: ...

    def tile(self, input: Tensor, dims: Sequence[int]) -> Tensor: ...

    def rot90(self, input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor: ...

    def transpose(self, input: Tensor, dim0: int, dim1: int) -> Tensor: ...

    def split_with_sizes(
        self, input: Tensor, split_sizes: Sequence[int], dim: int = 0
    ) -> list[Tensor]: ...

    def split(self, input: Tensor, split_size: int, dim: int = 0) -> list[Tensor]: ...

    def chunk(self, input: Tensor, chunks: int, dim: int = 0) -> list[Tensor]: ...

    def unbind(self, input: Tensor, dim: int = 0) -> list[Tensor]: ...

    def meshgrid(self, tensors: Sequence[Tensor]) -> list[Tensor]: ...

    def repeat_interleave(
        self, input: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None
    ) -> Tensor: ...

    def select(self, input: Tensor, dim: int, index: int) -> Tensor: ...

    def select_backward(
        self, grad_output: Tensor, input_sizes: Sequence[int], dim: int, index: int
    ) -> Tensor: ...

    def select_scatter(self, input: Tensor, src: Tensor, dim: int, index: int) -> Tensor: ...

    def slice(
        self,
        input: Tensor,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Tensor: ...

    def slice_backward(
        self,
        grad_output: Tensor,
        input_sizes: Sequence[int],
        dim: int,
        start: int,
        end: int,
        step: int,
    ) -> Tensor: ...

    def slice_scatter(
        self,
        input: Tensor,
        src: Tensor,
        dim: int = 0,
        start: int | None = None,
        end: int | None = None,
        step: int = 1,
    ) -> Tensor: ...

    def diagonal(self, input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor: ...

    def diagonal_backward(
        self, grad_output: Tensor, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int
    ) -> Tensor: ...

    def diagonal_scatter(
        self, input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
    ) -> Tensor: ...

    def unfold(self, input: Tensor, dimension: int, size: int, step: int) -> Tensor: ...

    def unfold_backward(
        self, grad_in: Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
    ) -> Tensor: ...

    def pad(
        self, input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
    ) -> Tensor: ...

    def constant_pad_nd(self, input: Tensor, pad: Sequence[int], value: Number = 0) -> Tensor: ...

    def reflection_pad1d(self, input: Tensor, padding: Sequence[int]) -> Tensor: ...

    def reflection_pad1d_backward(
        self, grad_output: Tensor, input: Tensor, padding: Sequence[int]
    ) -> Tensor: ...

    def replication_pad1d(self, input: Tensor, padding: Sequence[int]) -> Tensor: ...

    def replication_pad1d_backward(
        self, grad_output: Tensor, input: Tensor, padding: Sequence[int]
    ) -> Tensor: ...

    def reflection_pad2d(self, input: Tensor, padding: Sequence[int]) -> Tensor: ...

    def reflection_pad2d_backward(
        self, grad_output: Tensor, input: Tensor, padding: Sequence[int]
    ) -> Tensor: ...

    def replication_pad2d(self, input: Tensor, padding: Sequence[int]) -> Tensor: ...

    def replication_pad2d_backward(
        self, grad_output: Tensor, input: Tensor, padding: Sequence[int]
    ) -> Tensor: ...

    def reflection_pad3d(self, input: Tensor, padding: Sequence[int]) -> Tensor: ...

    def reflection_pad3d_backward(
        self, grad_output: Tensor, input: Tensor, padding: Sequence[int]
    ) -> Tensor: ...

    def replication_pad3d(self, input: Tensor, padding: Sequence[int]) -> Tensor: ...

    def replication_pad3d_backward(
        self, grad_output: Tensor, input: Tensor, padding: Sequence[int]
    ) -> Tensor: ...

    def pixel_shuffle(self, input: Tensor, upscale_factor: int) -> Tensor: ...

    def pixel_unshuffle(self, input: Tensor, downscale_factor: int) -> Tensor: ...

    def real(self, input: Tensor) -> Tensor: ...

    def imag(self, input: Tensor) -> Tensor: ...

    def conj(self, input: Tensor) -> Tensor: ...

    def view_as_real(self, input: Tensor) -> Tensor: ...

    def view_as_complex(self, input: Tensor) -> Tensor: ...

    # sorting

    def sort(
        self, input: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
    ) -> tuple[Tensor, Tensor]: ...

    def sort_backward(
        self, grad: Tensor, dim: int, indices: Tensor, sizes: Sequence[int], keepdim: bool
    ) -> Tensor: ...

    def argsort(
        self, input: Tensor, *, stable: bool = False, dim: int | None = -1, descending: bool = False
    ) -> Tensor: ...

    def topk(
        self, input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[Tensor, Tensor]: ...

    def kthvalue(
        self, input: Tensor, k: int, dim: int = -1, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]: ...

    def median(self, input: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...

    def median_all(self, input: Tensor) -> Tensor: ...

    def nanmedian(
        self, input: Tensor, dim: int, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]: ...

    def mode(
        self, input: Tensor, dim: int = -1, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]: ...

    def unique(
        self, input: Tensor, dim: int | None, sorted: bool, return_counts: bool
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def unique2(
        self,
        input: Tensor,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def unique_dim(
        self,
        input: Tensor,
        dim: int,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def unique_consecutive(
        self,
        input: Tensor,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def searchsorted(
        self,
        sorted_sequence: Tensor,
        input: Tensor,
        *,
        out_int32: bool = False,
        right: bool = False,
        side: str | None = None,
        sorter: Tensor | None = None,
    ) -> Tensor: ...

    def bucketize(
        self, input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
    ) -> Tensor: ...

    def bincount(
        self, input: Tensor, weights: Tensor | None = None, minlength: int = 0
    ) -> Tensor: ...

    def histc(self, input: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor: ...

    def isin(
        self,
        elements: Tensor,
        test_elements: Tensor,
        *,
        assume_unique: bool = False,
        invert: bool = False,
    ) -> Tensor: ...

    # vision

    def nms(self, boxes: Tensor, confidence: Tensor, iou_threshold: float) -> Tensor: ...

    def roi_align(
        self,
        input: Tensor,
        rois: Tensor,
        spatial_scale: float,
        pooled_height: int,
        pooled_width: int,
        sampling_ratio: int,
        aligned: bool,
    ) -> Tensor: ...

    def roi_align_backward(
        self,
        grad: Tensor,
        rois: Tensor,
        spatial_scale: float,
        pooled_height: int,
        pooled_width: int,
        batch_size: int,
        channels: int,
        height: int,
        width: int,
        sampling_ratio: int,
        aligned: bool,
    ) -> Tensor: ...

    def grid_sample(self, input: Tensor, grid: Tensor, mode: str) -> Tensor: ...

    def upsample_nearest(self, input: Tensor, size: Sequence[int]) -> Tensor: ...

    def upsample_nearest_backward(
        self, grad_output: Tensor, out_size: Sequence[int], in_size: Sequence[int]
    ) -> Tensor: ...

    def upsample_linear(
        self, input: Tensor, size: Sequence[int], align_corners: bool, mode: str
    ) -> Tensor: ...

    def upsample_linear_backward(
        self,
        grad_output: Tensor,
        out_size: Sequence[int],
        in_size: Sequence[int],
        align_corners: bool,
        mode: str,
    ) -> Tensor: ...

    def upsample_nearest1d(
        self, input: Tensor, output_size: Sequence[int], scales: float | None = None
    ) -> Tensor: ...

    def upsample_nearest1d_backward(
        self,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        scales: float | None = None,
    ) -> Tensor: ...

    def upsample_nearest2d(
        self,
        input: Tensor,
        output_size: Sequence[int],
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_nearest2d_backward(
        self,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_nearest3d(
        self,
        input: Tensor,
        output_size: Sequence[int],
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_nearest3d_backward(
        self,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_linear1d(
        self,
        input: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales: float | None = None,
    ) -> Tensor: ...

    def upsample_linear1d_backward(
        self,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales: float | None = None,
    ) -> Tensor: ...

    def upsample_bilinear2d(
        self,
        input: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_bilinear2d_backward(
        self,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_bicubic2d(
        self,
        input: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_bicubic2d_backward(
        self,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_trilinear3d(
        self,
        input: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def upsample_trilinear3d_backward(
        self,
        grad_output: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor: ...

    def grid_sampler_2d(
        self,
        input: Tensor,
        grid: Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> Tensor: ...

    def grid_sampler_2d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        grid: Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor]: ...

    def grid_sampler_3d(
        self,
        input: Tensor,
        grid: Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
    ) -> Tensor: ...

    def grid_sampler_3d_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        grid: Tensor,
        interpolation_mode: int,
        padding_mode: int,
        align_corners: bool,
        output_mask: Sequence[bool],
    ) -> tuple[Tensor, Tensor]: ...
