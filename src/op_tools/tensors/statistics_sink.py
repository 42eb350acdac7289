# SPDX-License-Identifier: Apache-2.0
"""The native sink that records calls with the statistics of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from op_tools.core import native_library, op_names, tool_errors
from op_tools.tensors import device_reduction


def statistics_sink(
    tool: str,
    limit: int,
    described: Callable[[Tensor], str],
    flush: Callable[[], None],
    *,
    hash_only: bool = False,
    all_inputs: bool = False,
    nonfinite_only: bool = False,
) -> Any:
    """The sink of a tool; None without the native part. `described` gives the JSON of a tensor that
    the sink cannot read, `flush` is called when `limit` lines are pending.
    """
    helper = native_library.helper()
    return helper and helper.StatisticsSink(
        hash_only,
        all_inputs,
        nonfinite_only,
        limit,
        described,
        window,
        device_reduction.starter,
        device_reduction.launcher,
        flush,
        lambda func, text: tool_errors.add(
            tool, op_names.name_of(func) if func else "statistics", RuntimeError(text)
        ),
    )


def window(kind: str, index: int) -> tuple[int, int, int] | None:
    """The device memory that the host can read: see `torch.dipu.host_window`."""
    host_window = getattr(torch.get_device_module(kind), "host_window", lambda index: None)
    window: tuple[int, int, int] | None = host_window(index)
    return window
