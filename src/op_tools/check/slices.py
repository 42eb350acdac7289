"""Which small call has, as its results, a part of the results of a large call.

A product of two matrices is a product of some rows with some columns; a softmax of some rows is the
same rows of the softmax. `slice_of` finds such a small call by a table of operator families. It
only indexes: the cost is that of gathering a few thousand elements, whatever the size of the call.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from op_tools import names
from op_tools.call import Call, tensor_list

LARGE = 1 << 16  # elements of all tensors of a call; a smaller call is judged as a whole
SAMPLE = 1 << 12  # elements of a result that are judged, where its elements are independent
WHOLE = 1 << 20  # elements that one independent slice may need (a row of a softmax, an image)

Picks = tuple[Tensor | None, ...]  # of each dimension the indices; None: all of them
Choose = Callable[[Sequence[int], Sequence[int], int], Picks | None]


@dataclass(frozen=True)
class Slice:
    """A small call, and how its results and gradients are found in those of the large call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Callable[[Any], Any]  # the part of the large call's result
    written: Callable[[], list[Tensor | None]] | None = None  # parts of arguments after the call
    # of each tensor argument the part of its gradient; None: it needs more than the slice
    gradients: list[Callable[[Tensor], Tensor] | None] = field(default_factory=list)


class Chooser:
    """Random indices, one from each of as many equal regions of a dimension as are wanted.

    `scale`: how many times as many elements as usual are chosen.
    """

    def __init__(self, seed: int = 0, scale: int = 1) -> None:
        self._random = random.Random(seed)
        self._edges = math.isqrt(scale)
        self.sample = SAMPLE * scale

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks | None:
        """Indices of the `free` dimensions of a shape so that about `elements` are left.

        None: the other dimensions alone have too many.
        """
        counts = list(shape)
        fixed = math.prod(size for at, size in enumerate(shape) if at not in free)
        if fixed > WHOLE or 0 in shape:
            return None
        while math.prod(counts) > elements:
            largest = max(free, key=lambda at: counts[at], default=None)
            if largest is None or counts[largest] == 1:
                break
            counts[largest] = (counts[largest] + 1) // 2
        return tuple(
            self.indices(size, count) if count < size else None
            for size, count in zip(shape, counts, strict=True)
        )

    def edge(self, inner: int) -> int:
        """How many rows and columns of a product are chosen, by the length of its sums."""
        return max(8, min(64, WHOLE // 16 // max(inner, 1))) * self._edges

    def indices(self, size: int, count: int) -> Tensor:
        """`count` different indices below `size`, in order."""
        bounds = [size * at // count for at in range(count + 1)]
        return torch.tensor([self._random.randrange(*pair) for pair in pairwise(bounds)])


def is_affordable(call: Call) -> bool:
    """Whether a large call can be judged as a whole within seconds."""
    elements = sum(tensor.numel() for tensor in call.given)
    if rule_for(call.operator) in _EXPENSIVE:
        rows = max(math.prod(tensor.shape[:-1]) for tensor in call.given)
        return elements * min(rows, elements) <= WHOLE << 8
    return elements <= WHOLE


def is_large(call: Call) -> bool:
    """Whether a call is to be judged by a slice of it."""
    return sum(tensor.numel() for tensor in call.given) > LARGE


def slice_of(call: Call, choose: Chooser) -> Slice | None:
    """A slice of a call, taken before it is made; None: there is no rule for this call."""
    rule = rule_for(call.operator)
    if rule is None or "out" in call.kwargs:
        return None
    try:
        return rule(call, choose)
    except (IndexError, KeyError, TypeError, ValueError):  # other arguments than the rule knows
        return None


def take(tensor: Tensor, picks: Picks) -> Tensor:
    """The picked elements of a tensor, copied, outside of the graph.

    Dimensions count from the last; a dimension of size 1 is broadcast and stays.
    """
    part = tensor.detach()
    for at, indices in enumerate(picks, tensor.dim() - len(picks)):
        if indices is not None and at >= 0 and tensor.shape[at] != 1:
            part = part.index_select(at, indices.to(tensor.device, non_blocking=True))
    return part.clone() if part.data_ptr() == tensor.data_ptr() else part


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_mapped(item, change) for item in value)
    return value


# Families of operators.


def _pointwise(call: Call, choose: Chooser) -> Slice | None:
    """Each element of a result depends on the elements at its place in the arguments."""
    given = call.given
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in given))
    picks = choose(shape, range(len(shape)), choose.sample)
    if picks is None:
        return None

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, picks)

    return Slice(
        _mapped(call.args, part),
        {key: _mapped(value, part) for key, value in call.kwargs.items()},
        lambda result: _mapped(result, part),
        _rereads(call, part),
        [part if tensor.shape == shape else None for tensor in given],
    )


