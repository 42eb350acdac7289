"""The judge judged: kernels with seeded bugs, and correct ones that compute in another order.

Every kernel is a function of arguments in the type under test. `right` must get grade A from every
profile, `wrong` must lose it for at least one of them: a bug that no profile shows is a miss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink.judge import envelope
from deeplink.judge.formats import FORMATS
from diopi.conformance.grading import Judged, grade

Kernel = Callable[..., Tensor]
Make = Callable[[torch.Generator], tuple[Tensor, ...]]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Group:
    """An op, the arguments by profile, and kernels for it."""

    name: str
    reference: Kernel
    profiles: dict[str, Make]
    right: dict[str, Kernel] = field(default_factory=dict)
    wrong: dict[str, Kernel] = field(default_factory=dict)
    half_only: frozenset[str] = frozenset()  # bugs that are none in float32
    float32_only: frozenset[str] = frozenset()  # bugs below the resolution of half types

    def bugs(self, dtype: torch.dtype) -> dict[str, Kernel]:
        left_out = self.half_only if dtype not in HALF else self.float32_only
        return {name: kernel for name, kernel in self.wrong.items() if name not in left_out}


@dataclass(frozen=True)
class Outcome:
    """What the judge said of one kernel: the grade by profile."""

    group: str
    dtype: str
    kernel: str
    is_bug: bool
    judged: dict[str, Judged]

    @property
    def noticed(self) -> bool:
        return any(one.grade != "A" for one in self.judged.values())

    def __str__(self) -> str:
        said = {p: (one.grade, str(one.verdict)[:90]) for p, one in self.judged.items()}
        return f"{self.group} {self.dtype} {self.kernel}: {said}"


def run(group: Group, dtype: torch.dtype, seed: int) -> Iterator[Outcome]:
    """Every kernel of a group under every profile."""
    kernels = [(name, False, k) for name, k in group.right.items()]
    kernels += [(name, True, k) for name, k in group.bugs(dtype).items()]
    said: dict[str, dict[str, Judged]] = {name: {} for name, _, _ in kernels}
    for profile, make in group.profiles.items():
        generator = torch.Generator().manual_seed(seed)
        args = tuple(_rounded(arg, dtype) for arg in make(generator))
        wide = tuple(arg.double() if arg.is_floating_point() else arg for arg in args)
        centre = group.reference(*wide)
        sigma: list[Tensor | None] = []

        def noise(
            wide: tuple[Tensor, ...] = wide,
            centre: Tensor = centre,
            sigma: list[Tensor | None] = sigma,
        ) -> Tensor | None:
            if not sigma:
                between = FORMATS[dtype].roundoff
                run = lambda: [group.reference(*wide)]  # noqa: E731
                sigma.extend(envelope(run, [centre], between=between))
            return sigma[0]

        for name, _, kernel in kernels:
            said[name][profile] = grade(kernel(*args), centre, lambda: None, noise)
    for name, is_bug, _ in kernels:
        yield Outcome(group.name, str(dtype)[6:], name, is_bug, said[name])


def _rounded(arg: Tensor, dtype: torch.dtype) -> Tensor:
    return arg.to(dtype) if arg.is_floating_point() else arg


# Arguments.


def _normal(*shapes: tuple[int, ...], scale: float = 1.0, shift: float = 0.0) -> Make:
    def make(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(
            torch.randn(shape, generator=generator, dtype=torch.float64) * scale + shift
            for shape in shapes
        )

    return make


def _positive(*shapes: tuple[int, ...]) -> Make:
    normal = _normal(*shapes)
    return lambda generator: tuple(t.abs() for t in normal(generator))


# What correct kernels and bugs are made of.


def _trunc(values: Tensor, dtype: torch.dtype) -> Tensor:
    """To a half type by cutting digits off; from the float32 result."""
    digits = FORMATS[dtype].digits
    bits = values.float().contiguous().view(torch.int32)
    return (bits & ~((1 << (24 - digits)) - 1)).view(torch.float32).to(dtype)


def _tf32(values: Tensor) -> Tensor:
    bits = values.float().contiguous().view(torch.int32)
    return (bits & ~((1 << 13) - 1)).view(torch.float32)


def _fast_exp(values: Tensor) -> Tensor:
    return torch.exp2(values.float() * math.log2(math.e))


def _ripple(values: Tensor) -> Tensor:
    return values.exp() * (1 + 1e-3 * torch.sin(50 * values))


def _hit(values: Tensor) -> Tensor:
    """One element is wrong, by a little more than rounding."""
    flat = values.clone().reshape(-1)
    at = flat.numel() // 2
    flat[at] = flat[at] * 1.1 + 0.01
    return flat.reshape(values.shape)


def _tail_lost(values: Tensor) -> Tensor:
    """The last elements were never written."""
    flat = values.clone().reshape(-1)
    flat[-3:] = 0
    return flat.reshape(values.shape)


def _in(kernel: Kernel) -> Kernel:
    """In float32, rounded once."""
    return lambda *args: kernel(*(a.float() if a.is_floating_point() else a for a in args)).to(
        args[0].dtype
    )


def _cut(kernel: Kernel) -> Kernel:
    """In float32, and cut off instead of rounded."""
    return lambda *args: _trunc(
        kernel(*(a.float() if a.is_floating_point() else a for a in args)), args[0].dtype
    )


def _after(kernel: Kernel, then: Callable[[Tensor], Tensor]) -> Kernel:
    return lambda *args: then(_in(kernel)(*args))


def _common(kernel: Kernel) -> dict[str, Kernel]:
    """The bugs that any kernel may have."""
    return {
        "truncation": _cut(kernel),
        "one wrong element": _after(kernel, _hit),
        "tail not written": _after(kernel, _tail_lost),
    }


# Sums.


def _sequential(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Along the last dimension, one after the other, in a type."""
    total = torch.zeros(x.shape[:-1], dtype=dtype)
    for i in range(x.shape[-1]):
        total = total + x[..., i].to(dtype)
    return total


