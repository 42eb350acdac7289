# SPDX-License-Identifier: Apache-2.0
"""The arguments of one call, and its callee."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Sample:
    """The arguments of one call; tensors on the CPU."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    graded: Callable[[Any], Any] = lambda output: output  # selects the differentiable part
    laid: bool = False  # equal values to another sample, in another layout

    @property
    def tensors(self) -> list[Tensor]:
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Callee:
    """The called function of torch, and the forms that it has."""

    name: str
    function: Callable[..., Any]
    inplace: Callable[..., Any] | None = None
    has_out: bool = False
    factory: bool = False  # takes a device
    draws: bool = False
    direct: bool = False  # the op itself, with its own arguments, not a function of torch
