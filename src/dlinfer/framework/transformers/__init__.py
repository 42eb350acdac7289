# SPDX-License-Identifier: Apache-2.0
"""transformers: replacement of the layers of supported models, by class, attention and batching.

Layers of one model get other `forward`s; the attention is a name in transformers' own registry that
only this model's config selects; the manager of continuous batching belongs to this model.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any

import torch
from torch import nn

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer import weights
from dlinfer.framework.applied import Applied
from dlinfer.framework.transformers import attention, batching, forced, generation, layers
from dlinfer.framework.transformers.check import Check
from dlinfer.framework.transformers.forced import report
from dlinfer.framework.transformers.layers import FAMILIES, Forward
from dlinfer.framework.verdicts import Checked

__all__ = ["apply", "check", "report"]

log = logging.getLogger("dlinfer")

# An optional dependency: its types are unknown where it is not installed.
transformers: Any = importlib.import_module("transformers")

TESTED = ("5.17", "5.22", "5.23")  # tested releases
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
SHAKEN = 4  # factor on the effect of rounding the embeddings: deep models in half types amplify it
MOST = 0.2  # upper limit


def apply(model: Any, *, check: bool = True) -> Applied:
    """Use dlinfer's ops in a model; see `dlinfer.apply`."""
    if not transformers.__version__.startswith(TESTED):
        told = (
            "dlinfer is tested with transformers %s, not %s: the check decides whether it is used"
        )
        log.warning(told, ", ".join(TESTED), transformers.__version__)
    found = _found(model)
    checked = Check(model) if check else None
    applied = _exchanged(model, found)
    if checked is None:
        return applied
    try:
        difference = checked.difference()
    # an op that a strict vendor refuses, or any other error: the model is restored
    except BaseException:
        applied.undo()
        raise
    allowed = TOLERANCE.get(model.dtype, 1e-4)
    if not difference <= allowed:
        applied.undo()
        allowed = max(allowed, min(SHAKEN * checked.rounding(), MOST))
        if difference <= allowed:
            applied = _exchanged(model, found)
            return Applied(model, applied.layers, difference, applied.undoing)
        raise DeeplinkError(
            _(
                "{kind} computes something else with dlinfer's ops: off by "
                "{difference:.1e} of its largest logit; allowed: {allowed:g}."
            ).format(kind=type(model).__name__, difference=difference, allowed=allowed),
            _("the model is as it was; please report its config."),
        )
    return Applied(model, applied.layers, difference, applied.undoing)


def check(model: Any, prompts: Iterable[Any], new_tokens: int) -> Checked:
    """Judge a model's logits; see `dlinfer.check`."""
    return forced.check(model, prompts, new_tokens, apply)


def _found(model: Any) -> list[tuple[nn.Module, Forward]]:
    pairs = ((module, layers.forward_of(module)) for module in model.modules())
    found = [(module, forward) for module, forward in pairs if forward is not None]
    if not found:
        raise DeeplinkError(
            _("dlinfer knows no layer of {kind}.").format(kind=type(model).__name__),
            _("families that it knows: {names} (and InternVL, of these).").format(
                names=", ".join(FAMILIES)
            ),
        )
    product = layers.product
    return found + [(module, product) for module in model.modules() if type(module) is nn.Linear]


def _exchanged(model: Any, found: list[tuple[nn.Module, Forward]]) -> Applied:
    undoing: list[Callable[[], None]] = [_with_own_config(model)]
    implementation = model.config._attn_implementation
    for module, forward in found:
        module.forward = MethodType(forward, module)
        undoing.append(functools.partial(delattr, module, "forward"))
    undoing.append(functools.partial(layers.part, [module for module, _ in found]))
    linears = [module for module in model.modules() if type(module) is nn.Linear]
    undoing.append(weights.lay_out(model, linears))
    undoing.append(_saved_plain(model))
    attention.register()
    model.set_attn_implementation(attention.NAME)
    undoing.append(functools.partial(model.set_attn_implementation, implementation))
    if hasattr(model, "init_continuous_batching"):
        undoing.append(batching.apply(model))
    if hasattr(model, "_prepare_generation_config"):
        undoing.append(generation.apply(model))
    counts = dict(Counter(type(module).__name__ for module, _ in found))
    return Applied(model, counts, None, tuple(undoing))


def _with_own_config(model: Any) -> Callable[[], None]:
    """Copy a config that the model may share with others, whose attention must not change."""
    copied: dict[int, Any] = {}
    held = [(m, m.__dict__["config"]) for m in model.modules() if "config" in m.__dict__]
    for module, config in held:
        module.config = copy.deepcopy(config, copied)

    def undo() -> None:
        for module, config in held:
            module.config = config

    return undo


def _saved_plain(model: Any) -> Callable[[], None]:
    """Save copies of the weights: safetensors refuses weights in [in, out] layout,
    or parts of others.
    """
    stock = model.save_pretrained

    @functools.wraps(stock)
    def save_pretrained(folder: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 and kwargs.get("state_dict") is None:
            held = model.state_dict().items()
            kwargs["state_dict"] = {name: tensor.contiguous() for name, tensor in held}
        return stock(folder, *args, **kwargs)

    model.save_pretrained = save_pretrained
    return functools.partial(delattr, model, "save_pretrained")
