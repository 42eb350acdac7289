# SPDX-License-Identifier: Apache-2.0
"""One HTML page for the results of a run; it opens without a network."""
