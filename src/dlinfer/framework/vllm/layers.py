# SPDX-License-Identifier: Apache-2.0
"""vLLM's layers by dlinfer's ops, for vLLM's registry of replacement layers."""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from dlinfer import fused

norms: Any = importlib.import_module("vllm.model_executor.layers.layernorm")
gates: Any = importlib.import_module("vllm.model_executor.layers.activation")
registry: Any = importlib.import_module("vllm.model_executor.custom_op")


class Norm(norms.RMSNorm):  # type: ignore[misc]
    """A norm by `rms_norm` and `add_rms_norm`."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """Return the norm; with a residual also its sum with the residual."""
        whole = getattr(self, "variance_size_override", None) is None and self.has_weight
        if not whole:
            return super().forward(x, residual)
        if residual is None:
            return fused.rms_norm(x, self.weight.data, self.variance_epsilon)
        return fused.add_rms_norm(x, residual, self.weight.data, self.variance_epsilon)


class Gate(gates.SiluAndMul):  # type: ignore[misc]
    """An activation by `silu_and_mul`."""

    def forward(self, x: Tensor) -> Any:
        """Return silu(first half) * second half."""
        return fused.silu_and_mul(x)


def register() -> None:
    """Let vLLM create these layers in place of its own; idempotent."""
    for kind, ours in ((norms.RMSNorm, Norm), (gates.SiluAndMul, Gate)):
        if registry.op_registry_oot.get(kind.__name__) is not ours:
            kind.register_oot(ours)
