# SPDX-License-Identifier: Apache-2.0
"""Published names that frameworks import."""
