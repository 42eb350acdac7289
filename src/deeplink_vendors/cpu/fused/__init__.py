"""Fused kernels of the CPU, in C++ on its dispatch key: float32 and bfloat16.

They are built on first use (`deeplink.native`) and take what vector instructions the processor has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from deeplink import native as parts
from dlinfer.layout import Layout

CACHE = Layout("NHBD")  # the keys of a head and block one after another: fewer pages to walk
NATIVE = (
    "rms_norm",
    "add_rms_norm",
    "silu_and_mul",
    "rotary",
    "fill_kv_cache",
    "prefill_attention",
    "paged_prefill_attention",
    "paged_decode_attention",
)
log = logging.getLogger("dlinfer")


def native(refused: Callable[..., Any]) -> tuple[str, ...]:
    """Puts the kernels on the dispatch key; BuildError where they cannot be built."""
    parts.load_extension(__name__, say=log.warning).start(refused)
    return NATIVE


def bypass(on: bool) -> None:
    """While on, every call goes to what `native` was given."""
    parts.load_extension(__name__).bypass(on)
