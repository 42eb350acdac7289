# SPDX-License-Identifier: Apache-2.0
"""Iluvatar's GPUs (天数智芯): the CoreX build of torch presents them as cuda."""

from deeplink.plugin import Marks, presenting_as_cuda

vendor = presenting_as_cuda(
    "iluvatar",
    "Iluvatar",
    Marks(build="corex", attribute="corex", devices=("Iluvatar",)),
)
