# SPDX-License-Identifier: Apache-2.0
"""The precision that a call may have on its device, by `deeplink.precision`."""

from __future__ import annotations

import torch
from torch import nn

from deeplink import precision
from deeplink.i18n import _
from deeplink.judge.verdict import name_of
from deeplink.precision import Factors, Precision, Sums
from op_tools.compare.eligibility import RECURRENT, modules_of
from op_tools.compare.rerun import Rerun
from op_tools.core.call import Call
from op_tools.tensors import host_transfer

# Products whose factors a program may let the device round.
MATRICES = frozenset(
    """
    linear matmul mm bmm addmm baddbmm addbmm mv addmv dot vdot einsum tensordot bilinear
    multi_head_attention_forward scaled_dot_product_attention
    """.split()
)


def now(call: Call) -> Precision:
    """The precision of a call's device under the program's present settings."""
    kind = None if call.device is None else _kinds.get(call.device)
    if kind is None:
        first = next((t for t in call.inputs if t.device.type != "cpu"), None)
        if first is None:
            return precision.EXACT
        kind = _kinds[first.device] = host_transfer.kind_of(first)
    return precision.of_device(kind)


_kinds: dict[torch.device, str] = {}  # of devices as the program sees them


def factors(rerun: Rerun) -> tuple[Factors | None, Factors | None]:
    """The formats that float32 factors may be rounded to: of matrices, and of convolutions."""
    if rerun.stored not in (torch.float32, torch.complex64):
        return None, None
    allowed = rerun.precision
    matrices = (allowed.recurrent if _is_recurrent(rerun.call) else None) or allowed.matmul
    return matrices, allowed.convolution


def functions(rerun: Rerun) -> float:
    """The relative error of float32 functions in this call; 0: as everywhere."""
    return rerun.precision.recurrent_functions if _is_recurrent(rerun.call) else 0.0


def sums(rerun: Rerun) -> Sums | None:
    """The type in which partial sums of the call's matrix products may be stored."""
    name = name_of(rerun.autocast or rerun.stored)
    return next((sums for sums in rerun.precision.sums if sums.format == name), None)


def allowance(rerun: Rerun) -> str:
    """Describe the rounding that the program allows in the products of this call; "": none."""
    matrices, convolutions = factors(rerun)
    word, module = rerun.call.operator, bool(_layers(rerun.call))
    found = [
        convolutions if module or word.startswith("conv") else None,
        matrices if module or word in MATRICES | RECURRENT else None,
    ]
    allowed = _("{format}, which {allowed_by} allows")
    factors_of = [f for f in found if f is not None]
    texts = [allowed.format(format=f.format, allowed_by=f.allowed_by) for f in factors_of]
    narrow = sums(rerun) if module or word in MATRICES else None
    if narrow is not None:
        allowed = _("partial sums in {format}, which {allowed_by} allows")
        texts.append(allowed.format(format=narrow.format, allowed_by=narrow.allowed_by))
    return _(" and ").join(dict.fromkeys(texts))


def _layers(call: Call) -> list[nn.Module]:
    """The modules whose code a call is; of a layer of one iteration, itself alone."""
    layer = getattr(call.func, "module", None) if call.level != "module" else None
    if isinstance(layer, nn.Module):
        return [layer]
    return [layer for root in modules_of(call) for layer in root.modules()]


def _is_recurrent(call: Call) -> bool:
    layers = _layers(call)
    return call.operator in RECURRENT or any(isinstance(layer, nn.RNNBase) for layer in layers)
