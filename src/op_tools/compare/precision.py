# SPDX-License-Identifier: Apache-2.0
"""How exact a call may be on its device: what of `deeplink.precision` is about it."""

from __future__ import annotations

import torch
from torch import nn

from deeplink import precision
from deeplink.i18n import _
from deeplink.judge.verdict import name_of
from deeplink.precision import Factors, Precision, Sums
from op_tools.compare.eligibility import RECURRENT, modules_of
from op_tools.compare.rerun import Again
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
    """How exact a call's device may be at this moment."""
    kind = None if call.device is None else _kinds.get(call.device)
    if kind is None:
        first = next((t for t in call.given if t.device.type != "cpu"), None)
        if first is None:
            return precision.EXACT
        kind = _kinds[first.device] = host_transfer.kind_of(first)
    return precision.of_device(kind)


_kinds: dict[torch.device, str] = {}  # of devices as the program sees them


def factors(again: Again) -> tuple[Factors | None, Factors | None]:
    """What float32 factors may be rounded to: those of matrices, and of convolutions."""
    if again.stored not in (torch.float32, torch.complex64):
        return None, None
    allowed = again.precision
    matrices = (allowed.recurrent if _is_recurrent(again.call) else None) or allowed.matmul
    return matrices, allowed.convolution


def functions(again: Again) -> float:
    """What functions of float32 err in this call, relatively; 0: what they do anywhere."""
    return again.precision.recurrent_functions if _is_recurrent(again.call) else 0.0


def sums(again: Again) -> Sums | None:
    """The type in which partial sums of the call's matrix products may be stored."""
    name = name_of(again.inside or again.stored)
    return next((sums for sums in again.precision.sums if sums.format == name), None)


def allowance(again: Again) -> str:
    """What the program allows of the products in this call, in words; "": nothing, or no product
    is in it.
    """
    matrices, convolutions = factors(again)
    word, module = again.call.operator, bool(_layers(again.call))
    found = [
        convolutions if module or word.startswith("conv") else None,
        matrices if module or word in MATRICES | RECURRENT else None,
    ]
    texts = [
        _("{format}, which {allowed_by} allows").format(format=f.format, allowed_by=f.allowed_by)
        for f in found
        if f is not None
    ]
    narrow = sums(again) if module or word in MATRICES else None
    if narrow is not None:
        texts.append(
            _("partial sums in {format}, which {allowed_by} allows").format(
                format=narrow.format, allowed_by=narrow.allowed_by
            )
        )
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
