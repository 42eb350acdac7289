# SPDX-License-Identifier: Apache-2.0
"""Checks that read whole results on their device: a sample misses errors of few elements.

Products are checked by a random projection (`op_tools.compare.projection`), other calls by a block,
all of them for NaN and Inf. A block is a part of the call, computed alone: rows, heads, images and
elements that do not depend on each other have the same results whether they are computed together
or not. A kernel whose error depends on the place (a tile, an edge, one element) errs at another
place of the block, so the two results differ. An error that is the same in every element is in both
results: a sample that the host judges finds it.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeplink.i18n import _
from op_tools.compare import projection, slices
from op_tools.compare.host_verdicts import RecordedCall
from op_tools.compare.inputs import device_of
from op_tools.compare.slices import Aim, Chooser, Picks, Slice
from op_tools.compare.suspects import Suspects, key_of
from op_tools.core.call import Call, tensor_list
from op_tools.core.gradients import Gradients
from op_tools.tensors import finite, host_transfer, statistics

WORST = 8  # elements of a row with the largest errors on the device, which the host judges
PRODUCT_EACH = 8  # product that the host's kernels compute is checked by a projection
BLOCK_EACH = 16  # call of an operator of which a block is computed again
ELEMENTS = 1 << 24  # of a block on a device
ON_HOST = 1 << 20  # of a block whose kernels are the host's
PLACES, BLOCKS = 8, 8  # elements of a suspect that are judged on the host, and blocks searched
# Units by which a block may differ, as it may be summed in another order.
ROUNDING, SUMMING = 8, 256
# Operators whose results have no NaN where all arguments are finite: NaN needs 0 / 0 or Inf - Inf.
NEVER_NAN = frozenset(
    """
    linear mm matmul bmm addmm baddbmm conv1d conv2d conv3d convolution embedding silu gelu relu
    sigmoid tanh softplus leaky_relu hardswish elu add sub mul neg abs clamp where cat stack
    masked_fill softmax log_softmax _softmax _log_softmax layer_norm native_layer_norm rms_norm
    _fused_rms_norm group_norm native_group_norm silu_backward gelu_backward threshold_backward
    native_dropout_backward index_select gather reshape contiguous clone _to_copy to copy
    """.split()
)
NAN = _("NaN in the result, of arguments that are all finite")


@dataclass(frozen=True, slots=True)
class _Checked:
    """The subject of a check on the device. It holds no tensor of the device."""

    call: Call
    key: Hashable
    label: str
    sample: Sequence[Tensor]  # of the arguments, on the host
    outline: Tensor | None  # of the result, without values
    names: tuple[str, ...]  # of the numbers: "greatest", "of arguments", "block"


class DeviceChecks:
    """The checks on devices of one run of OpAutoCompare."""

    def __init__(
        self,
        suspects: Suspects,
        report_nan: Callable[[Call, str, Tensor, str], None],
        waits: bool,
    ) -> None:
        """`waits`: read each check at once; else the program does not wait for its device."""
        self._suspects, self._report_nan, self._waits = suspects, report_nan, waits
        self._blocks = Block(ELEMENTS), Block(ON_HOST)
        self._turns: Counter[tuple[str, str]] = Counter()  # calls that may be checked
        self._checks = projection.Checks(self._note)
        self._lock = threading.Lock()

    def check(
        self, call: Call, result: Any, is_sampled: bool, recorded: RecordedCall | None
    ) -> None:
        """Launch the checks of a whole result."""
        outputs = tensor_list(result)
        product = projection.start(call, result) if self._projects(call, "output") else None
        numbers: dict[str, Tensor | None] = {}
        if product is None and is_sampled and self._is_turn(call, "block", BLOCK_EACH):
            numbers["block"] = differing(call, result, self._block(call))
        # by an argument, the program may request a result that is not finite
        if not any(isinstance(arg, float) and not math.isfinite(arg) for arg in call.args):
            never_nan = _is_never_nan(call)
            numbers["greatest"] = projection.greatest(outputs if never_nan else _large(outputs))
            if never_nan and product is None:
                numbers["of arguments"] = projection.greatest(call.inputs)
        self._launch(call, key_of(call), recorded, "output", outputs, product, numbers)

    def check_gradient(
        self, call: Call, key: Hashable, recorded: RecordedCall | None, product: GradientProduct
    ) -> None:
        """Launch the check of a gradient that is a product."""
        if self._projects(call, product.label):
            pending = projection.start(product.call(call), product.result)
            self._launch(call, key, recorded, product.label, [product.result], pending, {})

    def finish(self) -> None:
        """Read the pending checks."""
        self._checks.advance(wait=True)

    def faulty_slices(self, call: Call, result: Any) -> list[Slice]:
        """Slices of a suspect's result where the device's own checks fail. Waits for the device."""
        aim = _not_finite(call, tensor_list(result)) or worst_of_product(call, result)
        aims = [aim] if aim is not None else places(call, result, self._block(call))
        parts = [slices.slice_of(call, aim) for aim in aims]
        return [part for part in parts if part is not None and part.is_result_judged]

    def _launch(
        self,
        call: Call,
        key: Hashable,
        recorded: RecordedCall | None,
        label: str,
        outputs: Sequence[Tensor],
        product: projection.Pending | None,
        numbers: dict[str, Tensor | None],
    ) -> None:
        known = {name: one.reshape(()).float() for name, one in numbers.items() if one is not None}
        if product is None and not known:
            return
        header = call.with_arguments((), {}) if recorded is None else recorded.call
        outline = next((one.to("meta") for one in outputs if one.is_floating_point()), None)
        sample = () if recorded is None else header.inputs
        checked = _Checked(header, key, label, sample, outline, tuple(known))
        self._checks.add(checked, product, list(known.values()))
        # a batch of checks is cheaper where the launch of a kernel takes time
        self._checks.advance(at_once=_is_on_host(call), wait=self._waits)

    def _note(
        self, checked: _Checked, finding: projection.Finding | None, numbers: list[float]
    ) -> None:
        """Report a NaN, or make a suspect of a call whose checks failed."""
        by_name = dict(zip(checked.names, numbers, strict=True))
        greatest, block = by_name.get("greatest", 0.0), int(by_name.get("block", 0))
        of_finite = math.isfinite(by_name.get("of arguments", math.nan))
        of_finite = of_finite or (finding is not None and finding.non_finite > 0)
        text, non_finite = "", False
        if math.isnan(greatest) and of_finite and checked.outline is not None:
            self._report_nan(checked.call, checked.label, checked.outline, NAN)
        elif finding is not None:
            text = _("by a projection, {message}").format(message=finding.message)
            non_finite = finding.non_finite > 0
        elif block:
            text = _(
                "{block:,} {block:element|elements} {block:differs|differ} from a part "
                "of the call, computed alone"
            )
            text = text.format(block=block)
        elif not math.isfinite(greatest) and are_finite(checked.sample):
            # an element of the arguments that is not finite may make one of the result
            text = _("the result is not finite; whether the arguments are was not checked")
            non_finite = True
        if text:
            self._suspects.add(checked.call, checked.key, checked.label, text, non_finite)

    def _block(self, call: Call) -> Block:
        return self._blocks[_is_on_host(call)]

    def _projects(self, call: Call, item: str) -> bool:
        """Whether a product is checked by a projection: each of a GPU, some of a host's kernels,
        for which the check takes as long as a small product.
        """
        return not _is_on_host(call) or self._is_turn(call, item, PRODUCT_EACH)

    def _is_turn(self, call: Call, item: str, each: int) -> bool:
        """Whether a call is one of `each` of its operator, the first of them included."""
        with self._lock:
            self._turns[call.name, item] += 1
            return self._turns[call.name, item] % each == 1


def _is_on_host(call: Call) -> bool:
    """Whether the kernels of a call are the host's."""
    return statistics.kind_is_seen(device_of(call).type)


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors of the host have no NaN or Inf."""
    return all(bool(torch.isfinite(one).all()) for one in tensors if one.is_floating_point())


def _large(outputs: Sequence[Tensor]) -> list[Tensor]:
    return [one for one in outputs if one.numel() > slices.LARGE and finite.has_numbers(one)]


def _is_never_nan(call: Call) -> bool:
    """Whether a call of finite arguments has no NaN in its result."""
    if call.operator != "scaled_dot_product_attention":
        return call.operator in NEVER_NAN
    mask = call.args[3] if len(call.args) > 3 else call.kwargs.get("attn_mask")
    return mask is None  # a mask may leave out all keys of a query


# Blocks.


class Block(Chooser):
    """Chooses neighbouring indices, and at most half of the largest dimension.

    Consecutive calls start at other indices, so that every element is checked after a few calls.
    """

    def __init__(self, elements: int) -> None:
        super().__init__(scale=elements / slices.SAMPLE)
        self._call = 0

    def next_call(self) -> None:
        super().next_call()
        self._call += 1

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks:
        return super().__call__(shape, free, min(elements, max(1, math.prod(shape) // 2)))

    def indices(self, size: int, count: int, at: int | None = None) -> Tensor:
        step = slices.STEPS[self._dimension % len(slices.STEPS)]
        self._dimension += 1
        return (torch.arange(count) + int(self._call * step % 1.0 * size)) % size

    def edge(self, inner: int) -> int:
        """Products are not computed again: the projection checks them."""
        raise ValueError("a product")


def differing(call: Call, result: Any, choose: Chooser) -> Tensor | None:
    """Count, on the device, the elements of a block that differ; None: the call has no block.

    Call it outside of the graph. The count is a tensor of one element.
    """
    pairs = _block_pairs(call, result, choose)
    if not pairs:
        return None
    return torch.stack([_wrong(own, block).sum() for own, block in pairs]).sum().reshape(1)


def places(call: Call, result: Any, choose: Chooser) -> list[Aim]:
    """Elements of the first result that differ from blocks. Waits for the device.

    Some of them are correct: the block computed alone errs, too, at another place of the call.
    """
    found: dict[tuple[int, ...], None] = {}
    for _search in range(BLOCKS):
        pairs = _block_pairs(call, result, choose)
        if not pairs or len(found) >= PLACES:
            break
        own, block = pairs[0]
        picks: Picks = getattr(own, "picks", ())
        if len(picks) != own.dim():
            break
        for place in _wrong(own, block).nonzero()[:PLACES].tolist():
            indices = zip(place, picks, strict=True)
            found[tuple([at if pick is None else int(pick[at]) for at, pick in indices])] = None
    return list(map(Aim, found))


def _block_pairs(call: Call, result: Any, choose: Chooser) -> list[tuple[Tensor, Tensor]]:
    """The results of a block: as in the large call, and computed alone."""
    name = call.operator
    # convolutions are checked by a projection; gradients of attention are sums that cancel
    if name.startswith("conv") or ("attention" in name and name.endswith("backward")):
        return []
    part = slices.slice_of(call, choose)
    if part is None or part.written is not None or not part.is_result_judged:
        return []
    try:
        alone = tensor_list((part.func or call.func)(*part.args, **part.kwargs))
    except (RuntimeError, ValueError, NotImplementedError):  # the device refuses the smaller call
        return []
    own = tensor_list(part.result(result))
    if [one.shape for one in own] != [one.shape for one in alone]:
        return []
    return [(one, other) for one, other in zip(own, alone, strict=True) if one.numel()]


def _wrong(own: Tensor, block: Tensor) -> Tensor:
    """Mark the elements that differ by more than another order of summation explains."""
    differ = own != block
    if not (own.is_floating_point() or own.is_complex()):
        return differ
    differ &= ~((own != own) & (block != block))  # NaN in both
    is_double = own.dtype in (torch.float64, torch.complex128)
    wide = torch.float64 if is_double else torch.float32  # sums of a narrow type are made in it
    one, other = (t.to(wide) if t.is_floating_point() else t for t in (own, block))
    size = torch.maximum(one.abs(), other.abs())
    mean = torch.where(size.isfinite(), size, 0).mean()
    allowed = ROUNDING * torch.finfo(own.dtype).eps + SUMMING * torch.finfo(wide).eps
    close = (one - other).abs() <= allowed / 2 * (size + mean)
    return differ & ~(close & size.isfinite())


# Elements of a suspect that the host judges.


def _not_finite(call: Call, outputs: list[Tensor]) -> Aim | None:
    """An element that is not finite, where the arguments are. The reference decides whether it is
    wrong, as 1 / 0 is not.
    """
    found = next((one for one in _large(outputs) if not torch.isfinite(one).all()), None)
    if found is None:
        return None
    given = finite.health(call.inputs)
    if given.nan or given.inf:
        return None
    first = torch.isfinite(found).logical_not().flatten().to(torch.int8).argmax()
    return Aim([int(at) for at in torch.unravel_index(first.cpu(), found.shape)])


def worst_of_product(call: Call, result: Any) -> Aim | None:
    """The elements of a product with the largest errors in the row with the largest, by the
    device's own float32, which may err as well.
    """
    pending = projection.start(call, result)
    finding = None if pending is None else pending.verdict()
    if finding is None or call.operator.startswith("conv"):
        return None
    row = [int(at) for at in np.unravel_index(finding.row, result.shape[:-1])]
    part = slices.slice_of(call, slices.Row(row))
    if part is None:
        return None
    args, kwargs = host_transfer.mapped((part.args, part.kwargs), _in_float32)
    error = (call.func(*args, **kwargs) - _in_float32(part.result(result))).abs()
    return Aim(row, error.flatten().topk(min(WORST, error.numel())).indices.tolist())


def _in_float32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


# Gradients of products: products themselves, of other rows and columns than those of the result.


@dataclass(frozen=True, slots=True)
class GradientProduct:
    """A gradient of a factor: `left @ right` is to be `result`."""

    label: str
    left: Tensor
    right: Tensor
    result: Tensor

    def tile(self, choose: Chooser) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Some rows of `left` and columns of `right`, and the tile of `result`."""
        choose.next_call()
        left, right = self.left, self.right
        edge = choose.edge(left.shape[-1])
        rows = choose(left.shape[:-1], range(left.dim() - 1), edge)
        columns = choose.indices(right.shape[-1], edge, -1) if right.shape[-1] > edge else None
        batch = rows[:-1] if right.dim() > 2 else ()
        factors = slices.take(left, (*rows, None)), slices.take(right, (*batch, None, columns))
        return factors, slices.take(self.result, (*rows, columns))

    def call(self, call: Call) -> Call:
        """The gradient as a call; `call`: the one that it is a gradient of."""
        product = call.with_arguments((self.left, self.right), {})
        product.name, product.func = "torch.matmul", torch.matmul
        return product


