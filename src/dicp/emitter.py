# SPDX-License-Identifier: Apache-2.0
"""The interface that builds a vendor's form of one graph; `dicp.dynamo_bridge.codegen` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, fx


class Emitter(Protocol):
    """Created for each partition. Its values are of any type: names, handles, objects."""

    def input(self, node: fx.Node) -> Any:
        """Return the value of an input that changes from call to call: a tensor, or an integer."""

    def constant(self, name: str, tensor: Tensor) -> Any:
        """Return the value of a frozen weight. The tensor has no data (it is on "meta") unless the
        backend `embeds` its constants; the data comes with `Loading.constants`, by this name.
        """

    def output(self, values: Sequence[Any], nodes: Sequence[fx.Node]) -> None:
        """Set the results, in order; called once, last."""

    def finish(self) -> bytes:
        """Return the whole graph: equal bytes for equal graphs, in any process."""
