# SPDX-License-Identifier: Apache-2.0
"""From dynamo's graph to a vendor's executable; the files are named in processing order:

compile_fx, decompose, canonical, rewrite, merge, layout, fold, partition, cache, codegen, run;
beside them verify, minify, measure and report.
"""
