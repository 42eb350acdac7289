# SPDX-License-Identifier: Apache-2.0
"""Search for the operators that make a program's loss wrong, by runs with some of
them on the CPU.
"""
