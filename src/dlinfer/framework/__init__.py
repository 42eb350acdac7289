# SPDX-License-Identifier: Apache-2.0
"""Adaptors of frameworks: replace a model's functions by dlinfer's ops, and nothing else."""

from __future__ import annotations

from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer.framework.applied import Applied

__all__ = ["Applied", "apply"]


def apply(model: Any, *, check: bool = True) -> Applied:
    """Use dlinfer's ops in a model of transformers, in place; `undo()` of the result reverts it.

    With `check`, the model runs before and after on random tokens; if the results differ, the
    change is reverted and an error raised.
    """
    framework = type(model).__module__.partition(".")[0]
    if framework != "transformers":
        raise DeeplinkError(
            _("dlinfer has no adaptor for {module}.{kind}.").format(
                module=type(model).__module__, kind=type(model).__name__
            ),
            _("models of transformers have one; other code calls torch.ops.dlinfer itself."),
        )
    from dlinfer.framework import transformers  # needs the framework

    return transformers.apply(model, check=check)
