# SPDX-License-Identifier: Apache-2.0
"""Values of tensors: copies, statistics, NaN and Inf, aliasing, and what a call writes."""
