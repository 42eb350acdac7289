# SPDX-License-Identifier: Apache-2.0
"""The fused ops that are declared, by name; `op.py` declares them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)  # there is one of each: compared and hashed as itself
class FusedOp:
    """One op of the interface."""

    name: str
    schema: str  # torch's schema, with `(a!)` at written arguments
    meaning: Function = field(repr=False)
    doc: str = ""
    in_graphs: Function | None = field(default=None, repr=False)

    @property
    def apart(self) -> Function:
        """In plain torch ops, as a graph compiler without a kernel for it may write it."""
        return self.in_graphs or self.meaning

    @cached_property
    def overload(self) -> torch._ops.OpOverload[..., Any]:
        """The torch op."""
        found: torch._ops.OpOverload[..., Any] = getattr(torch.ops.dlinfer, self.name).default
        return found

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The arguments that the op changes."""
        arguments = self.overload._schema.arguments
        return tuple(a.name for a in arguments if a.alias_info and a.alias_info.is_write)


OPS: dict[str, FusedOp] = {}  # in the order of their declaration
