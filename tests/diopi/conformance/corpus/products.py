"""Products, softmax and attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.diopi.conformance.corpus.group import Group, Make
from tests.diopi.conformance.corpus.making import (
    common_bugs,
    fast_exp,
    normals,
    positives,
    rippled_exp,
    rounded_once,
    sequential,
    tf32,
)


def _by_k(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.zeros((a.shape[0], b.shape[1]), dtype=dtype)
    for k in range(a.shape[1]):
        total = total + a[:, k : k + 1].to(dtype) * b[k : k + 1].to(dtype)
    return total


def matmul_group() -> Group:
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
        {"normal": normals(*shapes), "positive": positives(*shapes)},
        {
            "eager": rounded_once(product),
            "split-K": rounded_once(split_k),
            "sequential": lambda a, b: _by_k(a, b, torch.float32).to(a.dtype),
        },
        {
            "accumulates in its type": lambda a, b: _by_k(a, b, a.dtype),
            "tf32": lambda a, b: tf32(a) @ tf32(b),
            "bfloat16 inside": lambda a, b: a.bfloat16().float() @ b.bfloat16().float(),
            "drops the last of K": rounded_once(lambda a, b: a[:, :-1] @ b[:-1]),
            "drops the tail of 16": rounded_once(lambda a, b: a[:, :1024] @ b[:1024]),
            "ignores strides": rounded_once(strides_ignored),
            **common_bugs(product),
        },
        frozenset({"accumulates in its type", "truncation"}),
        frozenset({"tf32", "bfloat16 inside"}),
    )


def conv_group() -> Group:
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
        {"normal": normals(*shapes), "positive": positives(*shapes)},
        {"eager": rounded_once(conv), "im2col": rounded_once(unfolded)},
        {
            "accumulates in its type": in_type,
            "padding off by one": rounded_once(lambda x, w: F.conv2d(F.pad(x, (2, 0, 1, 1)), w)),
            "drops a channel": rounded_once(lambda x, w: F.conv2d(x[:, :-1], w[:, :-1], padding=1)),
            "kernel flipped": rounded_once(lambda x, w: F.conv2d(x, w.flip(-1), padding=1)),
            **common_bugs(conv),
        },
        frozenset({"accumulates in its type", "truncation"}),
    )


# Softmax and attention.


def softmax_group() -> Group:
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
        e = fast_exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    def ripple(x: Tensor) -> Tensor:
        e = rippled_exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    def in_type(x: Tensor) -> Tensor:
        e = (x.float() - x.float().amax(-1, keepdim=True)).exp().to(x.dtype)
        return (e / sequential(e, x.dtype).unsqueeze(-1)).to(x.dtype)

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
            "normal": normals(rows),
            "large": normals(rows, scale=8.0, shift=100.0),
            "alike": normals(rows, scale=0.01),
        },
        {
            "eager": rounded_once(softmax),
            "online": rounded_once(online),
            "fast exp": rounded_once(fast),
        },
        {
            "accumulates in its type": in_type,
            "maximum not subtracted": rounded_once(unshifted),
            "last left out of the sum": rounded_once(last_left_out),
            "a ripple of 1e-3": rounded_once(ripple),
            "over another dimension": rounded_once(lambda x: x.softmax(0)),
            **common_bugs(softmax),
        },
        frozenset({"accumulates in its type", "truncation"}),
        frozenset({"a ripple of 1e-3"}),
    )


def softmax_backward_group() -> Group:
    def backward(g: Tensor, y: Tensor) -> Tensor:
        return y * (g - (g * y).sum(-1, keepdim=True))

    def make(scale: float) -> Make:
        normal = normals((24, 515), (24, 515))

        def pair(generator: torch.Generator) -> tuple[Tensor, ...]:
            g, x = normal(generator)
            return g, (x * scale).softmax(-1)

        return pair

    return Group(
        "softmax_backward",
        backward,
        {"normal": make(1.0), "sharp": make(8.0)},
        {"eager": rounded_once(backward)},
        {
            "forgets the sum": rounded_once(lambda g, y: y * g),
            "sums without y": rounded_once(lambda g, y: y * (g - g.mean(-1, keepdim=True))),
            **common_bugs(backward),
        },
        frozenset({"truncation"}),
    )


def attention_group() -> Group:
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
        {"normal": normals(shape, shape, shape), "sharp": normals(shape, shape, shape, scale=2.0)},
        {"eager": rounded_once(attend), "flash": rounded_once(flash)},
        {
            "mask off by one": rounded_once(lambda q, k, v: attend(q, k, v, late)),
            "no scale": rounded_once(lambda q, k, v: attend(q * math.sqrt(width), k, v)),
            "no mask": rounded_once(lambda q, k, v: attend(q, k, v, torch.ones_like(mask))),
            **common_bugs(attend),
        },
        frozenset({"truncation"}),
    )


GROUPS = (
    matmul_group(),
    conv_group(),
    softmax_group(),
    softmax_backward_group(),
    attention_group(),
)
