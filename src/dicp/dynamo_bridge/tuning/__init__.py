# SPDX-License-Identifier: Apache-2.0
"""Measurements that choose what runs a graph, and packed weights."""
