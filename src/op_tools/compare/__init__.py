# SPDX-License-Identifier: Apache-2.0
"""OpAutoCompare: each call judged on the host, a small one whole, a large one by a sample."""
