# SPDX-License-Identifier: Apache-2.0
"""The backend that torch.compile calls: a vendor's record of a graph compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from dicp.backend import GraphCompiler


class Backend(GraphCompiler):
    """A graph compiler. `torch.compile(model, backend=…)` takes the record itself, or its name
    when an entry point of the group `torch_dynamo_backends` names it.
    """

    def __call__(
        self,
        gm: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        mode: str | None = None,
    ) -> Callable[..., Any]:
        """Compile a graph; torch.compile calls this."""
        from dicp.dynamo_bridge.compile_fx import compile_fx  # slow to import

        return compile_fx(gm, example_inputs, self, options=options, mode=mode)
