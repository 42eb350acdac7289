# SPDX-License-Identifier: Apache-2.0
"""Checks that read results and gradients on their device: a sample misses errors of few elements.

Products are checked by a random projection (`op_tools.compare.projection`), other calls by a block
that is computed again (`op_tools.compare.blocks`), all of them for NaN and Inf.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deeplink.i18n import _
from op_tools.compare import blocks, projection, slices
from op_tools.compare.blocks import Block, Compared, Region
from op_tools.compare.host_verdicts import RecordedCall, labels_of
from op_tools.compare.inputs import device_of
from op_tools.compare.slices import Aim, Chooser, Slice
from op_tools.compare.suspects import Suspects, key_of
from op_tools.core.call import Call, tensor_list
from op_tools.core.gradients import Gradients
from op_tools.tensors import finite, host_transfer, statistics

WORST = 8  # elements of a row with the largest errors on the device, which the host judges
PRODUCT_EACH = 8  # product that the host's kernels compute is checked by a projection
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
# Their gradients have none either; nor have those of losses, unless the loss is not finite.
NEVER_NAN_GRADIENT = NEVER_NAN | {"cross_entropy", "nll_loss"}
NAN = _("NaN in the result, of arguments that are all finite")


@dataclass(frozen=True, slots=True)
class _Checked:
    """The subject of a check on the device. It holds no tensor of the device."""

    call: Call
    key: Hashable
    label: str
    sample: Sequence[Tensor]  # of the arguments, on the host
    outline: Tensor | None  # of the result, without values
    counts: dict[str, int]  # of numbers: of "greatest", "of arguments" and "block"
    regions: Sequence[Region]  # of a block

    @property
    def has_finite_sample(self) -> bool:
        """Whether a sample is all that is known of the arguments, and is finite."""
        return "of arguments" not in self.counts and are_finite(self.sample)


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
        self._spans = blocks.Span(blocks.ELEMENTS), blocks.Span(blocks.ON_HOST)
        self._turns = blocks.Turns()
        self._products: Counter[tuple[str, str]] = Counter()  # that may be checked
        self._checks = projection.Checks(self._note)
        self._lock = threading.Lock()

    def block(self, call: Call) -> Block | None:
        """A block of a large call, from before the call; None: it is not the turn of the call."""
        if projection.covers(call) or not self._turns.next(call.name):
            return None
        return Block.of(call, self._spans[_is_on_host(call)])

    def check(
        self,
        call: Call,
        result: Any,
        wrote: bool,
        block: Block | None,
        recorded: RecordedCall | None,
    ) -> Tensor | None:
        """Launch the checks of a whole result. The greatest magnitude of arguments and results, on
        the device, for the check of gradients; None: they are not checked for NaN.
        """
        outputs = tensor_list(result)
        compared = Compared() if block is None else block.compared(result)
        if wrote:  # the arguments before the call are gone
            self._launch(call, key_of(call), recorded, "output", outputs, None, {}, compared)
            return None
        product = projection.start(call, result) if self._projects(call, "output") else None
        numbers: dict[str, Tensor | None] = {}
        of_all = None
        # by an argument, the program may request a result that is not finite
        if not any(isinstance(arg, float) and not math.isfinite(arg) for arg in call.args):
            never_nan = _is_never_nan(call)
            for_gradients = product is None and (never_nan or call.operator in NEVER_NAN_GRADIENT)
            own = projection.greatest(outputs if never_nan or for_gradients else _large(outputs))
            numbers["greatest"] = own if never_nan or _large(outputs) else None
            if for_gradients:
                given = projection.greatest(call.inputs)
                numbers["of arguments"] = given if never_nan else None
                known = [one for one in (given, own) if one is not None]
                of_all = known[0] if len(known) == 1 else torch.maximum(*known) if known else None
        self._launch(call, key_of(call), recorded, "output", outputs, product, numbers, compared)
        return of_all

    def check_gradients(
        self,
        call: Call,
        key: Hashable,
        recorded: RecordedCall | None,
        found: Gradients,
        block: Block | None,
        of_all: Tensor | None,
    ) -> None:
        """Launch the checks of the gradients of a call. `of_all`: what `check` returned."""
        compared = Compared() if block is None else block.compared_gradients(found)
        large = {
            at: one for at, one in enumerate(found.inputs) if one is not None and _large([one])
        }
        labels = [] if recorded is None else labels_of("grad", recorded.call)
        label = labels[next(iter(large))] if labels and len(large) == 1 else "grad"
        gradients = list(large.values())
        numbers: dict[str, Tensor | None] = {}
        if of_all is not None and gradients:
            flown = projection.greatest([one for one in found.outputs if one is not None])
            numbers["greatest"] = projection.greatest(gradients)
            numbers["of arguments"] = of_all if flown is None else torch.maximum(of_all, flown)
        self._launch(call, key, recorded, label, gradients, None, numbers, compared)

    def check_product(
        self, call: Call, key: Hashable, recorded: RecordedCall | None, product: GradientProduct
    ) -> None:
        """Launch the check of a gradient that is a product."""
        if self._projects(call, product.label):
            pending = projection.start(product.call(call), product.result)
            outputs = [product.result]
            self._launch(call, key, recorded, product.label, outputs, pending, {}, Compared())

    def finish(self) -> None:
        """Read the pending checks."""
        self._checks.advance(wait=True)

    def faulty_slices(self, call: Call, result: Any) -> list[Slice]:
        """Slices of a suspect's result where the device's own checks fail. Waits for the device."""
        aim = _not_finite(call, tensor_list(result)) or worst_of_product(call, result)
        part = None if aim is None else slices.slice_of(call, aim)
        return [part] if part is not None and part.is_result_judged else []

    def _launch(
        self,
        call: Call,
        key: Hashable,
        recorded: RecordedCall | None,
        label: str,
        outputs: Sequence[Tensor],
        product: projection.Pending | None,
        numbers: dict[str, Tensor | None],
        block: Compared,
    ) -> None:
        numbers = {**numbers, "block": block.numbers}
        known = {name: one.reshape(-1).float() for name, one in numbers.items() if one is not None}
        if product is None and not known:
            return
        header = call.with_arguments((), {}) if recorded is None else recorded.call
        outline = next((one.to("meta") for one in outputs if one.is_floating_point()), None)
        sample = () if recorded is None else header.inputs
        counts = {name: len(one) for name, one in known.items()}
        checked = _Checked(header, key, label, sample, outline, counts, block.regions)
        self._checks.add(checked, product, list(known.values()))
        # a batch of checks is cheaper where the launch of a kernel takes time
        self._checks.advance(at_once=_is_on_host(call), wait=self._waits)

    def _note(
        self, checked: _Checked, finding: projection.Finding | None, numbers: list[float]
    ) -> None:
        """Report a NaN, or make a suspect of a call whose checks failed."""
        rest = iter(numbers)
        by_name = {name: list(islice(rest, count)) for name, count in checked.counts.items()}
        [greatest], [given] = (
            by_name.get("greatest", [0.0]),
            by_name.get("of arguments", [math.nan]),
        )
        block, aims = blocks.found(checked.regions, by_name.get("block", []))
        of_finite = math.isfinite(given)
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
        elif not math.isfinite(greatest) and (of_finite or checked.has_finite_sample):
            # an element of the arguments that is not finite may make one of the result
            text = _("the result is not finite; whether the arguments are was not checked")
            non_finite = True
        if text:
            self._suspects.add(checked.call, checked.key, checked.label, text, non_finite, aims)

    def _projects(self, call: Call, item: str) -> bool:
        """Whether a product is checked by a projection: each of a GPU, some of a host's kernels,
        for which the check takes as long as a small product.
        """
        if not _is_on_host(call):
            return True
        with self._lock:
            self._products[call.name, item] += 1
            return self._products[call.name, item] % PRODUCT_EACH == 1


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
