# SPDX-License-Identifier: Apache-2.0
"""transformers: continuous batching (`generate_batch`) with dlinfer's paged attention.

The manager that a model creates for itself is replaced in that model only. It requests block
tables, which transformers keeps for flash attention, and needs no mask.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from deeplink.errors import DeeplinkError
from dlinfer.framework.transformers.attention import PAGED

batching: Any = importlib.import_module(
    "transformers.generation.continuous_batching.continuous_api"
)
initialization: Any = importlib.import_module(
    "transformers.generation.continuous_batching.initialization"
)


def apply(model: Any) -> Callable[[], None]:
    """Replace a model's manager; the returned function restores it."""
    model.destroy_cached_continuous_batching_manager()
    model.init_continuous_batching = functools.partial(manager_of, model)

    def undo() -> None:
        model.destroy_cached_continuous_batching_manager()
        del model.init_continuous_batching

    return undo


@torch.no_grad()
def manager_of(
    model: Any,
    generation_config: Any = None,
    continuous_batching_config: Any = None,
    workload_hints: Any = None,
) -> Any:
    """Create the manager, as `init_continuous_batching` of transformers does."""
    found = getattr(model, "_cached_continuous_batching_manager", None)
    if found is not None:
        found.switch_to_cb_friendly_attn(model)
        return found
    wanted = generation_config or model.generation_config
    if wanted.eos_token_id is None:
        wanted.eos_token_id = -1  # none
    config = continuous_batching_config or batching.ContinuousBatchingConfig()
    return Manager(model, wanted, config, workload_hints)


class Manager(batching.ContinuousBatchingManager):  # type: ignore[misc]
    """transformers' manager, with dlinfer's attention."""

    def __init__(self, model: Any, generation_config: Any, config: Any, hints: Any) -> None:
        super().__init__(model, generation_config, config, hints)
        if _takes_block_tables(model.config.get_text_config()):
            sized = copy.deepcopy(config)
            initialization.resolve_using_hints(sized, hints)
            initialization.resolve_without_hints(sized)
            blocks = sized.max_blocks_per_request
            self.continuous_batching_config.max_blocks_per_request = blocks

    def switch_to_cb_friendly_attn(self, model: Any, auto_switch_to_flash: bool = True) -> None:
        """Switch to dlinfer's paged attention; `stop` restores the previous one."""
        del auto_switch_to_flash
        before = model.config._attn_implementation
        if before != PAGED:
            model.set_attn_implementation(PAGED)
            self._original_attn_impl = before

    def _handle_critical_error(self, error: Exception, batch_processor: Any) -> None:
        """Report to the requests that the cache is too small, if it is."""
        cache = None if batch_processor is None else batch_processor.cache
        if cache is not None and "can be scheduled" in str(error):
            told = DeeplinkError(
                f"out of cache blocks: {cache.num_blocks} blocks of "
                f"{self.continuous_batching_config.page_size} tokens do not hold the requests.",
                "ContinuousBatchingConfig(num_blocks=…) makes it larger.",
            )
            told.__cause__ = error
            error = told
        super()._handle_critical_error(error, batch_processor)


def _takes_block_tables(config: Any) -> bool:
    """Whether every layer attends to all keys."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return getattr(config, "sliding_window", None) is None
    return set(kinds) == {"full_attention"}
