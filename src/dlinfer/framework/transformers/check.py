# SPDX-License-Identifier: Apache-2.0
"""transformers: comparison of a model before and after, on random input.

Where two experts are nearly equal for a token, the last bit decides between them, and so all later
results: therefore routers are compared separately, and the rest with the experts of the first run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Routed = tuple[Tensor, Tensor, Tensor]  # logits, weights, experts


class Check:
    """The outputs of a model for random input, and its later difference from them."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.routing = Routing(model)
        with self.routing.recorded():
            self.before = _outputs(model, self.routing)

    def difference(self) -> float:
        """Return the largest difference: of the logits, of image towers, and of routers."""
        with self.routing.replayed() as routers:
            found = _outputs(self.model, self.routing)
        return max([*map(_difference, found, self.before), *routers])

    def rounding(self) -> float:
        """Return the change of the logits when embeddings change in their last bit."""
        generator = torch.Generator().manual_seed(0)

        def shake(module: nn.Module, args: Any, made: Tensor) -> Tensor:
            signs = torch.randint(0, 2, made.shape, generator=generator).to(made.device) * 2.0 - 1
            return (made * (1 + signs * torch.finfo(made.dtype).eps)).to(made.dtype)

        hook = self.model.get_input_embeddings().register_forward_hook(shake)
        try:
            with torch.no_grad(), as_new(self.model), self.routing.replayed():
                return _difference(_logits(self.model, self.routing), self.before[0])
        finally:
            hook.remove()


class Routing:
    """The routers of a model, and their results, call by call."""

    def __init__(self, model: Any) -> None:
        self.routers = [
            m for m in model.modules() if type(m).__name__.lower().endswith("topkrouter")
        ]
        self.kept: dict[nn.Module, list[Routed]] = {router: [] for router in self.routers}
        self.counted: Tensor | None = None  # of the tokens that count; padding does not

    def of(self, model: Any) -> Routing:
        """Return the recorded results for another instance of the model, in its type."""
        other = Routing(model)
        for mine, theirs in zip(self.routers, other.routers, strict=True):
            other.kept[theirs] = [_as_in(routed, theirs) for routed in self.kept[mine]]
        return other

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the routers' results."""

        def keep(router: nn.Module, args: Any, routed: Routed) -> None:
            self.kept[router].append(routed)

        with self._hooked(keep):
            yield

    @contextmanager
    def replayed(self) -> Iterator[list[float]]:
        """Replace the routers' results by the recorded ones;
        yield the list of their differences.
        """
        left = {router: iter(kept) for router, kept in self.kept.items()}
        off: list[float] = []

        def replay(router: nn.Module, args: Any, routed: Routed) -> Routed:
            expected = next(left[router])
            off.append(_routed_off(routed, expected, self.counted))
            return expected

        with self._hooked(replay):
            yield off

    @contextmanager
    def _hooked(self, hook: Callable[..., Any]) -> Iterator[None]:
        held = [router.register_forward_hook(hook) for router in self.routers]
        try:
            yield
        finally:
            for one in held:
                one.remove()


def _as_in(routed: Routed, router: nn.Module) -> Routed:
    """Convert results to the device of a router; floating ones to float64, if it is of float64."""
    weight = next(router.parameters())

    def converted(t: Tensor) -> Tensor:
        floating = t.is_floating_point() and weight.dtype == torch.float64
        return t.to(weight.device, weight.dtype if floating else t.dtype)

    logits, weights, experts = map(converted, routed)
    return logits, weights, experts


def _routed_off(found: Routed, expected: Routed, counted: Tensor | None) -> float:
    """Compare logits; and weights, for tokens with equal experts: at least half of them."""
    rows = slice(None) if counted is None else counted
    logits, *rest = (t.reshape(-1, t.shape[-1])[rows] for t in found)
    wanted, *others = (t.reshape(-1, t.shape[-1])[rows] for t in expected)
    same = (rest[1].sort(-1).values == others[1].sort(-1).values).all(-1)
    if same.float().mean() < 0.5:
        return float("inf")
    spread = [
        torch.zeros_like(wanted, dtype=torch.float32).scatter(-1, experts.long(), weights.float())
        for weights, experts in (rest, others)
    ]
    weights_off = _difference(*(dense[same] for dense in spread))
    return max(_difference(logits.float(), wanted.float()), weights_off)


@torch.no_grad()
def _outputs(model: Any, routing: Routing) -> list[Tensor]:
    """Run the model, and image towers in it, on random input."""
    with as_new(model):
        seen = [VISION[name](m) for m in model.modules() if (name := type(m).__name__) in VISION]
        return [_logits(model, routing), *seen]


@contextmanager
def as_new(model: Any) -> Iterator[None]:
    """Leave training mode, and remove the state that Qwen2-VL keeps of the
    images of its last call.
    """
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


def _logits(model: Any, routing: Routing) -> Tensor:
    """Compute logits of random tokens: two rows, one padded,
    and then one more token with the cache.
    """
    generator = torch.Generator().manual_seed(0)
    size = model.get_input_embeddings().weight.shape[0]
    images = getattr(model.config, "image_token_id", None)
    ids = torch.randint(size, (2, 7), generator=generator)
    ids = ids.masked_fill(ids == images, 0) if images is not None else ids
    ids = ids.to(model.device)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    routing.counted = mask.flatten().bool()
    first = model(ids, attention_mask=mask)
    routing.counted = None
    plain = model(ids, use_cache=True)
    past = plain.past_key_values
    last = model(ids[:, :1], past_key_values=past, use_cache=True)
    kept = (first.logits[0, 3:], first.logits[1], plain.logits.flatten(0, 1), last.logits[:, 0])
    return torch.cat(kept).float()


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


# Image towers, and how to run each: their attention and products change, too.
VISION: dict[str, Callable[[Any], Tensor]] = {
    "InternVLVisionModel": _internvl_image,
    "Qwen2VisionTransformerPretrainedModel": _qwen2_vl_image,
}


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
