# SPDX-License-Identifier: Apache-2.0
"""Activations and softmaxes, with their gradients."""

from __future__ import annotations

from diopi.op import FLOATS, REALS, Kind, op

FAMILY = "activation"
NN = "nn.functional."

# fmt: off
op("relu", FAMILY, kind="exact", dtypes=REALS, backward="threshold_backward", opinfo=NN + "relu")
op("relu6", FAMILY, kind="exact", dtypes=REALS, backward="hardtanh_backward", opinfo=NN + "relu6")
op("threshold", FAMILY, kind="exact", dtypes=REALS, backward="threshold_backward",
   opinfo=NN + "threshold")
op("threshold_backward", FAMILY, kind="exact", dtypes=REALS, opinfo=NN + "relu")
op("hardtanh", FAMILY, kind="exact", dtypes=REALS[:-1], backward="hardtanh_backward",
   opinfo=NN + "hardtanh")
op("hardtanh_backward", FAMILY, kind="exact", dtypes=FLOATS, opinfo=NN + "hardtanh")
op("hardshrink", FAMILY, kind="exact", dtypes=FLOATS, backward="hardshrink_backward",
   opinfo=NN + "hardshrink")
op("hardshrink_backward", FAMILY, kind="exact", dtypes=FLOATS, opinfo=NN + "hardshrink")
op("softshrink", FAMILY, kind="elementwise", dtypes=FLOATS, backward="softshrink_backward",
   opinfo=NN + "softshrink")
op("softshrink_backward", FAMILY, kind="exact", dtypes=FLOATS, opinfo=NN + "softshrink")

# name -> kind; each has <name>_backward and an entry in op_db
WITH_BACKWARD: dict[str, Kind] = {
    "hardswish": "elementwise",
    "hardsigmoid": "elementwise",
    "leaky_relu": "elementwise",
    "gelu": "composite",
    "silu": "transcendental",
    "elu": "transcendental",
    "softplus": "transcendental",
    "mish": "transcendental",
    "glu": "transcendental",
}
for name, kind in WITH_BACKWARD.items():
    op(name, FAMILY, kind=kind, dtypes=FLOATS, backward=f"{name}_backward", opinfo=NN + name)
    op(f"{name}_backward", FAMILY, kind="composite", dtypes=FLOATS, opinfo=NN + name)
for name in "celu selu".split():
    op(name, FAMILY, kind="transcendental", dtypes=FLOATS, backward="elu_backward",
       opinfo=NN + name)
op("log_sigmoid", FAMILY, aten="log_sigmoid_forward", kind="transcendental", dtypes=FLOATS,
   backward="log_sigmoid_backward", opinfo=NN + "logsigmoid")
op("log_sigmoid_backward", FAMILY, kind="composite", dtypes=FLOATS, opinfo=NN + "logsigmoid")
op("prelu", FAMILY, aten="_prelu_kernel", kind="elementwise", dtypes=FLOATS,
   backward="prelu_backward", opinfo=NN + "prelu")
op("prelu_backward", FAMILY, aten="_prelu_kernel_backward", kind="elementwise", dtypes=FLOATS,
   opinfo=NN + "prelu")

op("softmax", FAMILY, aten="_softmax", kind="composite", dtypes=FLOATS,
   text="_softmax(Tensor self, int dim, bool half_to_float=False) -> Tensor",
   backward="softmax_backward", opinfo="softmax " + NN + "softmin",
   doc="softmax over `dim`; `half_to_float` only where a device casts while reading.")
op("softmax_backward", FAMILY, aten="_softmax_backward_data", kind="composite", dtypes=FLOATS,
   opinfo="softmax")
op("log_softmax", FAMILY, aten="_log_softmax", kind="composite", dtypes=FLOATS,
   text="_log_softmax(Tensor self, int dim, bool half_to_float=False) -> Tensor",
   backward="log_softmax_backward")
op("log_softmax_backward", FAMILY, aten="_log_softmax_backward_data", kind="composite",
   dtypes=FLOATS, opinfo="log_softmax")
op("safe_softmax", FAMILY, aten="_safe_softmax", kind="composite", dtypes=FLOATS, opinfo="",
   backward="softmax_backward")
