# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the test suites of a device: samples, workers, rules of a device, self-test."""
