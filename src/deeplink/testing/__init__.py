# SPDX-License-Identifier: Apache-2.0
"""What the test suites of a device share: samples, workers, rules of a device, self-test."""
