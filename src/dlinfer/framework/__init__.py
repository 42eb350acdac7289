# SPDX-License-Identifier: Apache-2.0
"""Adaptors of frameworks: replace a model's functions by dlinfer's ops, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer.framework.applied import Applied
from dlinfer.framework.verdicts import Checked, Report

__all__ = ["Applied", "Checked", "Report", "apply", "check", "report"]


def apply(model: Any, *, check: bool = True) -> Applied:
    """Use dlinfer's ops in a model of transformers, in place; `undo()` of the result reverts it.

    With `check`, the model runs before and after on random tokens; if the results differ, the
    change is reverted and an error raised.
    """
    return _adaptor(model).apply(model, check=check)  # type: ignore[no-any-return]


def check(model: Any, prompts: Iterable[Any], *, new_tokens: int = 8) -> Checked:
    """Judge a model's logits with dlinfer's ops against a run in float64 or float32, position by
    position of the prompts (token ids) and of the tokens that the stock model generates.

    The model is restored to the state in which it was passed. If a position is out of bounds, the
    result names the first op whose result is wrong for its own arguments.
    """
    return _adaptor(model).check(model, prompts, new_tokens)  # type: ignore[no-any-return]


def report(model: Any) -> Report:
    """Run a few tokens of a model with dlinfer's ops, and return which kernel computed which op."""
    return _adaptor(model).report(model)  # type: ignore[no-any-return]


def _adaptor(model: Any) -> Any:
    framework = type(model).__module__.partition(".")[0]
    if framework != "transformers":
        raise DeeplinkError(
            _("dlinfer has no adaptor for {module}.{kind}.").format(
                module=type(model).__module__, kind=type(model).__name__
            ),
            _("models of transformers have one; other code calls torch.ops.dlinfer itself."),
        )
    from dlinfer.framework import transformers  # needs the framework

    return transformers
