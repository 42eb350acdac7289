# SPDX-License-Identifier: Apache-2.0
"""What the commands report: the device, operators, a program's use of CUDA, hung collectives."""
