# SPDX-License-Identifier: Apache-2.0
"""vLLM's layers that are dlinfer's ops, in the place that vLLM keeps for others' layers."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from dlinfer import fused

norms: Any = importlib.import_module("vllm.model_executor.layers.layernorm")
gates: Any = importlib.import_module("vllm.model_executor.layers.activation")
registry: Any = importlib.import_module("vllm.model_executor.custom_op")


class Norm(norms.RMSNorm):  # type: ignore[misc]
    """`rms_norm`, `add_rms_norm`."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """The sum with the residual is the second result, where there is one."""
        whole = getattr(self, "variance_size_override", None) is None and self.has_weight
        if not whole:
            return super().forward(x, residual)
        if residual is None:
            return fused.rms_norm(x, self.weight.data, self.variance_epsilon)
        return fused.add_rms_norm(x, residual, self.weight.data, self.variance_epsilon)


class Gate(gates.SiluAndMul):  # type: ignore[misc]
    """`silu_and_mul`."""

    def forward(self, x: Tensor) -> Any:
        """silu(first half) * second half."""
        return fused.silu_and_mul(x)


def register() -> None:
    """From now on vLLM makes these where a model asks for its own; a second time is the first."""
    for kind, ours in ((norms.RMSNorm, Norm), (gates.SiluAndMul, Gate)):
        if registry.op_registry_oot.get(kind.__name__) is not ours:
            kind.register_oot(ours)