def _lists(call: Call, choose: Chooser) -> Slice | None:
    """Lists of tensors, each handled alone: two members are picked, and elements of them."""
    lists = [value for value in call.args if _is_list(value)]
    length = len(lists[0])
    if any(len(value) != length for value in lists):
        return None
    members = choose.indices(length, min(2, length)).tolist()
    chosen = [
        choose(lists[0][at].shape, range(lists[0][at].dim()), choose.sample // 2) for at in members
    ]

    def part(tensor: Tensor, at: int) -> Tensor:
        picks = chosen[at]
        alike = picks is not None and tensor.shape == lists[0][members[at]].shape
        return take(tensor, picks) if alike and picks is not None else tensor.detach().clone()

    def parts(value: Any) -> Any:
        if _is_list(value):
            return type(value)(part(value[member], at) for at, member in enumerate(members))
        if isinstance(value, (tuple, list)) and len(value) == length:  # numbers, one for each
            return type(value)(value[member] for member in members)
        return value

    def written() -> list[Tensor | None]:
        return [*tensor_list(list(map(parts, [*call.args, *call.kwargs.values()])))]

    args = tuple(map(parts, call.args))
    kwargs = {key: parts(value) for key, value in call.kwargs.items()}
    return Slice(args, kwargs, parts, written if names.sounds_in_place(call.name) else None)


def _is_list(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and bool(value) and isinstance(value[0], Tensor)


def _rows(kept: Callable[[Call], Sequence[int]], *, mask: int | None = None) -> Any:
    """Results of the shape of the first argument, independent along all but the kept dimensions."""

    def rule(call: Call, choose: Chooser) -> Slice | None:
        first = call.given[0]
        fixed = {at % first.dim() for at in kept(call)}
        free = [at for at in range(first.dim()) if at not in fixed]
        picks = choose(first.shape, free, choose.sample)
        if picks is None or all(indices is None for indices in picks):
            return None

        def part(tensor: Tensor) -> Tensor:
            """Of the arguments with as many dimensions; the others are for the kept ones."""
            if tensor.dim() != first.dim():
                return tensor.detach().clone()
            return take(tensor, picks)

        args = _mapped(call.args, part)
        if mask is not None:  # the gradients of weights need all rows
            args = (*args[:mask], [True] + [False] * (len(args[mask]) - 1), *args[mask + 1 :])
        return Slice(
            args,
            {key: _mapped(value, part) for key, value in call.kwargs.items()},
            lambda result: (
                (part(result[0]), *[None] * (len(result) - 1))
                if mask is not None
                else _mapped(result, part)
            ),
            _rereads(call, part),
            [part, *[None] * (len(call.given) - 1)],
        )

    return rule


def _rereads(
    call: Call, part: Callable[[Tensor], Tensor]
) -> Callable[[], list[Tensor | None]] | None:
    if not names.sounds_in_place(call.name):
        return None
    return lambda: [part(call.given[0]), *[None] * (len(call.given) - 1)]


def _argument(call: Call, place: int, name: str, default: Any = None) -> Any:
    return call.args[place] if len(call.args) > place else call.kwargs.get(name, default)


def _dim(place: int, default: Any = None) -> Callable[[Call], Sequence[int]]:
    def kept(call: Call) -> Sequence[int]:
        dim = _argument(call, place, "dim", default)
        if dim is None:
            raise ValueError("no dimension is given")
        return [dim] if isinstance(dim, int) else list(dim)

    return kept


def _normalized(call: Call) -> Sequence[int]:
    shape = call.args[1] if len(call.args) > 1 else call.kwargs["normalized_shape"]
    return range(-len(shape), 0)


def _normalized_backward(call: Call) -> Sequence[int]:
    return range(-len(call.args[2]), 0)


def _reduction(call: Call, choose: Chooser) -> Slice | None:
    """A reduction along some dimensions; the others are independent."""
    first = call.given[0]
    dims = _dim(1)(call)
    fixed = {at % first.dim() for at in dims}
    keepdim = _argument(call, 2, "keepdim", False)
    free = [at for at in range(first.dim()) if at not in fixed]
    picks = choose(first.shape, free, 4 * choose.sample)
    if not fixed or picks is None or all(indices is None for indices in picks):
        return None
    left = picks if keepdim else tuple(picks[at] for at in free)
    return Slice(
        (take(first, picks), *call.args[1:]),
        call.kwargs,
        lambda result: _mapped(result, lambda tensor: take(tensor, left)),
        None,
        [lambda tensor: take(tensor, picks)],
    )


def _product(places: tuple[int, int], *, transposed: bool = False, added: int | None = None) -> Any:
    """Some rows of the first matrix with some columns of the second; `added`: what is added."""

    def rule(call: Call, choose: Chooser) -> Slice | None:
        first, second = (call.args[place] for place in places)
        if first.dim() < 2 or second.dim() < 2:
            return None
        columns = -2 if transposed else -1
        inner = first.shape[-1]
        batch = torch.broadcast_shapes(
            first.shape[:-2], second.shape[:-2] if not transposed else ()
        )
        edge = choose.edge(inner)
        width = second.shape[columns]
        rows, batches = (*batch, first.shape[-2]), len(batch)
        row_picks = choose(rows, range(len(rows)), edge)
        column = choose.indices(width, edge) if width > edge else None
        if row_picks is None:
            return None
        result_picks = (*row_picks, column)
        first_picks = (*row_picks, None)
        # a transposed factor is a weight, and has no batch
        second_picks = (column, None) if transposed else (*row_picks[:batches], None, column)
        args = list(call.args)
        args[places[0]] = take(first, first_picks)
        args[places[1]] = take(second, second_picks)
        kwargs = dict(call.kwargs)
        if added is not None and isinstance(_argument(call, added, "bias"), Tensor):
            part = take(_argument(call, added, "bias"), result_picks)
            if len(call.args) > added:
                args[added] = part
            else:
                kwargs["bias"] = part
        return Slice(tuple(args), kwargs, lambda result: take(result, result_picks))

    return rule


def _embedding(call: Call, choose: Chooser) -> Slice | None:
    """Some of the words, with the rows of the weights that they name."""
    weight_first = call.level == "aten"
    indices, weight = (call.args[1], call.args[0]) if weight_first else call.args[:2]
    if _argument(call, 3, "max_norm") is not None and not weight_first:
        return None
    width = weight.shape[1]
    picks = choose(indices.shape, range(indices.dim()), max(1, 4 * choose.sample // width))
    if picks is None:
        return None
    words = take(indices, picks)
    rows = weight.detach().index_select(0, words.reshape(-1).to(weight.device))
    numbers = torch.arange(words.numel(), device=words.device).view_as(words)
    args = (rows, numbers) if weight_first else (numbers, rows)
    return Slice(args, {}, lambda result: take(result, (*picks, None)))


def _convolution(call: Call, choose: Chooser) -> Slice | None:
    """Some images, and some channels of the result."""
    image, weight = call.args[:2]
    bias = _argument(call, 2, "bias")
    groups = call.args[8] if call.level == "aten" else _argument(call, 6, "groups", 1)
    if (call.level == "aten" and call.args[6]) or image.dim() != weight.dim():
        return None
    if math.prod(image.shape[1:]) > WHOLE:
        return None
    images = choose.indices(len(image), 1) if len(image) > 1 else None
    channels = choose.indices(len(weight), 4) if groups == 1 and len(weight) > 4 else None
    left: list[Tensor | None] = [None] * (image.dim() - 2)
    args = list(call.args)
    args[0] = take(image, (images, None, *left))
    args[1] = take(weight, (channels, None, *left))
    kwargs = dict(call.kwargs)
    if isinstance(bias, Tensor):
        part = take(bias, (channels,))
        if len(call.args) > 2:
            args[2] = part
        else:
            kwargs["bias"] = part
    return Slice(tuple(args), kwargs, lambda result: take(result, (images, channels, *left)))


def _channels(call: Call, choose: Chooser) -> Slice | None:
    """Some channels of a batch norm, with everything that belongs to them."""
    first = call.given[0]
    picks = choose(first.shape, [1], 4 * choose.sample)
    if picks is None or picks[1] is None:
        return None
    channel = picks[1]

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, picks if tensor.dim() == first.dim() else (channel,))

    given = call.given
    return Slice(
        _mapped(call.args, part),
        {key: _mapped(value, part) for key, value in call.kwargs.items()},
        lambda result: _mapped(result, part),
        lambda: [None if tensor is first else part(tensor) for tensor in given],
        [part] * len(given),
    )


def _attention(call: Call, choose: Chooser) -> Slice | None:
    """One head of one sequence, with all that it attends to."""
    query, key, value = call.args[:3]
    mask = _argument(call, 3, "attn_mask")
    if query.dim() != 4 or _argument(call, 4, "dropout_p", 0.0) or isinstance(mask, Tensor):
        return None
    if query.shape[2] * key.shape[2] > 4 * WHOLE:
        return None
    head = choose.indices(query.shape[1], 1)
    group = head // (query.shape[1] // key.shape[1])
    sequence = choose.indices(len(query), 1)
    mine, shared = (sequence, head, None, None), (sequence, group, None, None)
    args = (take(query, mine), take(key, shared), take(value, shared), *call.args[3:])

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, mine)

    alone = query.shape[1] == key.shape[1]  # else a gradient of a key is a sum over its group
    return Slice(args, call.kwargs, part, None, [part, *[part if alone else None] * 2])


def _joined(call: Call, choose: Chooser) -> Slice | None:
    """Tensors put together along one dimension; the others are independent."""
    members = list(call.args[0])
    first = members[0]
    dim = _argument(call, 1, "dim", 0) % first.dim()
    shape = list(first.shape)
    shape[dim] = sum(member.shape[dim] for member in members)
    picks = choose(shape, [at for at in range(first.dim()) if at != dim], choose.sample)
    if picks is None or any(member.dim() != first.dim() for member in members):
        return None
    parts = [take(member, picks) for member in members]
    return Slice(
        (parts, *call.args[1:]),
        call.kwargs,
        lambda result: take(result, picks),
        None,
        [lambda tensor: take(tensor, picks)] * len(members),
    )


_POINTWISE = """
    abs add addcdiv addcmul angle bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp
    clamp_max clamp_min clone contiguous copy_ cos cosh deg2rad div divide elu eq erf erfc exp exp2
    expm1 fill_ float floor fmod ge gelu greater gt half hardshrink hardsigmoid hardswish hardtanh
    isfinite isinf isnan le leaky_relu lerp log log10 log1p log2 logaddexp logical_and logical_not
    logical_or logical_xor logit lt masked_fill maximum minimum mish mul multiply ne neg negative
    pow reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign silu sin sinh
    softplus softshrink softsign sqrt square sub subtract tan tanh threshold true_divide trunc
    where xlogy zero_ bfloat16 double to _to_copy
    gelu_backward silu_backward sigmoid_backward tanh_backward threshold_backward
    hardswish_backward leaky_relu_backward elu_backward hardtanh_backward
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __neg__
    __gt__ __lt__ __ge__ __le__ __eq__ __ne__ __and__ __or__ __invert__ __iadd__ __imul__
""".split()
_IN_PLACE = "add mul div sub clamp relu neg exp sqrt sigmoid tanh masked_fill lerp addcmul addcdiv"

_linear = _product((0, 1), transposed=True, added=2)
_matmul = _product((0, 1))
_addmm = _product((1, 2), added=0)
_EXPENSIVE = frozenset({_linear, _matmul, _addmm, _convolution, _attention})

RULES: dict[str, Callable[[Call, Chooser], Slice | None]] = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    **{f"{word}_": _pointwise for word in _IN_PLACE.split()},
    "linear": _linear,
    **dict.fromkeys(("mm", "bmm", "matmul", "__matmul__"), _matmul),
    **dict.fromkeys(("addmm", "baddbmm"), _addmm),
    "softmax": _rows(_dim(1)),
    "log_softmax": _rows(_dim(1)),
    "_softmax": _rows(_dim(1)),
    "_log_softmax": _rows(_dim(1)),
    "_softmax_backward_data": _rows(_dim(2)),
    "_log_softmax_backward_data": _rows(_dim(2)),
    "cumsum": _rows(_dim(1)),
    "layer_norm": _rows(_normalized),
    "rms_norm": _rows(_normalized),
    "native_layer_norm": _rows(_normalized),
    "native_layer_norm_backward": _rows(_normalized_backward, mask=7),
    "sum": _reduction,
    "mean": _reduction,
    "amax": _reduction,
    "amin": _reduction,
    "embedding": _embedding,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "convolution": _convolution,
    "batch_norm": _channels,
    "scaled_dot_product_attention": _attention,
    "cat": _joined,
}


def rule_for(word: str) -> Callable[[Call, Chooser], Slice | None] | None:
    """The rule for an operator by the last part of its name."""
    if word.startswith(("_foreach_", "_fused_")) and "norm" not in word:
        return _lists
    return RULES.get(word)
