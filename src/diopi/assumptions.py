# SPDX-License-Identifier: Apache-2.0
"""Assumptions about ops that torch lacks, where the published headers leave their meaning open."""

from __future__ import annotations

_ATTENTION = (
    "The scores are q·k times softmax_scale; a query sees keys up to its own place counted from "
    "the end, so that the last query sees the last key; query heads share the key heads evenly."
)
_CUSTOMIZED = (
    "A true (not zero) element of attention_mask hides a key. softmax_max and softmax_sum are "
    "(batch, heads, queries), without the repeated last dimension that some kernels keep; "
    "dropout_mask has one element per score, not one bit; softmax_out is left empty."
)
_GRADIENT = "What the forward saved may be used or not: the gradient follows from the inputs."
_PLACES = "The rows of b_loc are filled to the right: the last token is at max_input_len - 1."
_STATISTICS = (
    "The header calls the statistics running_mean and running_var, and hands them to the gradient "
    "as running_mean and running_std. They are taken for the mean and 1/sqrt(variance + eps) of "
    "each row, as the results of aten::native_layer_norm, to which the function is mapped."
)

ASSUMED: dict[str, str] = {
    "layer_norm_gb": _STATISTICS,
    "layer_norm_gb_backward": _STATISTICS,
    "apply_penalty": (
        "One presence and one frequency penalty per row; p_cumsum_seq_len has the bounds of the "
        "rows in p_token_ids, from 0; an id stands at most once in a row."
    ),
    "apply_penalty_v2": (
        "p_token_ids are positions in the flattened logits, and each penalty has one element per "
        "id. The repetition factor comes first: a positive logit is divided by it, another "
        "multiplied; then frequency times count and presence are subtracted."
    ),
    "matmul_all_reduce": (
        "The reference is a group of one process, so the reduction changes nothing; comm_turn and "
        "stream_mode say how, not what. The bias is added before the reduction."
    ),
    "flash_attention": _ATTENTION,
    "flash_attention_var_len": _ATTENTION,
    "flash_attention_backward": _GRADIENT,
    "flash_attention_var_len_backward": _GRADIENT,
    "customized_flash_attention": f"{_ATTENTION} {_CUSTOMIZED}",
    "customized_flash_attention_var_len": (
        f"{_ATTENTION} {_CUSTOMIZED} The ends of the sequences are given without the leading 0."
    ),
    "customized_flash_attention_backward": f"{_GRADIENT} Only p_dropout 0 has a reference.",
    "customized_flash_attention_var_len_backward": f"{_GRADIENT} Only p_dropout 0 has a reference.",
    "multi_head_attention": (
        f"{_ATTENTION} debug_attn_mask is what dropout kept, where it is wanted, else empty."
    ),
    "multi_head_attention_var_len": f"{_ATTENTION} debug_attn_mask is left empty.",
    "multi_head_attention_backward": _GRADIENT,
    "multi_head_attention_var_len_backward": _GRADIENT,
    "rotary_embedding_v2": (
        "The halves of each head are turned against each other; cos and sin have the full size of "
        "a head, one row per token."
    ),
    "scaled_masked_softmax": (
        "A masked score becomes -10000, not -inf: a row that is masked throughout is spread evenly."
    ),
    "token_attention_inference": f"{_PLACES} The scale is 1/sqrt(head size).",
    "token_softmax_reduce_v_inference": f"{_PLACES} other_kv_index is a place safe to read.",
    "context_attention_inference": "Causal, with the scale 1/sqrt(head size).",
    "paged_attention": (
        "A true element of atten_mask hides a key; the scale is 1/sqrt(dim); block_table holds the "
        "numbers of blocks of block_size tokens."
    ),
    "prompt_flash_attention": (
        "Causal where there is no mask; else a true element of it hides a key, and one map may "
        "serve all prompts. The scale is 1/sqrt(dim)."
    ),
    "sgd": "The header lets grad be written; the reference leaves it as it is.",
    "clip_grad_norm": "The norm is returned as a number; 1e-6 is added to it before the division.",
    "native_memory_format_cast": "The reference has no layout of its own, and returns a copy.",
    "get_native_memory_format": "The reference has the plain layout only, whose number is 0.",
}