def has_products(call: Call) -> bool:
    """Whether the gradients of a call are products."""
    return call.level != "aten" and call.operator in ("linear", "matmul", "mm", "bmm")


def gradient_products(call: Call) -> list[Callable[[Gradients], GradientProduct | None]]:
    """For each gradient of the two factors, a function that returns its product."""
    if not has_products(call) or len(call.args) < 2:
        return []
    first, second = (factor.detach() for factor in call.args[:2])
    if first.dim() < 2 or second.dim() < 2 or call.args[0] is call.args[1]:
        return []
    transposed = call.operator == "linear"
    if not transposed and first.shape[:-2] != second.shape[:-2]:
        return []

    def of_first(flown: Tensor) -> tuple[Tensor, Tensor]:
        return flown, second if transposed else second.transpose(-1, -2)

    def of_second(flown: Tensor) -> tuple[Tensor, Tensor]:
        if transposed:
            return flown.flatten(0, -2).t(), first.flatten(0, -2)
        return first.transpose(-1, -2), flown

    def product(at: int, factors: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Any:
        def of(gradients: Gradients) -> GradientProduct | None:
            flown, result = gradients.outputs[0], gradients.inputs[at]
            if flown is None or result is None:
                return None
            return GradientProduct(f"grad[{at}]", *factors(flown), result)

        return of

    return [product(0, of_first), product(1, of_second)]
