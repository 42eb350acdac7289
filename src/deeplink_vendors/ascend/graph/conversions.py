# SPDX-License-Identifier: Apache-2.0
"""The table of ascendgraph: which ATen overloads it maps to GE's operators."""

from dicp.conversion import Conversions

conversions = Conversions()
register_conversion = conversions.register_conversion
