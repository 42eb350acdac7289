# SPDX-License-Identifier: Apache-2.0
"""DITORCH_FLOAT32_REDUCE: ranks reduce float16 and bfloat16 in float32 and round once.

A backend may round after every addition; then the sum of many ranks' bfloat16 gradients depends on
their number and order. The reducing functions of torch.distributed are widened here; calls of the
backend from C++ (DDP's own buckets) are not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from deeplink import settings
from ditorch.distributed import wrap
from ditorch.patches import Patches

SHORT = (torch.float16, torch.bfloat16)
EXACT = (dist.ReduceOp.MIN, dist.ReduceOp.MAX) if dist.is_available() else ()  # they never round

# the arguments that each function writes, then those that it only reads
ARGUMENTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "all_reduce": ("tensor",),
        "all_reduce_coalesced": ("tensors",),
        "reduce": ("tensor",),
        "reduce_scatter": ("output", "input_list"),
        "reduce_scatter_tensor": ("output", "input"),
        "reduce_scatter_single": ("output", "input"),  # its name from torch 2.13 on
    }
)


def apply(patches: Patches) -> None:
    """Patch the functions only if the setting is on, so that it costs nothing otherwise."""
    if not dist.is_available() or not settings.DITORCH_FLOAT32_REDUCE.get():
        return
    for name, arguments in ARGUMENTS.items():
        function = getattr(dist.distributed_c10d, name, None)
        if function is not None:
            wrap(patches, function, _widened(arguments))


def _widened(arguments: Sequence[str]) -> Callable[[Callable[..., Any], dict[str, Any]], Any]:
    def reduce(original: Callable[..., Any], given: dict[str, Any]) -> Any:
        written = _flat(given[arguments[0]])
        if not _wanted(written, given):
            return original(**given)
        wide = {name: _wide(given[name]) for name in arguments}
        work = original(**{**given, **wide})
        if not _receives(given):
            return work
        rounded = RoundedWork(work, written, _flat(wide[arguments[0]]))
        if given.get("async_op"):
            return rounded
        rounded.finish()
        return work

    return reduce


def _wanted(written: Sequence[Any], given: Mapping[str, Any]) -> bool:
    group = given.get("group")
    return (
        all(isinstance(tensor, torch.Tensor) and tensor.dtype in SHORT for tensor in written)
        and given.get("op", dist.ReduceOp.SUM) not in EXACT
        and dist.get_rank(group) >= 0
        # inside a coalescing manager a call only adds its tensors to a list
        and (group or dist.group.WORLD) not in dist.distributed_c10d._world.pg_coalesce_state
    )


def _receives(given: Mapping[str, Any]) -> bool:
    """Whether this rank gets a result; False where `reduce` sends it to another rank."""
    if given.get("dst") is not None:
        return bool(given["dst"] == dist.get_rank())
    return given.get("group_dst") in (None, dist.get_rank(given.get("group")))


def _flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _wide(value: Any) -> Any:
    return [_wide(part) for part in value] if isinstance(value, list | tuple) else value.float()


class RoundedWork(dist._Work if dist.is_available() else object):  # type: ignore[misc]
    """A Work on the wide tensors, which rounds into the program's own
    tensors when it is complete.
    """

    def __init__(
        self, inner: Any, results: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]
    ) -> None:
        super().__init__()
        self._inner, self._results, self._wide = inner, list(results), list(wide)
        self._lock, self._finished = threading.Lock(), False

    def finish(self) -> None:
        """Round the results once, at the first request."""
        with self._lock, torch.no_grad():
            if not self._finished:
                for result, wide in zip(self._results, self._wide, strict=True):
                    result.copy_(wide)
                self._finished = True

    def wait(self, timeout: timedelta | None = None) -> bool:
        done = self._inner.wait() if timeout is None else self._inner.wait(timeout)
        self.finish()
        return bool(done)

    def synchronize(self) -> None:
        self._inner.synchronize()
        self.finish()

    def is_completed(self) -> bool:
        """Whether the work is complete; rounds the results for a program that
        polls and does not wait.
        """
        done = bool(self._inner.is_completed())
        if done:
            self.finish()
        return done

    def get_future(self) -> Any:
        def finished(future: Any) -> list[torch.Tensor]:
            future.value()  # raises the backend's error
            self.finish()
            return self._results

        return self._inner.get_future().then(finished)

    def result(self) -> list[torch.Tensor]:
        return self._results

    def is_success(self) -> bool:
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def source_rank(self) -> int:
        return int(self._inner.source_rank())

    def abort(self) -> None:
        self._inner.abort()
