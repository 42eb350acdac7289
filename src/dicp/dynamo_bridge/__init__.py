# SPDX-License-Identifier: Apache-2.0
"""From dynamo's graph to a vendor's executable; the files are named in processing order:

compile_fx, build with its passes, partition, codegen, load, run. The rest: the caches on disk,
measurements, the search for wrong operators and the report.
"""
