# SPDX-License-Identifier: Apache-2.0
"""From a symptom to the operator that causes it, by several runs or two recorded runs."""
