# SPDX-License-Identifier: Apache-2.0
"""The native part of op_tools (csrc/), loaded by `op_tools.core.native_library.helper()`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

# Values in host memory. `kind` is the number of a type of values in op_tools/tensors/statistics.py.
def measure(address: int, count: int, kind: int, hash_only: bool, times: int) -> list[Any]: ...

STATISTICS: tuple[str, ...]  # the names in the order of `measure`, behind the hash
FIELDS: int

def hash(address: int, size: int) -> int: ...
def compare(
    a: int, b: int, count: int, kind: int
) -> tuple[int, int, float, float, float, float]: ...

# Counters that Python shares.
class Ids:
    def __init__(self, first: int) -> None: ...
    def __iter__(self) -> Iterator[int]: ...
    def __next__(self) -> int: ...

def set_step(step: int) -> None: ...

# Interception.
def watch_kernels(
    on: bool,
    host: bool,
    decide: Callable[[str], Any],
    before: Callable[..., Any],
    after: Callable[..., None],
) -> None: ...
def finish_gradients() -> None: ...

class CallHeaders:
    def __init__(
        self,
        module_stack: object,
        local: object,
        works_on: Callable[[str], bool],
        is_program: Callable[[Any], bool],
        site: Callable[[Any, int], str],
        quote: Callable[[str], str],
    ) -> None: ...
    def take_counts(self) -> dict[str, int]: ...

class ApiFunction:
    def __init__(
        self,
        sink: Sink,
        owner: object,
        headers: CallHeaders,
        name: str,
        may_write: bool,
        counts_first_write: bool,
        otherwise: Callable[..., Any],
    ) -> None: ...
    def __call__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...

class SignatureFilter:
    def __init__(self, limit: int, local: object) -> None: ...
    def around(self, name: str, selected: Callable[..., Any]) -> Callable[..., Any]: ...

# Sinks.
class Sink: ...

class StatisticsSink(Sink):
    limit: int
    def __init__(
        self,
        hash_only: bool,
        all_inputs: bool,
        nonfinite_only: bool,
        limit: int,
        described: Callable[[Tensor], str],
        window: Callable[[str, int], tuple[int, int, int] | None],
        starter: Callable[[str], Any],
        launcher: Callable[[str, int], Any],
        flush: Callable[[], None],
        problem: Callable[[Any, str], None],
    ) -> None: ...
    def text(self, tensor: Tensor) -> str: ...
    def add(self, line: str) -> None: ...
    def take(self, everything: bool = True) -> bytes: ...
    def work(self, file: int) -> int: ...
    def stop_work(self) -> None: ...
    def end_work(self) -> None: ...

class TimeSink(Sink):
    limit: int
    def __init__(
        self,
        limit: int,
        has_clock: Callable[[torch.device], bool],
        op: Callable[[str], tuple[bool, bool]],
        kind: Callable[..., int],
        flush: Callable[[], None],
        problem: Callable[[str], None],
    ) -> None: ...
    def lines(
        self,
        everything: bool,
        others: list[tuple[int, str]],
        cells: Callable[[int, list[int] | None], tuple[str, str]],
    ) -> bytes: ...
    def sums(self) -> dict[int, tuple[tuple[Any, ...], tuple[Any, ...]]]: ...
    @property
    def pending(self) -> int: ...
    @property
    def spent(self) -> int: ...
