# SPDX-License-Identifier: Apache-2.0
"""The roots of backward passes: the loss, as a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from op_tools.core import tool_errors


def watch(who: str, seen: Callable[[Sequence[Any]], None]) -> Callable[[], None]:
    """Call a function with the tensors that each backward pass starts from. Returns a function that
    ends it.
    """
    owners: tuple[Any, ...] = (torch.autograd.graph, torch.autograd)
    plain = owners[0]._engine_run_backward

    @wraps(plain)
    def run_backward(roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        try:
            seen(roots)
        except Exception as error:  # a tool must not end the program
            tool_errors.add(who, "backward", error)
        return plain(roots, *args, **kwargs)

    before = [owner._engine_run_backward for owner in owners]
    for owner in owners:
        owner._engine_run_backward = run_backward

    def undo() -> None:
        for owner, was in zip(owners, before, strict=True):
            if owner._engine_run_backward is run_backward:
                owner._engine_run_backward = was

    return undo
