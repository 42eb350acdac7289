# SPDX-License-Identifier: Apache-2.0
"""Passes over a graph of dynamo's, in the order in which `build` runs them."""
