# SPDX-License-Identifier: Apache-2.0
"""Correctness of a torch.compile backend: calls of every operator that it converts, and whole
models, with fixed and changing sizes, judged against float64: `python -m dicp.conformance --help`.
"""
