# SPDX-License-Identifier: Apache-2.0
"""Processes that run cases, and what they need of a device and on disk."""
