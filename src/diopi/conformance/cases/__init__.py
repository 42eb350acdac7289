# SPDX-License-Identifier: Apache-2.0
"""What is called: cases and their samples, shapes, memory layouts, random arguments."""
