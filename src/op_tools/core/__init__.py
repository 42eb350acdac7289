# SPDX-License-Identifier: Apache-2.0
"""Which calls are intercepted, call records and the base of tools. Nothing about values."""
