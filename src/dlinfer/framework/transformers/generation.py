# SPDX-License-Identifier: Apache-2.0
"""transformers: `generate` of a model with dlinfer's ops, for greedy decoding and sampling.

Prompts are packed without their padding. Keys and values are in a cache whose memory is allocated
once, and every tensor of a step has the same shape, so that a device with graphs replays one. A
row that has ended is noticed on the device; the host checks for the end of all rows now and then.
What the loop does not have runs by transformers' own `generate`, which is logged once with the
reason.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dlinfer.cache import cache_layout, new_cache
from dlinfer.capture import Captured, capture, graph_of
from dlinfer.framework.transformers import sparse
from dlinfer.framework.transformers.attention import ROWS, Rows

log = logging.getLogger("dlinfer")
configs: Any = importlib.import_module("transformers.generation.configuration_utils")
processors: Any = importlib.import_module("transformers.generation.logits_process")

_NAME = "_dlinfer_generation"
AGAIN = 256  # the places of a row are a multiple, so that a recorded step serves similar lengths
CHECK = 16  # steps between two questions of the host whether all rows have ended
BLOCK = 64  # tokens in a block of the cache, where the vendor allows any number
# Options that the loop reads; any other one must have its neutral value.
READ = frozenset(
    "max_new_tokens max_length do_sample temperature top_k top_p eos_token_id pad_token_id "
    "bos_token_id".split()
)
IGNORED = frozenset("transformers_version early_stopping length_penalty".split())
LAYERS = frozenset(("full_attention", "sliding_attention"))


def apply(model: Any) -> Callable[[], None]:
    """Replace a model's `generate`; the returned function restores it."""
    model.generate = functools.partial(generate, model)

    def undo() -> None:
        del model.generate
        model.__dict__.pop(_NAME, None)

    return undo


