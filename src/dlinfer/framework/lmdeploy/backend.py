# SPDX-License-Identifier: Apache-2.0
"""LMDeploy's backend on dlinfer's ops: its own layers for the published calls, on any device."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import logging
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from deeplink import settings
from deeplink import vendor as vendors
from deeplink.errors import DeeplinkError
from dlinfer import fused, weights
from dlinfer.framework.lmdeploy.sites import MODELS

log = logging.getLogger("dlinfer")

UNSERVED = ("alibi", "learnable_sink", "mla_index_topk")  # of attention
SEVERAL = 7  # rows, an unlikely value of other sizes: torch.compile identifies equal sizes

# An optional dependency: its types are unknown where it is not installed.
stock: Any = importlib.import_module("lmdeploy.pytorch.backends.dlinfer.op_backend")
layers: Any = importlib.import_module("lmdeploy.pytorch.backends.dlinfer.attention")
specs: Any = importlib.import_module("lmdeploy.pytorch.backends.attention")
products: Any = importlib.import_module("lmdeploy.pytorch.backends.linear")
runners: Any = importlib.import_module("lmdeploy.pytorch.backends.graph_runner")


class Attention(layers.DlinferAttentionImpl):  # type: ignore[misc]
    """LMDeploy's layer with a window or a soft cap, which the published calls do not support."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        window = self.sliding_window
        window = window[0] if isinstance(window, tuple) else window
        self.seen = {"window": max(window or 0, 0), "softcap": self.logit_softcapping or 0.0}
        if self.seen["window"] or self.seen["softcap"]:
            self.paged_attention_fwd = self.attend

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_output: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_offsets: Tensor,
        *,
        is_decoding: bool,
        cu_seqlens_q: Tensor,
        kv_seqlens: Tensor,
        max_q_seq_len: int,
        max_kv_seq_len: int,
        softmax_scale: float,
        **_: Any,
    ) -> Tensor:
        """Attend over the cache, which holds the new tokens already."""
        caches = (key_cache, value_cache, block_offsets)
        if is_decoding:
            out = fused.paged_decode_attention(
                query, *caches, kv_seqlens, max_kv_seq_len, softmax_scale, **self.seen
            )
        else:
            lengths = (cu_seqlens_q, kv_seqlens, max_q_seq_len, max_kv_seq_len)
            out = fused.paged_prefill_attention(
                query, *caches, *lengths, softmax_scale, **self.seen
            )
        return attn_output.copy_(out.view(attn_output.shape))


class Graphs(runners.GraphRunner):  # type: ignore[misc]
    """Decoding steps as one graph of torch.compile; prefill steps run unchanged."""

    def __init__(self, model: Any, *rest: Any, **named: Any) -> None:
        super().__init__(model, *rest, **named)
        self.fixed = False
        self.compiled: Any = torch.compile(
            model.forward,
            backend=settings.DLINFER_GRAPH.get(),
            dynamic=True,
            fullgraph=True,
        )

    def __call__(self, **inputs: Any) -> Any:
        if not inputs["attn_metadata"].is_decoding:
            return self.model(**inputs)
        if not self.fixed:  # the cache's sizes are no batch sizes
            for cache in itertools.chain(*inputs["past_key_values"]):
                torch._dynamo.mark_static(cache)
            self.fixed = True
        return self.compiled(**inputs)

    def get_capture_batch_sizes(self) -> list[int]:
        """Return the batch sizes to run before serving: one row has its own graph,
        all others share one.
        """
        return sorted({1, min(SEVERAL, self.cache_config.max_batches)})


