# SPDX-License-Identifier: Apache-2.0
"""What a vendor's folder gives for torch.compile: one record of tables and functions."""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx

from deeplink.errors import CompileError, DeeplinkError, NoBackendError
from dicp.conversion import Conversions
from dicp.emitter import Emitter
from dicp.fused import ACTIVATIONS

GROUP = "torch_dynamo_backends"

Executable = Callable[[list[Any]], Sequence[Any]]  # tensors and whole numbers in, tensors out


@dataclass(frozen=True)
class Result:
    """What is known of one result of a partition; a size is None where it changes by the call.

    `dtype` is None for a whole number.
    """

    dtype: torch.dtype | None
    shape: tuple[int | None, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True)
class Loading:
    """What a blob is loaded with: all that is not in the blob."""

    name: str  # of the partition, for messages
    constants: Mapping[str, Tensor]  # by the names that Emitter.constant was called with
    results: tuple[Result, ...]
    inputs: tuple[str, ...] = ()  # the names of the inputs, in the order of a call
    threads: int = 1
    folder: Path | None = None  # a compiler may keep files of its own here; None: nowhere


def _same(source: bytes) -> bytes:
    return source


def _nothing(*args: Any) -> Any:
    raise CompileError("this backend takes whole graphs only: it has no emitter and no loader.")


def _every_node(node: fx.Node) -> str | None:
    return None


@dataclass(eq=False)  # torch's registry hashes it, and marks it by an attribute
class GraphCompiler(ABC):
    """A vendor's graph compiler; vendors make a `dicp.Backend`, which torch.compile can call."""

    name: str  # as in torch.compile(backend="ascendgraph")
    version: Callable[[], str]  # the compiler's; raises DeeplinkError where it is not installed
    conversions: Conversions = field(default_factory=Conversions)
    emitter: Callable[[], Emitter] = _nothing
    load: Callable[[bytes, Loading], Executable] = _nothing
    compile: Callable[[bytes], bytes] = _same  # from what was emitted to what is kept and loaded
    supports: Callable[[fx.Node], str | None] = _every_node  # why a node stays eager, or None
    keep: frozenset[Any] = frozenset()  # overloads that the decomposition leaves whole
    apart: Callable[[], Mapping[Any, Callable[..., Any]]] = dict  # others' ops, in plain torch
    patterns: frozenset[str] | None = None  # names of dicp.fused; None: all that are converted
    activations: frozenset[str] = frozenset(ACTIVATIONS)  # which its linear and conv take in
    passes: tuple[Callable[[fx.GraphModule], fx.GraphModule], ...] = ()  # its own, after ours
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    dynamic: Literal["native", "specialize"] = "specialize"
    devices: tuple[str, ...] = ("cpu",)
    through_host: bool = False  # tensors of other devices go to the host and back
    embeds: bool = False  # its blob holds the values of its constants
    training: bool = False  # may compile the forward and backward graphs of training
    simulated: bool = False  # runs a model of the chip, not the chip: said wherever it is named
    whole: Callable[..., Any] | None = None  # takes the graph from torch.compile as it is
    options: Mapping[str, Any] = field(default_factory=dict)  # defaults of torch.compile's options
    fastest: frozenset[str] = frozenset()  # kinds (dicp.workload) where it was measured to be

    @property
    def label(self) -> str:
        """How reports call it."""
        return f"{self.name} (sim)" if self.simulated else self.name

    @property
    def __name__(self) -> str:
        return self.name

    def wants(self, fused: str) -> bool:
        """Whether a fused op of `dicp.fused`, by its bare name, is to appear in its graphs."""
        if self.patterns is not None and fused not in self.patterns:
            return False
        return getattr(torch.ops.dicp, fused).default in self.conversions

    @abstractmethod
    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable[..., Any]:
        """What torch.compile calls with a graph: see `dicp.entry.Backend`."""


def find(name: str) -> GraphCompiler:
    """The installed backend of that name."""
    points = importlib.metadata.entry_points(group=GROUP)
    found = list(points.select(name=name))
    if not found:
        names = sorted(points.names)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "install the vendor's package."
        raise NoBackendError(
            f"no backend {name!r} for torch.compile; installed: {', '.join(names) or 'none'}.", hint
        )
    backend = found[0].load()
    if not isinstance(backend, GraphCompiler):
        raise NoBackendError(
            f"{name!r} is {found[0].value}, of type {type(backend).__name__}, not a dicp Backend.",
            'give it to torch.compile by its name: torch.compile(model, backend="…").',
        )
    return backend


def installed(named: str = "") -> list[tuple[str, str]]:
    """The names of the backends, and the version of each compiler or what it lacks; or of one.

    A backend of a distribution that does not require deeplink is loaded only where it is named:
    loading it may import another compiler.
    """
    rows = []
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda p: p.name):
        if named and point.name != named:
            continue
        if not named and not _ours(point.dist):
            owner = point.dist.name if point.dist is not None else "an unknown distribution"
            rows.append((point.name, f"not loaded: {owner} does not require deeplink"))
            continue
        try:
            backend = find(point.name)
        except NoBackendError:  # a function that chooses one of them
            rows.append((point.name, f"not a dicp Backend: {point.value}"))
            continue
        try:
            rows.append((backend.label, backend.version()))
        except DeeplinkError as error:
            rows.append((backend.label, str(error)))
    return rows


def _ours(distribution: importlib.metadata.Distribution | None) -> bool:
    """Whether a distribution is this one, or needs it."""
    if distribution is None:
        return False
    needs = (re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in distribution.requires or ())
    return "deeplink" in (distribution.name, *needs)
