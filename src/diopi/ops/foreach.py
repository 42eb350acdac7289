# SPDX-License-Identifier: Apache-2.0
"""One operation over a list of tensors, and the ops of a gradient scaler."""

from __future__ import annotations

from torch import Tensor

from diopi.op import FLOATS, NUMBERS, Kind, op

FAMILY = "foreach"


def amp_foreach_non_finite_check_and_unscale(
    input: list[Tensor], found_inf: Tensor, inv_scale: Tensor
) -> None:
    """Multiply the gradients by inv_scale; found_inf becomes 1 if one is not finite."""
    for grad in input:
        if not bool(grad.isfinite().all()):
            found_inf.fill_(1)
        grad.mul_(inv_scale.reshape(()))  # of one element; a gradient may have no dimension


def amp_update_scale(
    input: Tensor,
    growth_tracker: Tensor,
    found_inf: Tensor,
    scale_growth_factor: float,
    scale_backoff_factor: float,
    growth_interval: int,
) -> Tensor:
    """Reduce the scale after an overflow; increase it after enough finite steps."""
    if bool(found_inf):
        growth_tracker.zero_()
        return input.mul_(scale_backoff_factor)
    good = int(growth_tracker) + 1
    grown = input * scale_growth_factor
    if good == growth_interval and bool(grown.isfinite()):  # the scale itself must not overflow
        input.copy_(grown)
    growth_tracker.fill_(0 if good == growth_interval else good)
    return input


# fmt: off
# overload -> suffix of the op's name
ENDINGS = {"Scalar": "scalar", "List": "list", "ScalarList": "scalars", "Tensor": "tensor"}
OVERLOADS = {
    "add": "Scalar List ScalarList Tensor",
    "sub": "Scalar List ScalarList",
    "mul": "Scalar List ScalarList Tensor",
    "div": "Scalar List ScalarList Tensor",
    "addcmul": "Scalar ScalarList Tensor",
    "addcdiv": "Scalar ScalarList Tensor",
}
for name, overloads in OVERLOADS.items():
    for overload in overloads.split():
        op(f"foreach_{name}_{ENDINGS[overload]}", FAMILY, aten=f"_foreach_{name}.{overload}",
           kind="composite" if "addc" in name else "elementwise",
           dtypes=FLOATS if "addc" in name else NUMBERS,
           opinfo=f"_foreach_{name}")
KINDS: dict[str, Kind] = {
    "neg": "exact", "abs": "exact", "sign": "exact", "sqrt": "elementwise",
    "reciprocal": "elementwise", "exp": "transcendental",
}
for name, kind in KINDS.items():
    op(f"foreach_{name}", FAMILY, aten=f"_foreach_{name}", kind=kind, dtypes=FLOATS,
       opinfo=f"_foreach_{name}")
op("foreach_lerp_scalar", FAMILY, aten="_foreach_lerp.Scalar", kind="composite", dtypes=FLOATS,
   opinfo="_foreach_lerp")
op("foreach_norm", FAMILY, aten="_foreach_norm.Scalar", kind="composite", dtypes=FLOATS,
   opinfo="_foreach_norm")
op("amp_foreach_non_finite_check_and_unscale", FAMILY, kind="elementwise", dtypes=FLOATS,
   aten="_amp_foreach_non_finite_check_and_unscale_", opinfo="",
   meaning=amp_foreach_non_finite_check_and_unscale)
op("amp_update_scale", FAMILY, aten="_amp_update_scale_", kind="elementwise", dtypes=FLOATS[:1],
   meaning=amp_update_scale, opinfo="")
