# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: one set of cases for every vendor, judged by one rule, in one report.

    python -m diopi.conformance --vendor reference --tier quick

Read in the order of a case's life: cases (with own and models), execution, checks, planning,
workers, results, command.
"""
