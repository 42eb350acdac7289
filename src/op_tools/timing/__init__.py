# SPDX-License-Identifier: Apache-2.0
"""OpTimeMeasure: the time of each operator, forward and backward."""
