# SPDX-License-Identifier: Apache-2.0
"""The table of topsgraph: which ATen overloads it maps to calls of TopsGraph's builder."""

from dicp.conversion import Conversions

conversions = Conversions()
register_conversion = conversions.register_conversion
