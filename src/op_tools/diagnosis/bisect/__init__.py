# SPDX-License-Identifier: Apache-2.0
"""Which operators make a program's loss wrong: the program is rerun with part of them elsewhere."""
