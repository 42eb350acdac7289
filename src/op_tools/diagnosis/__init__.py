# SPDX-License-Identifier: Apache-2.0
"""From a symptom to the operator: what is found out by several runs, or by two recorded ones."""
