# SPDX-License-Identifier: Apache-2.0
"""Kernels of anyone as the subject of the suite: find, match with ops, call and watch them.

Read spec, sources, matching, adapting, watching, problems.
"""