class Backend(stock.DlinferOpsBackend):  # type: ignore[misc]
    """The backend for one kind of device."""

    device = "cpu"
    vendor = "cpu"

    @staticmethod
    def get_name() -> str:
        """Return the name, which is the device type."""
        return "dlinfer"

    @classmethod
    def build_op(cls, spec: Any, **named: Any) -> Any:
        """Return LMDeploy's layer for an operator of a model."""
        if isinstance(spec, specs.PagedAttentionBuildSpec):
            asked = [name for name in UNSERVED if getattr(spec, name)]
            if asked:
                raise DeeplinkError(f"device type 'dlinfer' has no attention with {asked[0]}.")
            return Attention(
                num_heads=spec.num_heads,
                head_size=spec.head_dim,
                scale=spec.scale,
                num_kv_heads=spec.num_kv_heads,
                v_head_size=spec.v_head_dim,
                alibi=spec.alibi,
                sliding_window=spec.sliding_window,
                logit_softcapping=spec.logit_softcapping,
                causal=spec.causal,
                use_flash_mla=spec.use_flash_mla,
            )
        if getattr(spec, "llama3_params", None):  # LMDeploy uses the length after scaling
            scaled_from = spec.llama3_params.original_max_position_embeddings
            spec = dataclasses.replace(spec, max_position_embeddings=scaled_from)
        return super().build_op(spec, **named)

    @classmethod
    def update_step_context(cls, context: Any) -> Any:
        """Set the step's data for attention: lengths, and slots of new keys and values."""
        block = context.kv_caches[0][0].shape[1]
        table, q_lens, kv_lens = (
            t.int() for t in (context.block_offsets, context.q_seqlens, context.kv_seqlens)
        )
        decoding = context.is_decoding and context.max_q_seqlen == 1
        if decoding and table.shape[1] == 1:  # a size of 1 would be a separate graph
            table = F.pad(table, (0, 1))
        bounds = F.pad(q_lens.cumsum(0, dtype=torch.int32), (1, 0))
        slots = _last(table, kv_lens, block) if decoding else _slots(table, q_lens, kv_lens, block)
        context.attn_metadata = cls.get_attention_metadata_cls()(
            decoding,
            table,
            q_start_loc=bounds[:-1],
            q_seqlens=q_lens,
            kv_seqlens=kv_lens,
            cu_seqlens_q=bounds,
            cu_seqlens_q_cpu=bounds,  # dlinfer's ops need them on the device of the other tensors
            kv_seqlens_cpu=kv_lens,
            kv_start_indices=slots,
            block_size=block,
            attention_mask=(),
            is_prefill_no_cache=not decoding and torch.equal(q_lens, kv_lens),
            max_q_seqlen=context.max_q_seqlen,
            max_kv_seq_len=context.max_kv_seqlen,
        )
        return context

    @classmethod
    def build_graph_runner(
        cls, model: Any, model_config: Any, cache_config: Any, backend_config: Any, device: Any
    ) -> Any:
        """Return a runner with graphs, unless the engine's config selects eager mode."""
        name = type(model).__name__
        if name not in MODELS:
            log.warning("%s: dlinfer is tested with LMDeploy's %s", name, ", ".join(MODELS))
        linears = (m for m in model.modules() if isinstance(_kernel(m), products.LinearImpl))
        weights.lay_out(model, list(linears))
        made = runners.GraphRunner if backend_config.eager_mode else Graphs
        return made(model, model_config, cache_config, backend_config, device)

    @classmethod
    def ccl_backend(cls) -> str:
        """Return the name of torch.distributed's backend."""
        return _collective(cls.vendor)

    @classmethod
    def device_count(cls) -> int:
        """Return the number of devices."""
        return 1 if cls.device == "cpu" else torch.get_device_module(cls.device).device_count()


def _kernel(module: Any) -> Any:
    return getattr(module, "impl", None)


@functools.cache
def _collective(vendor: str) -> str:
    return vendors.choose(vendor).vendor.collective or "gloo"


def _last(table: Tensor, kv_lens: Tensor, block: int) -> Tensor:
    """Return the slot of each row's last token."""
    place = kv_lens - 1
    found = table.gather(1, (place // block).long()[:, None])[:, 0]
    return found * block + place % block


def _slots(table: Tensor, q_lens: Tensor, kv_lens: Tensor, block: int) -> Tensor:
    """Return the slots of each row's new tokens, packed."""
    rows = torch.arange(len(q_lens), device=table.device).repeat_interleave(q_lens)
    starts = (q_lens.cumsum(0) - q_lens)[rows]
    places = torch.arange(len(rows), device=table.device) - starts + (kv_lens - q_lens)[rows]
    return table[rows, places // block] * block + places % block
