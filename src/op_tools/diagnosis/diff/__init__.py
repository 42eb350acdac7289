# SPDX-License-Identifier: Apache-2.0
"""Comparison of two recorded runs, call by call."""
