# SPDX-License-Identifier: Apache-2.0
"""One folder per vendor. Nobody imports this package: entry points do."""
