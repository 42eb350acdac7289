# SPDX-License-Identifier: Apache-2.0
"""The arguments of one call, and what is called with them."""

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
    graded: Callable[[Any], Any] = lambda output: output  # the part that has gradients
    laid: bool = False  # the same values as another sample, laid out in memory otherwise

    @property
    def tensors(self) -> list[Tensor]:
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Callee:
    """What is called: a function of torch, and the forms of it that there are."""

    name: str
    function: Callable[..., Any]
    inplace: Callable[..., Any] | None = None
    has_out: bool = False
    factory: bool = False  # takes a device
    draws: bool = False
    direct: bool = False  # the op itself, with its own arguments, not a function of torch
