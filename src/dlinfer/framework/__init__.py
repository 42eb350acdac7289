# SPDX-License-Identifier: Apache-2.0
"""Adaptors of frameworks: a model is given dlinfer's ops, and nothing else is touched."""

from __future__ import annotations

from typing import Any

from deeplink.errors import DeeplinkError
from dlinfer.framework.applied import Applied

__all__ = ["Applied", "apply"]


def apply(model: Any, *, check: bool = True) -> Applied:
    """Gives a model of transformers dlinfer's ops, in place; the result's `undo()` takes them back.

    With `check`, the model is run before and after on random tokens, and an adaptor that changes
    what it computes is taken back with an error.
    """
    framework = type(model).__module__.partition(".")[0]
    if framework != "transformers":
        raise DeeplinkError(
            f"dlinfer has no adaptor for {type(model).__module__}.{type(model).__name__}.",
            "models of transformers have one; other code calls torch.ops.dlinfer itself.",
        )
    from dlinfer.framework import transformers  # needs the framework

    return transformers.apply(model, check=check)
