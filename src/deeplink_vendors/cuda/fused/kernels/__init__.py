# SPDX-License-Identifier: Apache-2.0
"""The kernels themselves, in Triton's language."""