def generate(model: Any, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
    """Generate as `type(model).generate` does, by the fast loop where it has all that is asked."""
    plan = _plan(model, inputs, args, kwargs)
    if isinstance(plan, str):
        _told(model, plan)
        return type(model).generate(model, inputs, *args, **kwargs)
    with torch.no_grad():
        return plan.run()


@functools.lru_cache(64)
def _log(name: str, reason: str) -> None:
    log.info("generate of %s is transformers' own: %s", name, reason)


def _told(model: Any, reason: str) -> None:
    _log(type(model).__name__, reason)


def why_not(model: Any) -> str:
    """Return why the fast loop does not run a model; "" if it does."""
    if model.training:
        return "the model is in training mode"
    if not type(model).__name__.endswith("ForCausalLM"):
        return "the model takes more than tokens"
    config = model.config.get_text_config()
    kinds = {*(getattr(config, "layer_types", None) or ("full_attention",))} - LAYERS
    if kinds:
        return f"the loop has no cache for layers of {', '.join(sorted(kinds))}"
    if any(getattr(m.forward, "__func__", None) is sparse.attention for m in model.modules()):
        return "the loop has no cache for sparse attention"
    if len({p.device for p in model.parameters()}) > 1:
        return "the model is on several devices"
    return ""


def _plan(model: Any, inputs: Any, args: Any, kwargs: dict[str, Any]) -> Plan | str:
    """Return what to run, or why the loop does not."""
    given = dict(kwargs)
    ids = given.pop("input_ids", inputs)
    mask, streamer = given.pop("attention_mask", None), given.pop("streamer", None)
    config = given.pop("generation_config", args[0] if args else None)
    reason = why_not(model)
    if reason:
        return reason
    if len(args) > 1:
        return "more than one argument by position"
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not ids.numel() or ids.is_floating_point():
        return "the prompt is not a tensor of token ids [rows, tokens]"
    if mask is None:
        mask = torch.ones_like(ids)
    if mask.shape != ids.shape:
        return "the attention mask is not [rows, tokens]"
    named = [name for name, value in given.items() if value is not None and name not in _OPTIONS]
    if named:
        return f"the argument {', '.join(sorted(named))}"
    config, rest = model._prepare_generation_config(config, **given)
    unread = _unread(config, rest)
    if unread:
        return f"the option {', '.join(unread)}"
    new = config.max_new_tokens
    if new is None:
        new = config.max_length - ids.shape[1]
    if new < 1:
        return "no new tokens"
    return Plan(model, ids, mask, config, new, streamer)


_OPTIONS = frozenset(configs.GenerationConfig().to_dict()) | {"max_length", "max_new_tokens"}


def _unread(config: Any, rest: dict[str, Any]) -> list[str]:
    """Return the options that the loop does not read, with their values."""
    neutral = configs.GenerationConfig()
    defaults = neutral._get_default_generation_params()
    found = [f"{name}={value}" for name, value in rest.items() if value is not None]
    for name, value in config.to_dict().items():
        if name in READ or name in IGNORED or name.startswith("_"):
            continue
        plain = defaults.get(name, getattr(neutral, name, None))
        if value != plain and not (plain is None and not value):
            found.append(f"{name}={value}")
    return found


@dataclass
class Plan:
    """A run of the loop."""

    model: Any
    ids: Tensor  # [rows, tokens]
    mask: Tensor
    config: Any
    new: int  # number of new tokens
    streamer: Any = None
    warpers: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.warpers = []
        if config.do_sample:
            if config.temperature not in (None, 1.0):
                self.warpers.append(processors.TemperatureLogitsWarper(config.temperature))
            if config.top_k:
                self.warpers.append(processors.TopKLogitsWarper(config.top_k))
            if config.top_p is not None and config.top_p < 1.0:
                self.warpers.append(processors.TopPLogitsWarper(config.top_p))

    def run(self) -> Tensor:
        """Return the prompts and the new tokens, as `generate` does."""
        ids, device = self.ids.to(self.model.device), self.model.device
        kept = self.mask.to(device).bool()
        lengths = kept.sum(-1, dtype=torch.int32)
        if self.streamer is not None:
            self.streamer.put(ids.cpu())
        rows, places = ids.shape[0], ids.shape[1] + self.new
        cache, step = _cache_and_step(self.model, rows, places)
        logits = self._prompt(ids, kept, lengths, cache)
        ends, pad = self._ends(device)
        done = torch.zeros(rows, dtype=torch.bool, device=device)
        over = torch.zeros(rows, self.new, dtype=torch.bool, device=device)  # ended before
        found = torch.full((rows, self.new), pad, device=device)
        for at in range(self.new):
            over[:, at] = done
            token = torch.where(done, pad, self._chosen(ids, found, at, logits))
            found[:, at] = token
            if self.streamer is not None:
                self.streamer.put(token.cpu())
            if ends is not None:
                done = done | torch.isin(token, ends)
                often = self.streamer is not None or (at + 1) % CHECK == 0
                if often and bool(done.all()):
                    break
            if at + 1 < self.new:
                logits = step(token, lengths)
                lengths = lengths + 1
        if self.streamer is not None:
            self.streamer.end()
        count = self.new if ends is None else max(1, int((~over[:, : at + 1]).any(0).sum()))
        return torch.cat((ids, found[:, :count].to(ids.dtype)), -1)

    def _ends(self, device: torch.device) -> tuple[Tensor | None, int]:
        """Return the tokens that end a row, and the one that follows them."""
        ends, pad = self.config.eos_token_id, self.config.pad_token_id
        if ends is None:
            return None, 0 if pad is None else int(pad)
        several = ends if isinstance(ends, list | tuple) else [ends]
        return torch.tensor(several, device=device), int(several[0] if pad is None else pad)

    def _prompt(self, ids: Tensor, kept: Tensor, lengths: Tensor, cache: _Cache) -> Tensor:
        """Run the prompts, and return the logits after each."""
        bounds = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        places = (kept.cumsum(-1) - 1)[kept]
        slots = (cache.first[:, None] + kept.cumsum(-1) - 1)[kept]
        step = Rows(cache, slots, lengths, bounds, ids.shape[1])
        logits: Tensor = self.model(
            input_ids=ids[kept][None],
            position_ids=places[None],
            attention_mask=cache.no_mask,
            use_cache=False,
            logits_to_keep=(bounds[1:] - 1).long(),
            **{ROWS: step},
        ).logits
        return logits[0]

    def _chosen(self, ids: Tensor, found: Tensor, at: int, logits: Tensor) -> Tensor:
        scores = logits.float()
        if not self.config.do_sample:
            return scores.argmax(-1)
        if self.warpers:
            before = torch.cat((ids, found[:, :at].to(ids.dtype)), -1)
            for warper in self.warpers:
                scores = warper(before, scores)
        return torch.multinomial(scores.softmax(-1), 1).squeeze(1)


def _cache_and_step(model: Any, rows: int, places: int) -> tuple[_Cache, Captured]:
    """Return a cache, and the step over it: on a device with graphs those of the last call, if they
    fit, because recording a step takes as long as many steps.
    """
    device = model.device
    if not graph_of(device):
        cache = _Cache(rows, places, device, model.dtype)
        return cache, capture(functools.partial(_step, model, cache))
    places = -(-places // AGAIN) * AGAIN
    key = (rows, places, *(parameter.data_ptr() for parameter in model.parameters()))
    held: _Held | None = model.__dict__.get(_NAME)
    if held is None or held.key != key:
        cache = _Cache(rows, places, device, model.dtype)
        step = capture(functools.partial(_step, model, cache))
        held = model.__dict__[_NAME] = _Held(key, cache, step)
    return held.cache, held.step


@dataclass(frozen=True)
class _Held:
    """What a model keeps between two calls; a copy of the model keeps nothing."""

    key: tuple[int, ...]
    cache: _Cache
    step: Captured

    def __deepcopy__(self, memo: Any) -> None:
        return None


def _step(model: Any, cache: _Cache, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Run one token of each row, and return the logits after it."""
    step = Rows(cache, cache.first + lengths, lengths + 1, None, cache.places)
    logits: Tensor = model(
        input_ids=tokens[None],
        position_ids=lengths[None].long(),
        attention_mask=cache.no_mask,
        use_cache=False,
        **{ROWS: step},
    ).logits
    return logits[0]


class _Cache:
    """Keys and values of rows, in consecutive blocks for each."""

    def __init__(self, rows: int, places: int, device: torch.device, dtype: torch.dtype) -> None:
        allowed = cache_layout(device).block_sizes
        self.block = allowed[0] if allowed else BLOCK
        each = -(-places // self.block)
        self.blocks, self.places, self.dtype, self.device = rows * each, places, dtype, device
        self.table = torch.arange(rows * each, dtype=torch.int32, device=device).view(rows, each)
        self.first = torch.arange(rows, device=device) * (each * self.block)
        # in four dimensions a mask is passed on as it is, and the rows' attention needs none
        self.no_mask = torch.zeros((1, 1, 1, 1), dtype=dtype, device=device)
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the caches of a layer, whose keys and values are [tokens, heads, size]."""
        if layer not in self.layers:
            make = functools.partial(new_cache, dtype=k.dtype, device=self.device)
            sizes = ((t.shape[1], t.shape[2]) for t in (k, v))
            keys, values = (make(self.blocks, self.block, *size) for size in sizes)
            self.layers[layer] = keys, values
        return self.layers[layer]
