# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests on the device that stands for CUDA: suites, workers, results, the command."""
