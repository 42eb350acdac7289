# SPDX-License-Identifier: Apache-2.0
"""What is checked of a call: values, gradients, memory, distributions of random operators."""
