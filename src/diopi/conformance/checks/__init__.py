# SPDX-License-Identifier: Apache-2.0
"""The checks of a call: values, gradients, memory, distributions of random operators."""
