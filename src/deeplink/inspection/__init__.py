# SPDX-License-Identifier: Apache-2.0
"""Reports of the commands: the device, operators, a program's use of CUDA, hung collectives."""
