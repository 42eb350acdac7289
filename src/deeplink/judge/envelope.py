"""What rounding alone may do to a call's results: the call again in float64, with noise.

Monte-Carlo arithmetic: every primitive kernel of the call gets the rounding errors that it would
have in float32 (the arithmetic inside of kernels of float32, float16 and bfloat16), and what one
kernel hands to the next the error of being stored in the call's own type. The standard deviation
over a few such runs is the envelope. Conditioning, cancellation and the length of sums come out of
it, with no number for any operator.
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
    STORES_PRODUCT,
    STORES_SUMS,
    TRANSCENDENTAL,
)

SAMPLES, LONG, FEWER = 12, 300, 6  # runs; of a call with so many kernels, fewer
FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53
FINEST = 2.0**-48  # of what is rounded on the way in float64
EVEN = (
    4 / 3
)  # makes the errors of rounding as large, on the average, as even ones up to the roundoff
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
    samples: int | None = None,
    seed: int = 0,
) -> list[Tensor | None]:
    """The standard deviation of each result of `run`, which computes in float64 where `reference`
    lies.

    `inside`: the roundoff inside of a kernel; `between`: that of the type in which one kernel
    hands its result to the next; `entering`: that to which factors of products are rounded, as
    autocast and TF32 do it; `convolving`: the same of convolutions, where it is more;
    `functions`: what exp, tanh and their like err relatively, where it is more than `inside`;
    `samples`: how many runs; else a few, fewer of a long call.
    """
    amounts = _Amounts(inside, between, entering, max(entering, convolving), functions)
    order = _Order()
    with order:
        plain = run()
    last = order.made_last(plain)
    if samples is None:
        samples = FEWER if order.count > LONG else SAMPLES
    sums = [None if r is None else _zeros(r) for r in reference]
    places = (r.device for r in reference if r is not None)
    generator = torch.Generator(next(places, torch.device("cpu"))).manual_seed(seed)
    for _ in range(samples):
        with _Noise(generator, amounts, last):
            drawn = run()
        for total, value, centre in zip(sums, drawn, reference, strict=False):
            if total is not None and value is not None and centre is not None:
                gap = torch.nan_to_num((value.detach() - centre).abs(), 0.0, 0.0, 0.0)
                total += gap.square()
    upper = 1 + 1 / math.sqrt(2 * samples)  # a few samples may be all too much alike
    return [None if total is None else torch.sqrt(total / samples) * upper for total in sums]


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=torch.float64, device=like.device)


class _Order(TorchDispatchMode):
    """Counts the kernels of a run, and knows which of them made its results."""

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

    def made_last(self, results: Sequence[Tensor | None]) -> frozenset[int]:
        """The numbers of the kernels that the results come from: the caller rounds those."""
        pointers = [t.untyped_storage().data_ptr() for t in results if t is not None]
        return frozenset(self._maker[p] for p in pointers if p in self._maker)


def _written(func: Any, args: Any, kwargs: Any, out: Any) -> list[Tensor]:
    """What a kernel computed: its results, and the arguments that it writes."""
    schema, values = func._schema, [out]
    if _base(func) in EXACT:  # a copy or a view: as exact as what it was made of
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
    """A kernel that writes what it is given as its result; statistics on the way do not count."""
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


@dataclass(frozen=True)
class _Amounts:
    """Roundoffs; see `envelope`."""

    inside: float
    between: float
    entering: float
    convolving: float
    functions: float


class _Noise(TorchDispatchMode):
    """Runs kernels in float64, taken apart, with the errors of a narrower arithmetic."""

    def __init__(self, generator: torch.Generator, amounts: _Amounts, last: frozenset[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator, self._last = generator, last
        self._inside, self._between = amounts.inside, amounts.between
        self._entering, self._convolving = amounts.entering, amounts.convolving
        self._count, self._depth = 0, 0
        self._functions = amounts.functions
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
            taken_apart = self._take_apart(func, args, kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        if base in EXACT:
            return func(*args, **kwargs)
        if base == "convolution" and self._between and args[2] is not None:
            return self._in_two_steps(func, args, kwargs)
        if base in _KNOWN or base in PLAIN or base.startswith("_foreach"):
            return self._known(base, func, args, kwargs)
        return self._unknown(func, args, kwargs)

    def _take_apart(self, func: Any, args: Any, kwargs: Any) -> Any:
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
            return NotImplemented  # not written for these arguments: the kernel as a whole
        finally:
            self._stores_product, self._stores_sums = before

    def _known(self, base: str, func: Any, args: Any, kwargs: Any) -> Any:
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
            self._stir(tensors[0], magnitudes[0], self._between)
        if sizes is not None:
            found = [t for t in tree_leaves(sizes) if isinstance(t, Tensor) and t.dtype in _WIDE]
            if base in ("var_mean", "std_mean"):  # the mean errs as a sum, the other relatively
                found = [tensors[0], *found[1:]]
            magnitudes = [t.abs() for t in found] if len(found) == len(tensors) else magnitudes
        for i, (tensor, size) in enumerate(zip(tensors, magnitudes, strict=True)):
            amount = self._inside * _growth(base, args, tensor, i)
            if base in TRANSCENDENTAL:
                amount = max(amount, self._functions)
            self._stir(tensor, size, amount)
        if base == "sum" and self._stores_sums:
            self._stir(tensors[0], _partial_sums(func, args, kwargs, tensors[0]), self._between)
        return out

    def _in_two_steps(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A convolution, and then its bias: many devices store what lies between."""
        made = self._known("convolution", func, (*args[:2], None, *args[3:]), kwargs)
        self._round(made, self._between)
        made += args[2].view(-1, *[1] * (made.dim() - 2))
        return made

    def _unknown(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A kernel about which nothing is known: stable, that is exact for arguments nearby."""
        if not func._schema.is_mutable:
            pointwise = torch.Tag.pointwise in func.tags
            args, kwargs = tree_map(
                lambda x: self._nearby(x, pointwise, 4 * self._inside), (args, kwargs)
            )
        out = func(*args, **kwargs)
        for tensor in _written(func, args, kwargs, out):
            self._stir(tensor, tensor.abs(), 4 * self._inside)
        return out

    def _nearby(self, value: Any, pointwise: bool, amount: float) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in _WIDE or not value.numel():
            return value
        size = value.abs()
        moved = value.clone()
        self._stir(moved, size if pointwise else size.max().expand(size.shape), amount)
        return moved

    def _rounded(self, value: Any, amount: float) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in _WIDE or not value.numel():
            return value
        moved = value.clone()
        self._round(moved, amount)
        return moved

    def _round(self, tensor: Tensor, amount: float) -> None:
        """Stores values in a narrower type, in place: equal and near ones err alike, on a grid
        that is moved; those that the type has are stored as they are.
        """
        if amount < FINEST:
            self._stir(tensor, tensor.abs(), amount)
            return
        tensor = tensor.detach()
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        drawn = torch.empty((), dtype=torch.float64, device=real.device)
        scale = float(2 ** drawn.uniform_(generator=self._generator))
        error = _to_nearest(real * scale, amount).div_(scale).sub_(real)
        error.masked_fill_(_to_nearest(real, amount) == real, 0.0)
        real.add_(torch.nan_to_num_(error, 0.0, 0.0, 0.0), alpha=EVEN)

    def _stir(self, tensor: Tensor, size: Tensor, amount: float) -> None:
        """Adds up to ± amount * size, evenly, in place."""
        if not tensor.numel() or not amount:
            return
        tensor = tensor.detach()
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        noise = torch.empty(real.shape, dtype=torch.float64, device=real.device)
        noise.uniform_(-amount, amount, generator=self._generator)
        size = torch.nan_to_num(size, nan=0.0, posinf=0.0)
        real.addcmul_(noise, size.unsqueeze(-1) if tensor.is_complex() else size)


def _to_nearest(values: Tensor, roundoff: float) -> Tensor:
    """Rounded to the digits of a format of this roundoff, whatever its range."""
    unit = 1 << 53 + round(math.log2(roundoff))  # the last digit that is left, among float64's
    bits = values.contiguous().view(torch.int64)
    return (bits + unit // 2).bitwise_and_(-unit).view(torch.float64)


def _fused_sizes(base: str, func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
    """Of a sum with a product in it: the sum of the magnitudes; None for any other kernel."""
    word = base.removeprefix("_foreach_").rstrip("_")
    if word not in FUSED:
        return None
    if word == "lerp":
        pairs = zip(*(tree_leaves(part) for part in args[:2]), strict=True)
        return [a.abs() + b.abs() for a, b in pairs]
    positive = tree_map(_absolute, (args, kwargs))  # copies: the kernel may write them
    out = func(*positive[0], **positive[1])
    return _written(func, positive[0], positive[1], out)


def _partial_sums(func: Any, args: Any, kwargs: Any, total: Tensor) -> Tensor:
    """The size of the partial sums of a tree, all levels together."""
    squares = func(args[0].square(), *args[1:], **kwargs)
    levels = math.log2(max(2, args[0].numel() / max(1, total.numel())))
    return torch.sqrt(total.square() + levels * squares)


def _absolute(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in _WIDE:
        return value.abs().to(value.dtype)
    return abs(value) if isinstance(value, float) else value


def _growth(base: str, args: Any, out: Tensor, place: int) -> float:
    """How the error of a kernel grows: with the square root of the terms that it adds."""
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
