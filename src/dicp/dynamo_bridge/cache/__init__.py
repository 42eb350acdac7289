# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs and traces on disk."""
