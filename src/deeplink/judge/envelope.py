# SPDX-License-Identifier: Apache-2.0
"""The errors that rounding alone can cause in a call's results: float64 reruns with noise.

Monte-Carlo arithmetic: every primitive kernel of the call gets the rounding errors that it would
have in float32 (the arithmetic inside of kernels of float32, float16 and bfloat16). What one kernel
hands to the next gets the error of being stored in the call's own type. The standard deviation over
a few such runs is the envelope. It reflects conditioning, cancellation and the length of sums
without a constant per operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from deeplink.judge.kernels import (
    CONTRACT,
    EXACT,
    FUSED,
    PLAIN,
    REDUCE,
    RELATIVE,
    SPLIT,
    STORES_PRODUCT,
    STORES_SUMS,
    TRANSCENDENTAL,
    growth,
)

SAMPLES, LONG, FEWER = 12, 300, 6  # runs; a call with more than LONG kernels has FEWER
FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53
MOST_PARTS = 5  # a sum is cut into 2, 4, … 2**5 parts
FINEST = 2.0**-48  # rounding unit of intermediate results in float64
EVEN = (
    4 / 3
)  # scales triangular rounding errors to the mean size of uniform errors up to the roundoff
_WIDE = (torch.float64, torch.complex128)
_KNOWN = EXACT | CONTRACT | REDUCE | RELATIVE | TRANSCENDENTAL

Run = Callable[[], Sequence[Tensor | None]]


def envelope(
    run: Run,
    reference: Sequence[Tensor | None],
    *,
    inside: float = FLOAT32,
    between: float = 0.0,
    entering: float = 0.0,
    convolving: float = 0.0,
    functions: float = 0.0,
    partial: float = 0.0,
    smallest: float = 0.0,
    samples: int | None = None,
    seed: int = 0,
) -> list[Tensor | None]:
    """Return the standard deviation of each result of `run` under rounding noise.

    `run` computes in float64 on the device of `reference`.
    `inside`: the roundoff inside of a kernel;
    `between`: the roundoff of the type in which one kernel hands its result to the next;
    `entering`: the roundoff to which factors of products are rounded, as by autocast and TF32;
    `convolving`: the roundoff for factors of convolutions, where it is larger than `entering`;
    `functions`: the relative error of exp, tanh and similar, where it is larger than `inside`;
    `partial`: the roundoff of the type in which partial sums of matrix products are stored;
    `smallest`: the least positive number of the type in which results are handed on;
    `samples`: the number of runs; default: a few, fewer for a long call.
    """
    convolving = max(entering, convolving)
    amounts = _Amounts(inside, between, entering, convolving, functions, partial, smallest)
    order = _Order()
    with order:
        plain = run()
    last = order.producers_of(plain)
    if samples is None:
        samples = FEWER if order.count > LONG else SAMPLES
    sums = [None if r is None else _zeros(r) for r in reference]
    places = (r.device for r in reference if r is not None)
    generator = torch.Generator(next(places, torch.device("cpu"))).manual_seed(seed)
    for number in range(samples):
        with _Noise(generator, amounts, last, number):
            drawn = run()
        for total, value, centre in zip(sums, drawn, reference, strict=False):
            if total is not None and value is not None and centre is not None:
                gap = torch.nan_to_num((value.detach() - centre).abs(), 0.0, 0.0, 0.0)
                total += gap.square()
    # compensates that a few samples underestimate the deviation
    upper = 1 + 1 / math.sqrt(2 * samples)
    return [None if total is None else torch.sqrt(total / samples) * upper for total in sums]


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=torch.float64, device=like.device)


class _Order(TorchDispatchMode):
    """A mode that counts the kernels of a run and records which kernels produced its results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0
        self._maker: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in _written(func, args, kwargs or {}, out):
            self._maker[tensor.untyped_storage().data_ptr()] = self.count
        self.count += 1
        return out

    def producers_of(self, results: Sequence[Tensor | None]) -> frozenset[int]:
        """Return the numbers of the kernels that produced the results, which the caller rounds."""
        pointers = [t.untyped_storage().data_ptr() for t in results if t is not None]
        return frozenset(self._maker[p] for p in pointers if p in self._maker)


