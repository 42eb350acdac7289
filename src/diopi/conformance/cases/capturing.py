# SPDX-License-Identifier: Apache-2.0
"""Capture of an op's calls inside of other calls: valid arguments for backward ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from diopi.conformance.cases.sample import Sample
from diopi.op import Op
from diopi.schema import PLACEMENT, own_name


def captured(op: Op, entry: Any, samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield the arguments of the op's calls in these samples, forward and backward."""
    for sample in samples:
        # limits of the CPU: the calls captured until then are valid
        with suppress(Exception), _Listening(op) as heard:
            _both_ways(entry, sample)
        yield from heard.samples


def _both_ways(entry: Any, sample: Sample) -> None:
    result = sample.graded(entry(*sample.args, **sample.kwargs))
    roots = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    leaves = [t for t in sample.tensors if t.requires_grad]
    if roots and leaves:
        torch.autograd.grad(
            roots, leaves, [torch.randn_like(root) for root in roots], allow_unused=True
        )


class _Listening(TorchDispatchMode):
    def __init__(self, op: Op) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._op = op
        self._served = frozenset(op.aten)
        self._known = {argument.name for argument in op.arguments}
        self.samples: list[Sample] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func).replace("aten.", "aten::", 1).removesuffix(".default") in self._served:
            self._keep(func, args, kwargs)
        return func(*args, **kwargs)

    def _keep(self, func: Any, args: Any, kwargs: Any) -> None:
        function = func._schema.name
        names = [own_name(function, a.name) for a in func._schema.arguments]
        given = dict(zip(names, args, strict=False))
        given |= {own_name(function, name): value for name, value in kwargs.items()}
        kept = {
            name: pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), value)
            for name, value in given.items()
            if name in self._known and name not in PLACEMENT
        }
        places = [a.name for a in self._op.arguments if not a.kwarg_only]
        count = next((i for i, name in enumerate(places) if name not in kept), len(places))
        args = tuple(kept.pop(name) for name in places[:count])
        self.samples.append(Sample(args, kept))