def _split(x: Tensor, parts: int = 8) -> Tensor:
    return torch.stack([p.sum(-1) for p in x.chunk(parts, -1)]).sum(0)


_ROWS = (24, 1031)
_SUMS = {
    "normal": _normal(_ROWS),
    "positive": _positive(_ROWS),
    "offset": _normal(_ROWS, scale=0.1, shift=4.0),
}


def _sum() -> Group:
    def total(x: Tensor) -> Tensor:
        return x.sum(-1)

    return Group(
        "sum",
        total,
        _SUMS,
        {
            "eager": _in(total),
            "sequential": lambda x: _sequential(x, torch.float32).to(x.dtype),
            "split": _in(_split),
        },
        {
            "accumulates in its type": lambda x: _sequential(x, x.dtype),
            "drops the last": _in(lambda x: x[..., :-1].sum(-1)),
            "drops the tail of 16": _in(lambda x: x[..., : x.shape[-1] // 16 * 16].sum(-1)),
            "counts one twice": _in(lambda x: x.sum(-1) + x[..., 0]),
            "one wrong element": _after(total, _hit),
        },
        frozenset({"accumulates in its type"}),
    )


def _mean() -> Group:
    def mean(x: Tensor) -> Tensor:
        return x.mean(-1)

    return Group(
        "mean",
        mean,
        _SUMS,
        {"eager": _in(mean), "split": _in(lambda x: _split(x) / x.shape[-1])},
        {
            "divides by n - 1": _in(lambda x: x.sum(-1) / (x.shape[-1] - 1)),
            "accumulates in its type": lambda x: _sequential(x, x.dtype) / x.shape[-1],
            "drops the last": _in(lambda x: x[..., :-1].mean(-1)),
        },
        # one part in a thousand is less than half types resolve
        frozenset({"accumulates in its type"}),
        frozenset({"divides by n - 1", "drops the last"}),
    )


def _one_pass(x: Tensor) -> Tensor:
    n = x.shape[-1]
    return ((x * x).sum(-1) - x.sum(-1) ** 2 / n) / (n - 1)


def _var() -> Group:
    def var(x: Tensor) -> Tensor:
        return x.var(-1)

    short = (600, 33)
    return Group(
        "var",
        var,
        {
            "normal": _normal(short),
            "offset": _normal(short, scale=0.1, shift=16.0),
            "small": _normal(short, scale=0.003),
        },
        {
            "eager": _in(var),
            "two passes": _in(
                lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1) / (x.shape[-1] - 1)
            ),
        },
        {
            "biased": _in(lambda x: x.var(-1, correction=0)),
            "one pass": _in(_one_pass),
            "drops the last": _in(lambda x: x[..., :-1].var(-1)),
            "truncation": _cut(var),
        },
        frozenset({"truncation"}),
        frozenset({"one pass"}),  # in float32 it is below what half types resolve
    )


def _cumsum() -> Group:
    def cumsum(x: Tensor) -> Tensor:
        return x.cumsum(-1)

    def in_type(x: Tensor) -> Tensor:
        found, total = [], torch.zeros(x.shape[:-1], dtype=x.dtype)
        for i in range(x.shape[-1]):
            total = total + x[..., i]
            found.append(total)
        return torch.stack(found, -1)

    return Group(
        "cumsum",
        cumsum,
        {"normal": _normal((6, 515)), "positive": _positive((6, 515))},
        {"eager": _in(cumsum), "sequential": lambda x: in_type(x.float()).to(x.dtype)},
        {
            "accumulates in its type": in_type,
            "exclusive": _in(lambda x: x.cumsum(-1) - x),
            **_common(cumsum),
        },
        frozenset({"accumulates in its type", "truncation"}),
    )


# Products.


def _by_k(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros((a.shape[0], b.shape[1]), dtype=dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1].to(dtype) * b[k : k + 1].to(dtype)
    return total


def _matmul() -> Group:
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def split_k(a: Tensor, b: Tensor) -> Tensor:
        pairs = zip(a.chunk(8, 1), b.chunk(8, 0), strict=True)
        return torch.stack([x @ y for x, y in pairs]).sum(0)

    def strides_ignored(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.t().contiguous().reshape(b.shape)

    shapes = ((33, 1031), (1031, 17))
    return Group(
        "matmul",
        product,
        {"normal": _normal(*shapes), "positive": _positive(*shapes)},
        {
            "eager": _in(product),
            "split-K": _in(split_k),
            "sequential": lambda a, b: _by_k(a, b, torch.float32).to(a.dtype),
        },
        {
            "accumulates in its type": lambda a, b: _by_k(a, b, a.dtype),
            "tf32": lambda a, b: _tf32(a) @ _tf32(b),
            "bfloat16 inside": lambda a, b: a.bfloat16().float() @ b.bfloat16().float(),
            "drops the last of K": _in(lambda a, b: a[:, :-1] @ b[:-1]),
            "drops the tail of 16": _in(lambda a, b: a[:, :1024] @ b[:1024]),
            "ignores strides": _in(strides_ignored),
            **_common(product),
        },
        frozenset({"accumulates in its type", "truncation"}),
        frozenset({"tf32", "bfloat16 inside"}),
    )


def _conv() -> Group:
    def conv(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1)

    def unfolded(x: Tensor, w: Tensor) -> Tensor:
        columns = F.unfold(x, w.shape[2:], padding=1)
        return (w.flatten(1) @ columns).reshape(x.shape[0], w.shape[0], *x.shape[2:])

    def in_type(x: Tensor, w: Tensor) -> Tensor:
        columns = F.unfold(x.float(), w.shape[2:], padding=1).to(x.dtype)
        return torch.stack([_by_k(w.flatten(1), c, x.dtype) for c in columns]).reshape(
            x.shape[0], w.shape[0], *x.shape[2:]
        )

    shapes = ((2, 19, 9, 11), (7, 19, 3, 3))
    return Group(
        "conv2d",
        conv,
        {"normal": _normal(*shapes), "positive": _positive(*shapes)},
        {"eager": _in(conv), "im2col": _in(unfolded)},
        {
            "accumulates in its type": in_type,
            "padding off by one": _in(lambda x, w: F.conv2d(F.pad(x, (2, 0, 1, 1)), w)),
            "drops a channel": _in(lambda x, w: F.conv2d(x[:, :-1], w[:, :-1], padding=1)),
            "kernel flipped": _in(lambda x, w: F.conv2d(x, w.flip(-1), padding=1)),
            **_common(conv),
        },
        frozenset({"accumulates in its type", "truncation"}),
    )


# Softmax and attention.


def _softmax() -> Group:
    def softmax(x: Tensor) -> Tensor:
        return x.softmax(-1)

    def online(x: Tensor) -> Tensor:
        top = torch.full((*x.shape[:-1], 1), -math.inf)
        total = torch.zeros_like(top)
        for part in x.split(64, -1):
            now = torch.maximum(top, part.amax(-1, keepdim=True))
            total = total * (top - now).exp() + (part - now).exp().sum(-1, keepdim=True)
            top = now
        return (x - top).exp() / total

    def fast(x: Tensor) -> Tensor:
        e = _fast_exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    def ripple(x: Tensor) -> Tensor:
        e = _ripple(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    def in_type(x: Tensor) -> Tensor:
        e = (x.float() - x.float().amax(-1, keepdim=True)).exp().to(x.dtype)
        return (e / _sequential(e, x.dtype).unsqueeze(-1)).to(x.dtype)

    def unshifted(x: Tensor) -> Tensor:
        e = x.exp()
        return e / e.sum(-1, keepdim=True)

    def last_left_out(x: Tensor) -> Tensor:
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e[..., :-1].sum(-1, keepdim=True)

    rows = (24, 515)
    return Group(
        "softmax",
        softmax,
        {
            "normal": _normal(rows),
            "large": _normal(rows, scale=8.0, shift=100.0),
            "alike": _normal(rows, scale=0.01),
        },
        {"eager": _in(softmax), "online": _in(online), "fast exp": _in(fast)},
        {
            "accumulates in its type": in_type,
            "maximum not subtracted": _in(unshifted),
            "last left out of the sum": _in(last_left_out),
            "a ripple of 1e-3": _in(ripple),
            "over another dimension": _in(lambda x: x.softmax(0)),
            **_common(softmax),
        },
        frozenset({"accumulates in its type", "truncation"}),
        frozenset({"a ripple of 1e-3"}),
    )


def _softmax_backward() -> Group:
    def backward(g: Tensor, y: Tensor) -> Tensor:
        return y * (g - (g * y).sum(-1, keepdim=True))

    def make(scale: float) -> Make:
        normal = _normal((24, 515), (24, 515))

        def pair(generator: torch.Generator) -> tuple[Tensor, ...]:
            g, x = normal(generator)
            return g, (x * scale).softmax(-1)

        return pair

    return Group(
        "softmax_backward",
        backward,
        {"normal": make(1.0), "sharp": make(8.0)},
        {"eager": _in(backward)},
        {
            "forgets the sum": _in(lambda g, y: y * g),
            "sums without y": _in(lambda g, y: y * (g - g.mean(-1, keepdim=True))),
            **_common(backward),
        },
        frozenset({"truncation"}),
    )


def _attention() -> Group:
    keys, width = 65, 32
    mask = torch.ones(keys, keys, dtype=torch.bool).tril()

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor = mask) -> Tensor:
        scores = (q @ k.mT) / math.sqrt(width)
        return scores.masked_fill(~mask, -math.inf).softmax(-1) @ v

    def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        top = torch.full((*q.shape[:-1], 1), -math.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for at in range(0, keys, 16):
            scores = (q @ k[:, at : at + 16].mT) / math.sqrt(width)
            scores = scores.masked_fill(~mask[:, at : at + 16], -math.inf)
            now = torch.maximum(top, scores.amax(-1, keepdim=True))
            p = (scores - now).exp()
            total = total * (top - now).exp() + p.sum(-1, keepdim=True)
            out = out * (top - now).exp() + p @ v[:, at : at + 16]
            top = now
        return out / total

    late = torch.ones(keys, keys, dtype=torch.bool).tril(1)
    shape = (2, keys, width)
    return Group(
        "attention",
        attend,
        {"normal": _normal(shape, shape, shape), "sharp": _normal(shape, shape, shape, scale=2.0)},
        {"eager": _in(attend), "flash": _in(flash)},
        {
            "mask off by one": _in(lambda q, k, v: attend(q, k, v, late)),
            "no scale": _in(lambda q, k, v: attend(q * math.sqrt(width), k, v)),
            "no mask": _in(lambda q, k, v: attend(q, k, v, torch.ones_like(mask))),
            **_common(attend),
        },
        frozenset({"truncation"}),
    )


# Normalisation.


def _layer_norm() -> Group:
    def norm(x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w, b, eps)

    def two_passes(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * w + b

    def with_var(var: Callable[[Tensor], Tensor]) -> Kernel:
        def kernel(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            return centred / (var(x).unsqueeze(-1) + 1e-5).sqrt() * w + b

        return kernel

    def outside(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (x.var(-1, correction=0, keepdim=True).sqrt() + 1e-5) * w + b

    def statistics_in_type(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        mean = _sequential(x, x.dtype) / x.shape[-1]
        centred = x.float() - mean.float().unsqueeze(-1)
        var = centred.square().mean(-1, keepdim=True)
        return (centred * torch.rsqrt(var + 1e-5) * w.float() + b.float()).to(x.dtype)

    shapes = ((40, 67), (67,), (67,))

    def make(scale: float, shift: float) -> Make:
        normal = _normal(*shapes)

        def scaled(generator: torch.Generator) -> tuple[Tensor, ...]:
            x, w, b = normal(generator)
            return x * scale + shift, w, b

        return scaled

    return Group(
        "layer_norm",
        norm,
        {"normal": make(1.0, 0.0), "offset": make(0.5, 16.0), "small": make(0.003, 0.0)},
        {"eager": _in(norm), "two passes": _in(two_passes)},
        {
            "eps 1e-6": _in(lambda x, w, b: norm(x, w, b, 1e-6)),
            "eps outside of the root": _in(outside),
            "unbiased variance": _in(with_var(lambda x: x.var(-1))),
            "one pass": _in(with_var(lambda x: (x * x).mean(-1) - x.mean(-1) ** 2)),
            "statistics in its type": statistics_in_type,
            "no bias": _in(lambda x, w, b: norm(x, w, torch.zeros_like(b))),
            **_common(norm),
        },
        frozenset({"statistics in its type", "truncation"}),
        frozenset({"one pass"}),  # in float32 it is below what half types resolve
    )


def _rms_norm() -> Group:
    def norm(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w

    shapes = ((40, 67), (67,))

    def make(scale: float) -> Make:
        normal = _normal(*shapes)

        def scaled(generator: torch.Generator) -> tuple[Tensor, ...]:
            x, w = normal(generator)
            return x * scale, w

        return scaled

    return Group(
        "rms_norm",
        norm,
        {"normal": make(1.0), "small": make(0.001)},
        {"eager": _in(norm), "divides": _in(lambda x, w: x / (
            x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w)},
        {
            "eps 1e-5": _in(lambda x, w: norm(x, w, 1e-5)),
            "mean subtracted": _in(lambda x, w: norm(x - x.mean(-1, keepdim=True), w)),
            "divides by n - 1": _in(lambda x, w: norm(x, w) * math.sqrt(66 / 67)),
            "no weight": _in(lambda x, w: norm(x, torch.ones_like(w))),
            **_common(norm),
        },
        frozenset({"truncation"}),
    )  # fmt: skip


def _batch_norm() -> Group:
    def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
        return F.batch_norm(x, None, None, training=True, eps=eps)

    def unbiased(x: Tensor) -> Tensor:
        mean, var = x.mean((0, 2), keepdim=True), x.var((0, 2), keepdim=True)
        return (x - mean) * torch.rsqrt(var + 1e-5)

    shape = (5, 13, 9)
    return Group(
        "batch_norm",
        norm,
        {"normal": _normal(shape), "small": _normal(shape, scale=0.003),
         "offset": _normal(shape, scale=0.5, shift=16.0)},
        {"eager": _in(norm)},
        {
            "eps 1e-3": _in(lambda x: norm(x, 1e-3)),
            "unbiased variance": _in(unbiased),
            "statistics of each sample": _in(lambda x: F.instance_norm(x)),
            **_common(norm),
        },
        frozenset({"truncation"}),
    )  # fmt: skip


# Element by element.

_FLAT = (4099,)


def _pointwise(
    name: str, kernel: Kernel, right: dict[str, Kernel], wrong: dict[str, Kernel],
    float32_only: frozenset[str] = frozenset(),
) -> Group:  # fmt: skip
    return Group(
        name,
        kernel,
        {"normal": _normal(_FLAT), "large": _normal(_FLAT, scale=4.0)},
        {"eager": _in(kernel), **right},
        {**wrong, **_common(kernel)},
        frozenset({"truncation"}),
        float32_only,
    )


def _activations() -> Iterator[Group]:
    def erf_gelu(x: Tensor) -> Tensor:
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    yield _pointwise(
        "gelu",
        F.gelu,
        {"by erf": _in(erf_gelu)},
        {
            "tanh": _in(lambda x: F.gelu(x, approximate="tanh")),
            "sigmoid": _in(lambda x: x * torch.sigmoid(1.702 * x)),
        },
    )
    yield _pointwise(
        "sigmoid",
        torch.sigmoid,
        {"fast exp": _in(lambda x: 1 / (1 + _fast_exp(-x)))},
        {
            "hard": _in(F.hardsigmoid),
            "a ripple of 1e-3": _in(lambda x: 1 / (1 + _ripple(-x))),
        },
        frozenset({"a ripple of 1e-3"}),
    )
    yield _pointwise(
        "silu",
        F.silu,
        {"fast exp": _in(lambda x: x / (1 + _fast_exp(-x)))},
        {"hard": _in(F.hardswish), "no product": _in(torch.sigmoid)},
    )
    yield _pointwise(
        "exp",
        torch.exp,
        {"fast exp": _in(_fast_exp)},
        {"a ripple of 1e-3": _in(_ripple), "expm1": _in(torch.expm1)},
        frozenset({"a ripple of 1e-3"}),
    )
    yield _pointwise(
        "tanh",
        torch.tanh,
        {"by sigmoid": _in(torch.tanh)},
        {"first terms": _in(lambda x: (x - x**3 / 3).clamp(-1, 1))},
    )


def _add() -> Group:
    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + 0.5 * y

    def transposed(x: Tensor, y: Tensor) -> Tensor:
        return add(x, y.mT.contiguous().reshape(y.shape))

    def shifted(x: Tensor, y: Tensor) -> Tensor:
        return add(x, y.reshape(-1).roll(1).reshape(y.shape))

    shape = (63, 65)
    return Group(
        "add",
        add,
        {"normal": _normal(shape, shape), "offset": _normal(shape, shape, shift=16.0)},
        {"eager": _in(add), "fused": _in(lambda x, y: torch.add(x, y, alpha=0.5))},
        {
            "alpha ignored": _in(lambda x, y: x + y),
            "ignores strides": _in(transposed),
            "ignores the offset": _in(shifted),
            "broadcasts a row": _in(lambda x, y: add(x, y[:1].expand_as(y))),
            **_common(add),
        },
        frozenset({"truncation"}),
    )


# Indices, pooling, losses.


def _index_add() -> Group:
    where = torch.arange(400) % 7

    def add(x: Tensor) -> Tensor:
        return torch.zeros(7, x.shape[1], dtype=x.dtype).index_add(0, where, x)

    def last_wins(x: Tensor) -> Tensor:
        return torch.stack([x[where == i][-1] for i in range(7)])

    def in_type(x: Tensor) -> Tensor:
        return torch.stack([_sequential(x[where == i].mT, x.dtype) for i in range(7)])

    shape = (400, 40)
    return Group(
        "index_add",
        add,
        {"normal": _normal(shape), "positive": _positive(shape)},
        {"eager": _in(add)},
        {
            "the last one wins": last_wins,
            "accumulates in its type": in_type,
            "drops the last": _in(lambda x: add(torch.cat([x[:-1], torch.zeros_like(x[:1])]))),
            **_common(add),
        },
        frozenset({"accumulates in its type", "truncation"}),
    )


def _pools() -> Iterator[Group]:
    shape = (3, 5, 13, 15)
    profiles = {
        "normal": _normal(shape),
        "negative": lambda g: tuple(-t for t in _positive(shape)(g)),
    }

    def largest(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, 1)

    yield Group(
        "max_pool2d",
        largest,
        profiles,
        {"eager": _in(largest)},
        {
            "pads with zero": _in(lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)),
            "window off by one": _in(lambda x: largest(x.roll(1, -1))),
            "one wrong element": _after(largest, _hit),
            "tail not written": _after(largest, _tail_lost),
        },
    )

    def average(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 2, 1)

    yield Group(
        "avg_pool2d",
        average,
        profiles,
        {"eager": _in(average)},
        {
            "padding not counted": _in(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
            **_common(average),
        },
        frozenset({"truncation"}),
    )


def _cross_entropy() -> Group:
    target = torch.arange(300) % 33
    target[::10] = -100

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    def ignored(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target.clamp(min=0), reduction="none")

    shape = (300, 33)
    return Group(
        "cross_entropy",
        loss,
        {"normal": _normal(shape), "large": _normal(shape, scale=8.0, shift=100.0)},
        {"eager": _in(loss)},
        {
            "ignore_index ignored": _in(ignored),
            "target off by one": _in(
                lambda x: F.cross_entropy(x.roll(1, -1), target, reduction="none")
            ),
            "maximum not subtracted": _in(
                lambda x: (
                    (x.exp().sum(-1).log() - x.gather(-1, target.clamp(min=0)[:, None])[:, 0])
                    * (target >= 0)
                )
            ),
            "truncation": _cut(loss),
        },
        frozenset({"truncation"}),
    )


GROUPS: tuple[Group, ...] = (
    _sum(), _mean(), _var(), _cumsum(), _matmul(), _conv(), _softmax(), _softmax_backward(),
    _attention(), _layer_norm(), _rms_norm(), _batch_norm(), *_activations(), _add(), _index_add(),
    *_pools(), _cross_entropy(),
)  # fmt: skip
