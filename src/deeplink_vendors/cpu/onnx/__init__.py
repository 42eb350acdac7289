# SPDX-License-Identifier: Apache-2.0
"""Graphs as ONNX, for compilers of the CPU that read it: types and emitter, then conversions by
family (elementwise, operands, reduction, shape, indexing, matmul, norm, pooling, fused,
decomposed).
"""
