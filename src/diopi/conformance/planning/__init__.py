# SPDX-License-Identifier: Apache-2.0
"""Which cases a tier runs, and the recipes that make their arguments."""
