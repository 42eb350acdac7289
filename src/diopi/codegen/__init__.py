# SPDX-License-Identifier: Apache-2.0
"""Generators of files from the op registry: C header, Protocol, reference pages, tables."""
