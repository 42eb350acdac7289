# SPDX-License-Identifier: Apache-2.0
"""Environment variables for debugging: operators compared with the CPU, counted and reported."""
