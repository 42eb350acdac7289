# SPDX-License-Identifier: Apache-2.0
"""A call on the device and on the host: guarded memory, expected results, grading."""
