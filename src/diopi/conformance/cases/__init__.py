# SPDX-License-Identifier: Apache-2.0
"""The calls of the suite: cases and their samples, shapes, memory layouts, random arguments."""
