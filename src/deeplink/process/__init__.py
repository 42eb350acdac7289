# SPDX-License-Identifier: Apache-2.0
"""Processes that deeplink starts, and how they end."""
