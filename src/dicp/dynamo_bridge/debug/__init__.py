# SPDX-License-Identifier: Apache-2.0
"""Comparison with eager, and the search for the operator that a compiler gets wrong."""
