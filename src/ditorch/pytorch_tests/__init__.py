# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests on the device that represents CUDA: suites, workers, results, command."""
