# SPDX-License-Identifier: Apache-2.0
"""The commands of `deeplink`: their options and help, without importing torch."""
