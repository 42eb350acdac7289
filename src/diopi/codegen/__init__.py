# SPDX-License-Identifier: Apache-2.0
"""What is written from the registry: C header, Protocol, reference pages, tables."""
