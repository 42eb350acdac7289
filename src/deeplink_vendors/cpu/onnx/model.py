# SPDX-License-Identifier: Apache-2.0
"""Serialisation of an emitted graph as a model of the onnx package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from deeplink_vendors.cpu.onnx.nodes import MICROSOFT, Node, TensorInfo
from deeplink_vendors.cpu.onnx.types import ELEMENT

OPSET, IR = 23, 11


def serialised(
    nodes: Sequence[Node],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    weights: Sequence[TensorInfo],
    arrays: Mapping[str, np.ndarray[Any, Any]],
) -> bytes:
    """Return equal bytes for equal graphs; weights are named, their data is added on loading."""
    graph = helper.make_graph(
        [
            helper.make_node(n.kind, n.inputs, list(n.outputs), domain=n.domain, **n.attributes)
            for n in nodes
        ],
        "dicp",
        [_info(known) for known in inputs],
        [_info(known) for known in outputs],
        [
            *(_outside(known) for known in weights),
            *(numpy_helper.from_array(array, name) for name, array in arrays.items()),
        ],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR)
    return bytes(model.SerializeToString(deterministic=True))


def _info(known: TensorInfo) -> ValueInfoProto:
    return helper.make_tensor_value_info(known.name, ELEMENT[known.dtype], known.shape)


def _outside(known: TensorInfo) -> TensorProto:
    """Describe a tensor whose data is not in the model."""
    shape = [int(size) for size in known.shape]
    proto = TensorProto(name=known.name, data_type=ELEMENT[known.dtype], dims=shape)
    proto.data_location = TensorProto.EXTERNAL
    size = int(np.prod(shape, dtype=np.int64)) * known.dtype.itemsize
    for key, text in (("location", "weights"), ("offset", "0"), ("length", str(size))):
        proto.external_data.add(key=key, value=text)
    return proto
