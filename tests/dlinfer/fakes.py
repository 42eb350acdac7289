"""Stand-ins for vendors' libraries: their documented functions, computed with torch.

They refuse what the documentation refuses, so that a wrong mapping of arguments fails.
"""

import itertools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

HALF = (torch.float16, torch.bfloat16)


def _norm(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    return ((wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)) * gamma).to(
        x.dtype
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor, **more: Any) -> Tensor:
    """[tokens, heads, size], in float32; zeros for a query that sees nothing."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1).float() for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if more.get("softcap"):
        scores = more["softcap"] * torch.tanh(scores / more["softcap"])
    if more.get("slopes") is not None:
        place = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
        far = (place - torch.arange(k.shape[0])).abs()
        scores = scores - more["slopes"][:, None, None] * far
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)


class Library(ModuleType):
    """A stand-in, and which of its functions were used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.called: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in vars(type(self)):
            super().__getattribute__("called").add(name)
        return super().__getattribute__(name)


class FakeNpu(Library):
    """torch_npu."""

    def __init__(self) -> None:
        super().__init__("torch_npu")

    def npu_rms_norm(self, x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
        assert x.dtype == gamma.dtype and x.dim() >= 2
        return _norm(x, gamma, epsilon), x.new_zeros(1)

    def npu_add_rms_norm(self, x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Any:
        total = x1 + x2
        return _norm(total, gamma, epsilon), x1.new_zeros(1), total

    def npu_swiglu(self, x: Tensor, dim: int = -1) -> Tensor:
        left, right = x.chunk(2, dim)
        return F.silu(left) * right

    def npu_rotary_mul(
        self, x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half"
    ) -> Tensor:
        assert x.dim() == r1.dim() == r2.dim() == 4 and r1.shape[0] == r1.shape[2] == 1
        assert r1.shape[1] == x.shape[1] and r1.shape[3] == x.shape[3] < 896
        if rotary_mode == "half":
            first, second = x.chunk(2, -1)
            other = torch.cat((-second, first), -1)
        else:
            assert rotary_mode == "interleave"
            other = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        return (r1.float() * x + r2.float() * other).to(x.dtype)

    def npu_dynamic_quant(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert x.dtype in HALF and x.dim() > 1
        scale = x.float().abs().amax(-1) / 127
        numbers = (x.float() / scale.where(scale != 0, 1.0)[..., None]).round()
        return numbers.to(torch.int8), scale

    def npu_scatter_pa_kv_cache(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *,
        cache_mode: str = "PA_NZ",
    ) -> None:  # fmt: skip
        assert cache_mode == "Norm" and slots.dtype in (torch.int32, torch.int64)
        assert k_cache.is_contiguous() and v_cache.is_contiguous() and bool((slots >= 0).all())
        for new, cache in ((k, k_cache), (v, v_cache)):
            cache.view(-1, *cache.shape[2:])[slots.long()] = new

    def npu_quant_matmul(
        self, x1: Tensor, x2: Tensor, scale: Tensor, *, pertoken_scale: Tensor,
        bias: Tensor | None = None, output_dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        assert scale.shape == x2.shape[1:] and pertoken_scale.shape == x1.shape[:1]
        assert output_dtype in HALF
        made = (x1.double() @ x2.double()) * scale * pertoken_scale[:, None]
        return (made if bias is None else made + bias).to(output_dtype)

    def npu_weight_quant_batchmatmul(
        self, x: Tensor, weight: Tensor, antiquant_scale: Tensor,
        antiquant_offset: Tensor | None = None, antiquant_group_size: int = 0,
    ) -> Tensor:  # fmt: skip
        inner, outer = weight.shape
        groups = -(-inner // antiquant_group_size) if antiquant_group_size else 1
        assert x.dim() == 2 and antiquant_scale.shape == (groups, outer)
        size = antiquant_group_size or inner
        scale = antiquant_scale.float().repeat_interleave(size, 0)
        offset = 0 if antiquant_offset is None else antiquant_offset.float()
        if antiquant_offset is not None:
            offset = antiquant_offset.float().repeat_interleave(size, 0)
        return x @ ((weight.float() + offset) * scale).to(x.dtype)

    def npu_moe_gating_top_k_softmax(self, x: Tensor, finished: None = None, k: int = 1) -> Any:
        weights, experts = x.softmax(-1).topk(k, -1)
        row = torch.arange(x.shape[0] * k, dtype=torch.int32).view(k, -1).t()
        return weights, experts.int(), row

    def npu_moe_init_routing(
        self, x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int
    ) -> Any:
        assert row_idx.dtype == expert_idx.dtype == torch.int32
        assert row_idx.shape == expert_idx.shape
        experts, order = expert_idx.flatten().sort(stable=True)
        source = row_idx.flatten()[order].long()
        place = torch.empty_like(source)
        place[source] = torch.arange(len(source))
        return x[source % x.shape[0]], place.int(), experts

    def npu_moe_compute_expert_tokens(self, sorted_experts: Tensor, num_expert: int) -> Tensor:
        assert sorted_experts.dtype == torch.int32
        return torch.searchsorted(sorted_experts, torch.arange(num_expert), right=True).int()

    def npu_grouped_matmul(
        self, x: list[Tensor], weight: list[Tensor], *, group_list: Tensor, split_item: int,
        group_type: int, group_list_type: int,
    ) -> list[Tensor]:  # fmt: skip
        assert group_list.dtype == torch.int64 and (split_item, group_type) == (2, 0)
        assert group_list_type == 0 and len(group_list) == weight[0].shape[0]
        ends = [0, *group_list.tolist()]
        parts = [x[0][ends[i] : ends[i + 1]] @ weight[0][i] for i in range(len(group_list))]
        return [torch.cat(parts)]

    def npu_moe_finalize_routing(
        self, rows: Tensor, skip1: None, skip2: None, bias: None, scales: Tensor, place: Tensor,
        experts: Tensor,
    ) -> Tensor:  # fmt: skip
        assert scales.dtype == rows.dtype and place.dtype == torch.int32
        count, chosen = scales.shape
        at = place.long().view(chosen, count).t()
        return (rows[at].float() * scales[..., None].float()).sum(1).to(rows.dtype)

    def npu_fused_infer_attention_score(
        self, query: Tensor, key: Tensor, value: Tensor, *, num_heads: int,
        num_key_value_heads: int, input_layout: str, scale: float,
        atten_mask: Tensor | None = None, sparse_mode: int = 0,
        actual_seq_lengths: list[int] | None = None,
        actual_seq_lengths_kv: list[int] | None = None, block_table: Tensor | None = None,
        block_size: int = 0,
    ) -> Any:  # fmt: skip
        assert query.dtype in HALF and query.is_contiguous() and key.is_contiguous()
        assert sparse_mode != 3 or (atten_mask is not None and atten_mask.shape == (2048, 2048))
        causal = sparse_mode == 3
        if input_layout == "TND":
            assert block_table is None and actual_seq_lengths and actual_seq_lengths_kv
            assert actual_seq_lengths[-1] == query.shape[0]
            starts = zip([0, *actual_seq_lengths], [0, *actual_seq_lengths_kv], strict=True)
            ends = zip(actual_seq_lengths, actual_seq_lengths_kv, strict=True)
            parts = [
                _attend(query[a:b], key[c:d], value[c:d], scale, _after(b - a, d - c, causal))
                for (a, c), (b, d) in zip(list(starts)[:-1], ends, strict=True)
            ]
            return torch.cat(parts), query.new_zeros(1)
        batch, tokens = query.shape[:2]
        queries = query.view(batch, tokens, num_heads, -1)
        out = torch.full_like(queries, torch.nan)  # what it leaves at padding is not documented
        for row in range(batch):
            count = tokens if tokens == 1 or not actual_seq_lengths else actual_seq_lengths[row]
            k, v = key[row], value[row] if block_table is None else None
            if block_table is not None:
                assert block_table.dtype == torch.int32 and actual_seq_lengths_kv is not None
                assert block_size == key.shape[1] and block_size % (16 if tokens == 1 else 128) == 0
                length = actual_seq_lengths_kv[row]
                k, v = (t[block_table[row].long()].flatten(0, 1)[:length] for t in (key, value))
            k, v = (t.reshape(t.shape[0], num_key_value_heads, -1) for t in (k, v))
            hidden = _after(count, k.shape[0], causal)
            if atten_mask is not None and not causal:
                assert atten_mask.shape == (batch, 1, tokens, k.shape[0])
                hidden = atten_mask[row, 0]
            out[row, :count] = _attend(queries[row, :count], k, v, scale, hidden)
        return out.view_as(query), query.new_zeros(1)


def _after(queries: int, keys: int, causal: bool, left: int = -1, right: int = -1) -> Tensor:
    """Which keys are hidden: those after a query, the last of both at one place; and a window."""
    far = torch.arange(queries)[:, None] + (keys - queries) - torch.arange(keys)
    hidden = far < 0 if causal else torch.zeros_like(far, dtype=torch.bool)
    if left >= 0:
        hidden |= far > left
    return hidden | (far < -right) if right >= 0 else hidden


class FakeFlash(Library):
    """flash_attn."""

    def __init__(self) -> None:
        super().__init__("flash_attn")

    def flash_attn_varlen_func(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
        max_seqlen_q: int, max_seqlen_k: int, *, softmax_scale: float, causal: bool,
        window_size: tuple[int, int], softcap: float, alibi_slopes: Tensor | None,
        block_table: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and q.dtype in HALF
        bounds = zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True)
        starts = list(bounds)
        out = torch.zeros_like(q)
        for row, ((a, c), (b, d)) in enumerate(itertools.pairwise(starts)):
            keys, values = k[c:d], v[c:d]
            if block_table is not None:
                assert block_table.dtype == torch.int32 and k.shape[1] % 256 == 0
                keys, values = (t[block_table[row].long()].flatten(0, 1)[: d - c] for t in (k, v))
            out[a:b] = _attend(
                q[a:b], keys, values, softmax_scale, _after(b - a, d - c, causal, *window_size),
                softcap=softcap, slopes=alibi_slopes,
            )  # fmt: skip
        return out

    def flash_attn_with_kvcache(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, *, cache_seqlens: Tensor,
        block_table: Tensor, softmax_scale: float, **how: Any,
    ) -> Tensor:  # fmt: skip
        assert q.dim() == 4 and q.shape[1] == 1 and cache_seqlens.dtype == torch.int32
        rows = torch.arange(q.shape[0] + 1, dtype=torch.int32)
        ends = F.pad(cache_seqlens.cumsum(0, dtype=torch.int32), (1, 0))
        packed = (q[:, 0], k_cache, v_cache, rows, ends, 1, int(cache_seqlens.max()))
        out = self.flash_attn_varlen_func(
            *packed, softmax_scale=softmax_scale, block_table=block_table, **how
        )
        return out[:, None]

    def flash_attn_func(
        self, q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, **how: Any
    ) -> Tensor:
        made = []
        for one, keys, values in zip(q, k, v, strict=True):
            ends = [torch.tensor([0, t.shape[0]], dtype=torch.int32) for t in (one, keys)]
            sizes = (one.shape[0], keys.shape[0])
            made.append(
                self.flash_attn_varlen_func(
                    one, keys, values, *ends, *sizes, softmax_scale=softmax_scale, **how
                )
            )
        return torch.stack(made)


class FakeMlu(Library):
    """torch_mlu_ops."""

    def __init__(self) -> None:
        super().__init__("torch_mlu_ops")

    def fused_rms_norm(
        self, input: Tensor, residual: Tensor | None, gamma: Tensor, beta: None, bias: None,
        eps: float, store_output_before_norm: bool,
    ) -> Any:  # fmt: skip
        assert input.dim() == 2 and input.is_contiguous() and beta is bias is None
        total = input if residual is None else input + residual
        normed = _norm(total, gamma, eps)
        return (normed, total) if store_output_before_norm else normed

    def active(self, input: Tensor, act_mode: str, is_gated: bool) -> Tensor:
        assert input.dim() == 2 and input.is_contiguous() and is_gated
        gate, up = input.chunk(2, -1)
        return {"silu": F.silu, "gelu": F.gelu}[act_mode](gate) * up

    def apply_rotary(
        self, input: Tensor, sin_cache: Tensor, cos_cache: Tensor, position_ids: Tensor,
        cu_seqlens: Tensor, interleaved: bool, discrete: bool, dynamic_ntk: bool, max_seqlen: int,
    ) -> Tensor:  # fmt: skip
        assert position_ids.dtype == cu_seqlens.dtype == torch.int32 and input.is_contiguous()
        assert discrete and not dynamic_ntk and len(position_ids) == input.shape[0]
        assert cu_seqlens.tolist() == [0, input.shape[0]] and input.shape[0] <= max_seqlen
        cos, sin = (t[position_ids.long()][:, None].float() for t in (cos_cache, sin_cache))
        first, second = (input[..., ::2], input[..., 1::2]) if interleaved else input.chunk(2, -1)
        other = (
            torch.stack((-second, first), -1).flatten(-2)
            if interleaved
            else torch.cat((-second, first), -1)
        )
        return (cos * input + sin * other).to(input.dtype)

    def reshape_paged_cache(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        assert slot_mapping.dtype == torch.int32 and bool((slot_mapping >= 0).all())
        assert k_cache.is_contiguous() and v_cache.is_contiguous()
        size, slots = k_cache.shape[2], slot_mapping.long()
        for new, cache in ((k, k_cache), (v, v_cache)):
            cache[slots // size, :, slots % size] = new

    def flash_attention(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, cu_seq_lens_q: Tensor,
        cu_seq_lens_kv: Tensor, alibi_slope: None, attn_bias: None, max_seq_len_q: int,
        max_seq_len_kv: int, softmax_scale: float, is_causal: bool, window_size_left: int = -1,
        window_size_right: int = -1,
    ) -> None:  # fmt: skip
        assert cu_seq_lens_q.dtype == cu_seq_lens_kv.dtype == torch.int32 and q.dtype in HALF
        assert all(t.is_contiguous() for t in (q, k, v, out)) and alibi_slope is attn_bias is None
        ends = zip(cu_seq_lens_q.tolist(), cu_seq_lens_kv.tolist(), strict=True)
        for (a, c), (b, d) in itertools.pairwise(ends):
            assert b - a <= max_seq_len_q and d - c <= max_seq_len_kv
            hidden = _after(b - a, d - c, is_causal, window_size_left, window_size_right)
            out[a:b] = _attend(q[a:b], k[c:d], v[c:d], softmax_scale, hidden)

    def single_query_cached_kv_attn(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, out: Tensor, block_tables: Tensor,
        context_lens: Tensor, k_cache_quant_scale: None, v_cache_quant_scale: None,
        alibi_slopes: None, max_contxt_len: int, windowsize_left: int, windowsize_right: int,
        softmax_scale: float,
    ) -> None:  # fmt: skip
        assert q.dim() == 4 and q.shape[1] == 1 and q.is_contiguous() and out.is_contiguous()
        assert block_tables.dtype == context_lens.dtype == torch.int32
        assert k_cache.is_contiguous() and k_cache.shape[2] == 16
        for row, length in enumerate(context_lens.tolist()):
            assert length <= max_contxt_len
            blocks = block_tables[row, : -(-length // 16)].long()
            k, v = (c[blocks].transpose(1, 2).flatten(0, 1)[:length] for c in (k_cache, v_cache))
            hidden = _after(1, length, True, windowsize_left, windowsize_right)
            made = _attend(q[row], k, v, softmax_scale, hidden)
            out[row] = made if length else torch.nan  # what it leaves there is not documented

    def matmul(self, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        assert a.dim() == b.dim() == 2 and a.is_contiguous() and b.is_contiguous()
        return F.linear(a, b, bias)
