# SPDX-License-Identifier: Apache-2.0
"""T-Head's PPUs (平头哥): their build of torch presents them as cuda, without a name of its own."""

from deeplink.plugin import Marks, presenting_as_cuda

vendor = presenting_as_cuda(
    "thead",
    "T-Head",
    Marks(node="/dev/alixpu", devices=("PPU-",)),
)
