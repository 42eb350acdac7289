# SPDX-License-Identifier: Apache-2.0
"""The origin of the first NaN or Inf of a program."""
