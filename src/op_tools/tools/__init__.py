# SPDX-License-Identifier: Apache-2.0
"""Tools of one file each."""
