# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: one set of cases for every vendor, judged by one rule, in one report.

    python -m diopi.conformance --vendor reference --tier quick

Read in the order of a case's life: case, plan, recipes (with profiles, layouts, growth), subject,
expected, checks, trial; then pool and worker (processes), gaps, report and page, command.
"""
