# SPDX-License-Identifier: Apache-2.0
"""The declaration of a fused op: a plain torch function, registered once as a torch op.

The function is the op's meaning, the reference for correctness (the vendor `reference`) and, where
its values do not determine the shapes, its shape and type inference. `kernels.py` selects the
kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dlinfer import kernels
from dlinfer.registry import OPS, Function, FusedOp

_LIBRARY = torch.library.Library("dlinfer", "DEF")  # lives as long as the process


def op(
    parameters: str,
    returns: str = "Tensor",
    fake: Function | None = None,
    in_graphs: Function | None = None,
) -> Callable[[Function], Function]:
    """Declare an op by its meaning; `fake` returns the results' shapes where values determine them.

    `in_graphs` is the meaning in ops that compilers support better, if there is one; it returns
    NotImplemented for calls that are not decomposed.
    """

    def declare(meaning: Function) -> Function:
        name = meaning.__name__
        schema = f"{name}({parameters}) -> {returns}"
        tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
        _LIBRARY.define(schema, tags=tags)
        doc = (meaning.__doc__ or "").strip()
        declared = OPS[name] = FusedOp(name, schema, meaning, doc, in_graphs)
        _LIBRARY.impl(name, kernels.entry(declared), "CompositeExplicitAutograd")
        torch.library.register_fake(f"dlinfer::{name}", fake or meaning, lib=_LIBRARY)
        return meaning

    return declare


_NARROW = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)


def wide(x: Tensor) -> Tensor:
    """Convert to float32 or wider, in which the meanings compute before they round once."""
    return x.float() if x.dtype in _NARROW else x
