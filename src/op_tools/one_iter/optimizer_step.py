# SPDX-License-Identifier: Apache-2.0
"""A step of an optimizer as a call: parameters, gradients and state in, parameters out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from deeplink.i18n import _
from deeplink.judge import judge
from deeplink.judge.formats import FORMATS
from op_tools.capture import Recorded
from op_tools.compare.host_verdicts import Item
from op_tools.one_iter.record_store import OneIterError


@dataclass
class Update:
    """A step of an optimizer."""

    optimizer: Optimizer
    number: int
    state: Any = None  # of the watcher

    @property
    def path(self) -> str:
        return type(self.optimizer).__name__

    @property
    def parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def given(self) -> dict[str, Any]:
        """The start of the step."""
        own = self.parameters
        return {
            "inputs": own,
            "gradients": [p.grad for p in own],
            "state": [dict(self.optimizer.state.get(p, {})) for p in own],
            "groups": [_numbers(group) for group in self.optimizer.param_groups],
        }


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    kinds = (bool, int, float, Tensor)
    plain = {key: value for key, value in group.items() if isinstance(value, kinds)}
    return {**plain, **({"betas": list(group["betas"])} if "betas" in group else {})}


def load(update: Update, recorded: Recorded) -> None:
    """Load the recorded start, so that the step is judged alone."""
    given, own = recorded.kwargs, update.parameters
    found = [tuple(p.shape) for p in own]
    wanted = [tuple(p.shape) for p in given["inputs"]]
    if found != wanted:
        raise OneIterError(
            _(
                "{path} has {count} {count:parameter|parameters} and not the {recorded} "
                "recorded ones: another "
                "model, or another order."
            ).format(path=update.path, count=len(found), recorded=len(wanted))
        )
    groups = zip(update.optimizer.param_groups, given["groups"], strict=True)
    with torch.no_grad():
        for group, numbers in groups:
            _load_group(group, numbers)
        rows = zip(own, given["inputs"], given["gradients"], given["state"], strict=True)
        for parameter, value, gradient, state in rows:
            parameter.copy_(value)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
            _load_state(update.optimizer, parameter, state)


def _load_group(group: dict[str, Any], numbers: dict[str, Any]) -> None:
    for key, value in numbers.items():
        if isinstance(group.get(key), Tensor):
            group[key].copy_(value)
        elif key == "betas":
            group[key] = tuple(value)
        elif key not in ("fused", "foreach", "capturable"):  # options of the implementation
            group[key] = value


def _load_state(optimizer: Optimizer, parameter: Tensor, state: dict[str, Any]) -> None:
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    on_device = bool(group.get("capturable") or group.get("fused"))
    if not state:
        optimizer.state.pop(parameter, None)
        return
    held = optimizer.state[parameter]
    for key, value in state.items():
        if isinstance(value, Tensor) and (value.dim() > 0 or on_device):
            value = value.to(parameter.device)
        held[key] = value


def judged(update: Update, recorded: Recorded, names: dict[int, str]) -> list[Item]:
    """A verdict on each parameter after the step.

    Rounding of the old value and of the update is allowed, however small the new value is.
    """
    items = []
    rows = zip(
        update.parameters, recorded.kwargs["inputs"], recorded.output["outputs"], strict=True
    )
    for parameter, before, after in rows:
        mine = parameter.detach().cpu()

        def envelope(before: Tensor = before, after: Tensor = after) -> Tensor:
            wide = after.abs().double() + (after - before).abs().double() + before.abs().double()
            return wide * FORMATS[after.dtype].roundoff

        verdict = judge(mine, after, run_envelope=envelope)
        items.append(Item(names.get(id(parameter), _("a parameter")), verdict))
    return items