def _written(func: Any, args: Any, kwargs: Any, out: Any) -> list[Tensor]:
    """Return the tensors that a kernel computed: its results and its mutated arguments."""
    schema, values = func._schema, [out]
    if _base(func) in EXACT:  # copies and views are as exact as their source
        return []
    if schema.is_mutable:
        given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
        values += [given.get(a.name) for a in schema.arguments if a.is_write]
    leaves = [t for t in tree_leaves(values) if isinstance(t, Tensor) and t.dtype in _WIDE]
    return list({id(t): t for t in leaves}.values())


@cache
def _base(func: Any) -> str:
    name = str(func._schema.name).split("::")[1]
    return name.rstrip("_") if name[:1] != "_" and func._schema.is_mutable else name


def _in_place(func: Any) -> bool:
    """Whether a kernel writes its result into an argument; running statistics do not count."""
    schema = func._schema
    named = {argument.name for argument in schema.arguments if argument.is_write}
    return bool(named & {"self", "out", "input"})


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    more = """_softmax _log_softmax native_layer_norm native_group_norm native_batch_norm
        _native_batch_norm_legit gelu gelu_backward _softmax_backward_data
        _log_softmax_backward_data native_layer_norm_backward nll_loss_forward nll_loss_backward
        elu leaky_relu native_batch_norm_backward silu silu_backward sigmoid_backward
        tanh_backward native_group_norm_backward hardswish hardsigmoid mish softplus
        _fused_rms_norm _scaled_dot_product_flash_attention_for_cpu""".split()
    found = dict(core_aten_decompositions().items())
    found.update(get_decompositions([getattr(aten, n) for n in more if hasattr(aten, n)]))
    return found


def prepare() -> None:
    """Load the modules that the first envelope needs."""
    _decompositions()


@dataclass(frozen=True)
class _Amounts:
    """The roundoffs of a noisy run; see `envelope`."""

    inside: float
    between: float
    entering: float
    convolving: float
    functions: float
    partial: float
    smallest: float


