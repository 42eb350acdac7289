# SPDX-License-Identifier: Apache-2.0
"""One HTML page from whatever a run has written: it opens anywhere, without a network."""
