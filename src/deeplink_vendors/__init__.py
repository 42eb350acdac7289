# SPDX-License-Identifier: Apache-2.0
"""One folder per vendor. No module imports this package: entry points do."""
