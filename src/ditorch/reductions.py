# SPDX-License-Identifier: Apache-2.0
"""Reductions that a backend lacks, or rounds after every addition.

NCCL has PREMUL_SUM, which FSDP2 uses where a program sets the divisor of gradients. gloo does not
have it: the factor is applied before a SUM. With DITORCH_FLOAT32_REDUCE, ranks reduce float16 and
bfloat16 in float32 and round once; otherwise the sum of many ranks' bfloat16 gradients may depend
on their number and order. The reducing functions of torch.distributed are patched here; calls of
the backend from C++ (DDP's own buckets) are not.
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
from ditorch.target import Target

WITHOUT_PREMUL_SUM = ("gloo",)  # backends
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


def apply(patches: Patches, target: Target) -> None:
    """Patch the functions if the setting or the backend requires it; otherwise it costs nothing."""
    if not dist.is_available():
        return
    widens = settings.DITORCH_FLOAT32_REDUCE.get()
    multiplies = target.vendor.collective in WITHOUT_PREMUL_SUM
    if not widens and not multiplies:
        return
    for name, arguments in ARGUMENTS.items():
        function = getattr(dist.distributed_c10d, name, None)
        if function is not None:
            wrap(patches, function, _patched(arguments, widens, multiplies))


def _patched(
    arguments: Sequence[str], widens: bool, multiplies: bool
) -> Callable[[Callable[..., Any], dict[str, Any]], Any]:
    def reduce(original: Callable[..., Any], given: dict[str, Any]) -> Any:
        if multiplies:
            given = _multiplied(arguments, given)
        written = _flat(given[arguments[0]])
        if not widens or not _wanted(written, given):
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


def _multiplied(arguments: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a SUM that equals the requested PREMUL_SUM, else those given."""
    op = given.get("op")
    if op != dist.ReduceOp.PREMUL_SUM:
        return given
    _, factor = op.__getstate__()
    read = given[arguments[-1]]
    with torch.no_grad():
        if len(arguments) == 1 and _receives(given):
            for tensor in _flat(read):  # the result replaces its values
                tensor.mul_(factor)
        elif isinstance(read, list | tuple):
            read = [tensor * factor for tensor in read]
        else:
            read = read * factor
    return {**given, "op": dist.ReduceOp.SUM, arguments[-1]: read}


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
