"""transformers: the layers of models that are known, each by its class, its attention and batching.

The layers of one model get other `forward`s; the attention is a name in transformers' own registry
that only this model's config asks for; the manager of continuous batching is this model's.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from deeplink.errors import DeeplinkError
from dlinfer.framework import transformers_attention, transformers_batching, transformers_layers
from dlinfer.framework.applied import Applied
from dlinfer.framework.transformers_layers import FAMILIES, Forward

log = logging.getLogger("dlinfer")

# An extra: not installed everywhere, so its types are not known.
transformers: Any = importlib.import_module("transformers")

TESTED = ("5.17", "5.22")  # releases that the tests ran with
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
SHAKEN = 4  # times what a rounding of the embeddings does: deep models in half types amplify it
MOST = 0.2  # and this at most


def apply(model: Any, *, check: bool = True) -> Applied:
    """See `dlinfer.apply`."""
    if not transformers.__version__.startswith(TESTED):
        told = (
            "dlinfer is tested with transformers %s, not %s: the check decides whether it is used"
        )
        log.warning(told, ", ".join(TESTED), transformers.__version__)
    found = _found(model)
    before = _outputs(model) if check else []
    applied = _exchanged(model, found)
    if not check:
        return applied
    try:
        difference = max(map(_difference, _outputs(model), before))
    except BaseException:  # an op that a strict vendor refuses, or whatever: the model is as it was
        applied.undo()
        raise
    allowed = TOLERANCE.get(model.dtype, 1e-4)
    if not difference <= allowed:
        applied.undo()
        allowed = max(allowed, min(SHAKEN * _rounding(model, before[0]), MOST))
        if difference <= allowed:
            applied = _exchanged(model, found)
            return Applied(model, applied.layers, difference, applied.undoing)
        raise DeeplinkError(
            f"{type(model).__name__} computes something else with dlinfer's ops: off by "
            f"{difference:.1e} of its largest logit; allowed: {allowed:g}.",
            "the model is as it was; please report its config.",
        )
    return Applied(model, applied.layers, difference, applied.undoing)


def _found(model: Any) -> list[tuple[nn.Module, Forward]]:
    pairs = ((module, transformers_layers.forward_of(module)) for module in model.modules())
    found = [(module, forward) for module, forward in pairs if forward is not None]
    if not found:
        raise DeeplinkError(
            f"dlinfer knows no layer of {type(model).__name__}.",
            f"families that it knows: {', '.join(FAMILIES)} (and InternVL, of these).",
        )
    product = transformers_layers.product
    return found + [(module, product) for module in model.modules() if type(module) is nn.Linear]


def _exchanged(model: Any, found: list[tuple[nn.Module, Forward]]) -> Applied:
    undoing: list[Callable[[], None]] = [_with_own_config(model)]
    implementation = model.config._attn_implementation
    for module, forward in found:
        module.forward = MethodType(forward, module)
        undoing.append(functools.partial(delattr, module, "forward"))
    transformers_attention.register()
    model.set_attn_implementation(transformers_attention.NAME)
    undoing.append(functools.partial(model.set_attn_implementation, implementation))
    if hasattr(model, "init_continuous_batching"):
        undoing.append(transformers_batching.apply(model))
    layers = dict(Counter(type(module).__name__ for module, _ in found))
    return Applied(model, layers, None, tuple(undoing))


def _with_own_config(model: Any) -> Callable[[], None]:
    """A model may share its config with others, whose attention must not change."""
    copied: dict[int, Any] = {}
    held = [(m, m.__dict__["config"]) for m in model.modules() if "config" in m.__dict__]
    for module, config in held:
        module.config = copy.deepcopy(config, copied)

    def undo() -> None:
        for module, config in held:
            module.config = config

    return undo


@torch.no_grad()
def _outputs(model: Any) -> list[Tensor]:
    """What the model, and what looks at images in it, makes of random input."""
    with _as_new(model):
        seen = [VISION[name](m) for m in model.modules() if (name := type(m).__name__) in VISION]
        return [_logits(model), *seen]


@contextmanager
def _as_new(model: Any) -> Iterator[None]:
    """Not in training, and without what Qwen2-VL keeps of the images of its last call."""
    training = model.training
    kept = [(m, m.rope_deltas) for m in model.modules() if "rope_deltas" in m.__dict__]
    model.eval()
    for module, _ in kept:
        module.rope_deltas = None
    try:
        yield
    finally:
        model.train(training)
        for module, deltas in kept:
            module.rope_deltas = deltas


def _logits(model: Any) -> Tensor:
    """Of random tokens: two rows, one of them padded, and then one token more with the cache."""
    generator = torch.Generator().manual_seed(0)
    size = model.get_input_embeddings().weight.shape[0]
    images = getattr(model.config, "image_token_id", None)
    ids = torch.randint(size, (2, 7), generator=generator)
    ids = ids.masked_fill(ids == images, 0) if images is not None else ids
    ids = ids.to(model.device)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    first = model(ids, attention_mask=mask)
    plain = model(ids, use_cache=True)
    past = plain.past_key_values
    last = model(ids[:, :1], past_key_values=past, use_cache=True)
    kept = (first.logits[0, 3:], first.logits[1], plain.logits.flatten(0, 1), last.logits[:, 0])
    return torch.cat(kept).float()


def _rounding(model: Any, before: Tensor) -> float:
    """What becomes of the logits when embeddings are off by their last bit."""
    generator = torch.Generator().manual_seed(0)

    def shake(module: nn.Module, args: Any, made: Tensor) -> Tensor:
        signs = torch.randint(0, 2, made.shape, generator=generator).to(made.device) * 2.0 - 1
        return (made * (1 + signs * torch.finfo(made.dtype).eps)).to(made.dtype)

    hook = model.get_input_embeddings().register_forward_hook(shake)
    try:
        with torch.no_grad(), _as_new(model):
            return _difference(_logits(model), before)
    finally:
        hook.remove()


def _internvl_image(tower: Any) -> Tensor:
    config = tower.config
    shape = (1, config.num_channels, *config.image_size)
    return _last_hidden(tower(_random(shape, tower)))


def _qwen2_vl_image(tower: Any) -> Tensor:
    config, side = tower.config, 2 * tower.config.spatial_merge_size
    size = config.in_channels * config.temporal_patch_size * config.patch_size**2
    grid = torch.tensor([[1, side, side]], device=tower.device)
    return _last_hidden(tower(_random((side * side, size), tower), grid_thw=grid))


def _random(shape: tuple[int, ...], tower: Any) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(tower.device, tower.dtype)


def _last_hidden(result: Any) -> Tensor:
    hidden: Tensor = getattr(result, "last_hidden_state", result)
    return hidden.float()


# Towers that look at images, and how one is run: their attention and products change, too.
VISION: dict[str, Callable[[Any], Tensor]] = {
    "InternVLVisionModel": _internvl_image,
    "Qwen2VisionTransformerPretrainedModel": _qwen2_vl_image,
}


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
