# SPDX-License-Identifier: Apache-2.0
"""What builds a vendor's form of one graph; `dicp.dynamo_bridge.codegen` walks, it writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, fx


class Emitter(Protocol):
    """Made anew for each partition. Its values are whatever it likes: names, handles, objects."""

    def input(self, node: fx.Node) -> Any:
        """The value of an input that changes from call to call: a tensor, or a whole number."""

    def constant(self, name: str, tensor: Tensor) -> Any:
        """The value of a frozen weight. The tensor has no data (it is on "meta") unless the
        backend `embeds` its constants; the data comes with `Loading.constants`, by this name.
        """

    def output(self, values: Sequence[Any], nodes: Sequence[fx.Node]) -> None:
        """The results, in order; called once, last."""

    def finish(self) -> bytes:
        """The whole graph: the same bytes for the same graph, in any process."""
