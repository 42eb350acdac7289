# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: metrics of the last training steps, on disk at any moment."""
