# SPDX-License-Identifier: Apache-2.0
"""Results of a run: known gaps, tables, pages."""
