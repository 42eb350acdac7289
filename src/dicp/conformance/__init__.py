# SPDX-License-Identifier: Apache-2.0
"""Is a backend of torch.compile right? Calls of every operator that it converts, and whole models,
with fixed sizes and sizes that change, judged against float64: `python -m dicp.conformance --help`.
"""
