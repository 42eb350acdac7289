# SPDX-License-Identifier: Apache-2.0
"""The interface of a vendor's graph compiler: one record of tables and functions."""

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
from deeplink.i18n import _
from dicp.conversion import Conversions
from dicp.emitter import Emitter
from dicp.fused import ACTIVATIONS

GROUP = "torch_dynamo_backends"

# inputs are tensors and integers, outputs are tensors
Executable = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Result:
    """The properties of one result of a partition; a size is None where it varies between calls.

    `dtype` is None for an integer.
    """

    dtype: torch.dtype | None
    shape: tuple[int | None, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True)
class Loading:
    """The arguments of a backend's loader, in addition to the blob."""

    name: str  # of the partition, for messages
    constants: Mapping[str, Tensor]  # by the names passed to Emitter.constant
    results: tuple[Result, ...]
    inputs: tuple[str, ...] = ()  # the names of the inputs, in the order of a call
    threads: int = 1
    folder: Path | None = None  # folder for files of the compiler; None: no files


def _same(source: bytes) -> bytes:
    return source


def _nothing(*args: Any) -> Any:
    raise CompileError("this backend takes whole graphs only: it has no emitter and no loader.")


def _every_node(node: fx.Node) -> str | None:
    return None


@dataclass(eq=False)  # torch's registry hashes it, and sets an attribute on it
class GraphCompiler(ABC):
    """A vendor's graph compiler; vendors make a `dicp.Backend`, which torch.compile can call."""

    name: str  # as in torch.compile(backend="ascendgraph")
    # version of the compiler; raises DeeplinkError where it is not installed
    version: Callable[[], str]
    conversions: Conversions = field(default_factory=Conversions)
    emitter: Callable[[], Emitter] = _nothing
    load: Callable[[bytes, Loading], Executable] = _nothing
    # converts the emitted form to the blob that is cached and loaded
    compile: Callable[[bytes], bytes] = _same
    supports: Callable[[fx.Node], str | None] = _every_node  # why a node stays eager, or None
    keep: frozenset[Any] = frozenset()  # overloads that are not decomposed
    # decompositions of other packages' ops
    apart: Callable[[], Mapping[Any, Callable[..., Any]]] = dict
    patterns: frozenset[str] | None = None  # names of dicp.fused; None: all that are converted
    # activations that its linear and conv can fuse
    activations: frozenset[str] = frozenset(ACTIVATIONS)
    # the vendor's own passes, after dicp's
    passes: tuple[Callable[[fx.GraphModule], fx.GraphModule], ...] = ()
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    dynamic: Literal["native", "specialize"] = "specialize"
    devices: tuple[str, ...] = ("cpu",)
    through_host: bool = False  # copies tensors of other devices to the host and back
    embeds: bool = False  # its blob contains the values of its constants
    training: bool = False  # supports the forward and backward graphs of training
    simulated: bool = False  # runs a model of the chip, not the chip: stated with its name
    whole: Callable[..., Any] | None = None  # takes dynamo's graph unchanged
    options: Mapping[str, Any] = field(default_factory=dict)  # defaults of torch.compile's options
    fastest: frozenset[str] = frozenset()  # kinds (dicp.workload) where it was measured to be

    @property
    def label(self) -> str:
        """The name in reports."""
        return f"{self.name} (sim)" if self.simulated else self.name

    @property
    def __name__(self) -> str:
        return self.name

    def wants(self, fused: str) -> bool:
        """Whether its graphs may contain a fused op of `dicp.fused`, given by its bare name."""
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
        """Compile a graph for torch.compile: see `dicp.entry.Backend`."""


def find(name: str) -> GraphCompiler:
    """Return the installed backend of that name."""
    points = importlib.metadata.entry_points(group=GROUP)
    found = list(points.select(name=name))
    if not found:
        names = sorted(points.names)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "install the vendor's package."
        raise NoBackendError(
            _("no backend {name!r} for torch.compile; installed: {names}.").format(
                name=name, names=", ".join(names) or "none"
            ),
            hint,
        )
    backend = found[0].load()
    if not isinstance(backend, GraphCompiler):
        raise NoBackendError(
            _("{name!r} is {value}, of type {kind}, not a dicp Backend.").format(
                name=name, value=found[0].value, kind=type(backend).__name__
            ),
            _('give it to torch.compile by its name: torch.compile(model, backend="…").'),
        )
    return backend


def installed(named: str = "") -> list[tuple[str, str]]:
    """Return the names of the backends with the compiler's version or its error; of all or of one.

    A backend of a distribution that does not require deeplink is loaded only if it is named,
    because loading it may import another compiler.
    """
    rows = []
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda p: p.name):
        if named and point.name != named:
            continue
        if not named and not _requires_deeplink(point.dist):
            owner = point.dist.name if point.dist is not None else "an unknown distribution"
            rows.append((point.name, f"not loaded: {owner} does not require deeplink"))
            continue
        try:
            backend = find(point.name)
        except NoBackendError:  # a function that chooses a backend
            rows.append((point.name, f"not a dicp Backend: {point.value}"))
            continue
        try:
            rows.append((backend.label, backend.version()))
        except DeeplinkError as error:
            rows.append((backend.label, str(error)))
    return rows


def _requires_deeplink(distribution: importlib.metadata.Distribution | None) -> bool:
    """Whether a distribution is deeplink, or requires it."""
    if distribution is None:
        return False
    needs = (re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in distribution.requires or ())
    return "deeplink" in (distribution.name, *needs)
