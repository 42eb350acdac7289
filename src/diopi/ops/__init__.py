# SPDX-License-Identifier: Apache-2.0
"""The declarations, one file per family; importing a file registers its ops."""