class _Noise(TorchDispatchMode):
    """A mode that decomposes kernels and runs them in float64 with the errors of a
    narrower type.
    """

    def __init__(
        self, generator: torch.Generator, amounts: _Amounts, last: frozenset[int], number: int = 0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self._last = generator, last
        self._coins = torch.Generator().manual_seed(generator.initial_seed() + number)
        self._inside, self._between = amounts.inside, amounts.between
        self._entering, self._convolving = amounts.entering, amounts.convolving
        self._count, self._depth = 0, 0
        self._functions, self._smallest = amounts.functions, amounts.smallest
        self._partial = amounts.partial
        self._stores_product = self._stores_sums = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._depth:
            return self._kernel(func, args, kwargs)
        self._depth += 1
        try:
            out = self._kernel(func, args, kwargs)
        finally:
            self._depth -= 1
        if self._between and self._count not in self._last:
            for tensor in _written(func, args, kwargs, out):
                self._round(tensor, self._between)
        self._count += 1
        return out

    def _kernel(self, func: Any, args: Any, kwargs: Any) -> Any:
        base = _base(func)
        if base not in _KNOWN and not _in_place(func):
            taken_apart = self._decompose(func, args, kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        if base in EXACT:
            return func(*args, **kwargs)
        if base == "convolution" and self._between and args[2] is not None:
            return self._in_two_steps(func, args, kwargs)
        if base in _KNOWN or base in PLAIN or base.startswith("_foreach"):
            return self._with_error_model(base, func, args, kwargs)
        return self._without_error_model(func, args, kwargs)

    def _decompose(self, func: Any, args: Any, kwargs: Any) -> Any:
        parts = _decompositions().get(func)
        if parts is None and func.namespace == "aten" and func._can_decompose():
            parts = func.decompose
        if parts is None:
            return NotImplemented
        before = self._stores_product, self._stores_sums
        self._stores_product = _base(func) in STORES_PRODUCT
        self._stores_sums = _base(func) in STORES_SUMS
        try:
            with self:
                return parts(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError, IndexError, AttributeError):
            return NotImplemented  # not written for these arguments: the kernel runs undecomposed
        finally:
            self._stores_product, self._stores_sums = before

    def _with_error_model(self, base: str, func: Any, args: Any, kwargs: Any) -> Any:
        sizes: Any = None
        entering = self._convolving if base.startswith("convolution") else self._entering
        if base in CONTRACT and entering:
            args = tree_map(lambda x: self._rounded(x, entering), args)
        if base in CONTRACT or base in REDUCE or base in ("var_mean", "std_mean"):
            positive = tree_map(_absolute, (args, kwargs))
            if not func._schema.is_mutable:
                sizes = func(*positive[0], **positive[1])
        fused = _fused_sizes(base, func, args, kwargs)
        out = func(*args, **kwargs)
        tensors = _written(func, args, kwargs, out)
        magnitudes = [t.abs() for t in tensors] if fused is None else fused
        if base == "mul" and self._stores_product:
            self._add_noise(tensors[0], magnitudes[0], self._between)
        if sizes is not None:
            found = [t for t in tree_leaves(sizes) if isinstance(t, Tensor) and t.dtype in _WIDE]
            # the mean errs as a sum, the other result relatively
            if base in ("var_mean", "std_mean"):
                found = [tensors[0], *found[1:]]
            magnitudes = [t.abs() for t in found] if len(found) == len(tensors) else magnitudes
        for i, (tensor, size) in enumerate(zip(tensors, magnitudes, strict=True)):
            amount = self._inside * growth(base, args, tensor, i)
            if base in TRANSCENDENTAL:
                amount = max(amount, self._functions)
            self._add_noise(tensor, size, amount)
        if self._partial and base in SPLIT:
            self._split(tensors[0], *_factors(base, args, kwargs))
        if base == "sum" and self._stores_sums:
            self._add_noise(
                tensors[0], _partial_sums(func, args, kwargs, tensors[0]), self._between
            )
        return out

    def _split(self, out: Tensor, a: Tensor, b: Tensor, alpha: float) -> None:
        """Add the error of a matrix product whose sum is cut into parts that are stored in a narrow
        type, each separately or after each addition.
        """
        parts, way = torch.randint(0, MOST_PARTS, (2,), generator=self._coins).tolist()
        length = -(-a.shape[-1] // 2 ** (parts + 1))
        total = torch.zeros_like(out)
        exact = torch.zeros_like(out)
        for begin in range(0, a.shape[-1], max(1, length)):
            part = a[..., begin : begin + length] @ b[..., begin : begin + length, :]
            exact += part
            self._round(part, self._partial)
            total += part
            if way % 2:
                self._round(total, self._partial)
        out.detach().add_(torch.nan_to_num_(total - exact, 0.0, 0.0, 0.0), alpha=alpha)

    def _in_two_steps(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a convolution and add its bias separately: many devices round the
        result in between.
        """
        made = self._with_error_model("convolution", func, (*args[:2], None, *args[3:]), kwargs)
        self._round(made, self._between)
        made += args[2].view(-1, *[1] * (made.dim() - 2))
        return made

    def _without_error_model(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a kernel without an error model, assumed stable: exact for slightly perturbed
        arguments.
        """
        if not func._schema.is_mutable:
            pointwise = torch.Tag.pointwise in func.tags
            args, kwargs = tree_map(
                lambda x: self._nearby(x, pointwise, 4 * self._inside), (args, kwargs)
            )
        out = func(*args, **kwargs)
        for tensor in _written(func, args, kwargs, out):
            self._add_noise(tensor, tensor.abs(), 4 * self._inside)
        return out

    def _nearby(self, value: Any, pointwise: bool, amount: float) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in _WIDE or not value.numel():
            return value
        size = value.abs()
        moved = value.clone()
        self._add_noise(moved, size if pointwise else size.max().expand(size.shape), amount)
        return moved

    def _rounded(self, value: Any, amount: float) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in _WIDE or not value.numel():
            return value
        moved = value.clone()
        self._round(moved, amount)
        return moved

    def _round(self, tensor: Tensor, amount: float) -> None:
        """Round values to a narrower type, in place, on a shifted grid: equal and adjacent values
        get
        similar errors, and values that the type represents stay unchanged.
        """
        if amount < FINEST:
            self._add_noise(tensor, tensor.abs(), amount)
            return
        tensor = tensor.detach()
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        drawn = torch.empty((), dtype=torch.float64, device=real.device)
        scale = float(2 ** drawn.uniform_(generator=self._generator))
        smallest = self._smallest if amount == self._between else 0.0
        error = _to_nearest(real * scale, amount, smallest).div_(scale).sub_(real)
        error.masked_fill_(_to_nearest(real, amount, smallest) == real, 0.0)
        real.add_(torch.nan_to_num_(error, 0.0, 0.0, 0.0), alpha=EVEN)

    def _add_noise(self, tensor: Tensor, size: Tensor, amount: float) -> None:
        """Add noise of up to ± amount * size, uniformly distributed, in place."""
        if not tensor.numel() or not amount:
            return
        tensor = tensor.detach()
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        noise = torch.empty(real.shape, dtype=torch.float64, device=real.device)
        noise.uniform_(-amount, amount, generator=self._generator)
        size = torch.nan_to_num(size, nan=0.0, posinf=0.0)
        real.addcmul_(noise, size.unsqueeze(-1) if tensor.is_complex() else size)


def _to_nearest(values: Tensor, roundoff: float, smallest: float = 0.0) -> Tensor:
    """Round to the digits of a format with this roundoff, and to multiples of its least number."""
    # the last remaining digit, as a bit pattern of float64
    unit = 1 << 53 + round(math.log2(roundoff))
    bits = values.contiguous().view(torch.int64)
    rounded = (bits + unit // 2).bitwise_and_(-unit).view(torch.float64)
    if not smallest:
        return rounded
    subnormal = values.abs() < smallest / (2 * roundoff)
    return torch.where(subnormal, torch.round(values / smallest) * smallest, rounded)


def _fused_sizes(base: str, func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
    """Return the sum of magnitudes of a sum that contains a product; None for any other kernel."""
    word = base.removeprefix("_foreach_").rstrip("_")
    if word not in FUSED:
        return None
    if word == "lerp":
        pairs = zip(*(tree_leaves(part) for part in args[:2]), strict=True)
        return [a.abs() + b.abs() for a, b in pairs]
    positive = tree_map(_absolute, (args, kwargs))  # copies: the kernel may write them
    out = func(*positive[0], **positive[1])
    return _written(func, positive[0], positive[1], out)


def _factors(base: str, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, float]:
    """Return the two matrices of a product and the factor of the product."""
    first = 0 if base in ("mm", "bmm") else 1
    a, b = args[first : first + 2]
    return a.detach(), b.detach(), float(kwargs.get("alpha", 1.0))


def _partial_sums(func: Any, args: Any, kwargs: Any, total: Tensor) -> Tensor:
    """Return the size of the partial sums of a summation tree, all levels together."""
    squares = func(args[0].square(), *args[1:], **kwargs)
    levels = math.log2(max(2, args[0].numel() / max(1, total.numel())))
    return torch.sqrt(total.square() + levels * squares)


def _absolute(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in _WIDE:
        return value.abs().to(value.dtype)
    return abs(value) if isinstance(value, float) else value
