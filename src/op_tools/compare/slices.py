"""Which small call has, as its results, a part of the results of a large call.

A product of two matrices is a product of some rows with some columns; a softmax of some rows is the
same rows of the softmax. `slice_of` finds such a small call by a table of operator families. It
only indexes: the cost is that of gathering a few thousand elements, whatever the size of the call.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional as F

from op_tools.core import op_names
from op_tools.core.call import Call, tensor_list
from op_tools.tensors import mutation

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
    func: Callable[..., Any] | None = None  # what to call; None: the large call's function
    is_result_judged: bool = True  # False: only the gradients are parts of the large call's


_PLASTIC = 1.32471795724  # its powers fill a plane evenly
STEPS = [_PLASTIC**-1, _PLASTIC**-2, *(math.sqrt(number) % 1.0 for number in (2, 7, 11, 13))]
_BETWEEN = (math.sqrt(5) - 1) / 2  # between the places in neighbouring regions


class Chooser:
    """Indices, one from each of as many equal regions of a dimension as are wanted.

    Consecutive calls take other indices of each region, until all of them were taken about equally
    often: the places in the regions advance by irrational steps, another one for each dimension.

    `scale`: how many times as many elements as usual are chosen.
    """

    def __init__(self, seed: int = 0, scale: float = 1.0) -> None:
        self._call, self._dimension = 13 * seed, 0
        self.scale = scale

    @property
    def sample(self) -> int:
        """Elements of a result that are chosen, where its elements are independent."""
        return int(SAMPLE * self.scale)

    def next_call(self) -> None:
        """The next indices are those of another call."""
        self._call += 1
        self._dimension = 0

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
            self.indices(size, count, at) if count < size else None
            for at, (size, count) in enumerate(zip(shape, counts, strict=True))
        )

    def edge(self, inner: int) -> int:
        """How many rows and columns of a product are chosen, by the length of its sums."""
        edge = max(8, min(64, WHOLE // 16 // max(inner, 1)))
        return max(4, int(edge * math.sqrt(self.scale)))

    def indices(self, size: int, count: int, at: int | None = None) -> Tensor:
        """`count` different indices below `size`, in order; `at`: the dimension of the result."""
        step = STEPS[self._dimension % len(STEPS)]
        self._dimension += 1
        first = self._call * step + self._dimension / 7
        regions = np.arange(count + 1) * size // count
        places = (first + np.arange(count) * _BETWEEN) % 1.0
        within = (places * np.diff(regions)).astype(np.int64)
        return torch.from_numpy(regions[:-1] + within)


class Aim(Chooser):
    """Chooses given elements of a result: one index of each dimension, and some of the last."""

    def __init__(self, place: Sequence[int], last: Sequence[int] = ()) -> None:
        super().__init__()
        self._place = [[at] for at in place]
        if last:
            self._place.append(sorted(last))

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks | None:
        fixed = math.prod(size for at, size in enumerate(shape) if at not in free)
        if fixed > WHOLE or 0 in shape:
            return None
        return tuple(
            self.indices(size, 1, at) if at in free and size > 1 else None
            for at, size in enumerate(shape)
        )

    def indices(self, size: int, count: int, at: int | None = None) -> Tensor:
        if at is None or not -len(self._place) <= at < len(self._place):
            return super().indices(size, count)
        return torch.tensor([min(index, size - 1) for index in self._place[at]])


class Row(Aim):
    """Chooses all columns of one row of a product."""

    def edge(self, inner: int) -> int:
        return sys.maxsize


def is_affordable(call: Call) -> bool:
    """Whether a large call can be judged as a whole within seconds."""
    elements = sum(tensor.numel() for tensor in call.given)
    if rule_for(call.operator) in _EXPENSIVE:
        rows = max(math.prod(tensor.shape[:-1]) for tensor in call.given)
        return elements * min(rows, elements) <= WHOLE << 8
    return elements <= WHOLE


def is_large(call: Call) -> bool:
    """Whether a call is to be judged by a slice of it: its arguments are large, or its result."""
    sizes = [tensor.numel() for tensor in call.given]
    if sum(sizes) > LARGE:
        return True
    if len(sizes) < 2 or math.prod(sizes) <= LARGE:
        return False
    return _result_elements(call) > LARGE


def _result_elements(call: Call) -> int:
    """How many elements the result of a pointwise operator or of a product has; 0: unknown."""
    rule = rule_for(call.operator)
    try:
        if rule is _pointwise:
            return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in call.given)))
        if rule is _outer:
            return math.prod(tensor.numel() for tensor in call.given)
        if rule is _linear:
            first, second = call.args[:2]
            return int(first.numel() // max(first.shape[-1], 1) * len(second))
        if rule in (_matmul, _addmm):
            first, second = call.args[-2:] if rule is _addmm else call.args[:2]
            batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
            return math.prod((*batch, first.shape[-2], second.shape[-1]))
    except (AttributeError, IndexError, RuntimeError, ValueError):  # a call that will fail
        pass
    return 0


def slice_of(call: Call, choose: Chooser) -> Slice | None:
    """A slice of a call, taken before it is made; None: there is no rule for this call."""
    rule = rule_for(call.operator)
    if rule is None or "out" in call.kwargs:
        return None
    choose.next_call()
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
    part = part.clone() if part.data_ptr() == tensor.data_ptr() else part
    part.picks = picks  # type: ignore[attr-defined]
    return part


def are_same_elements(first: Tensor, second: Tensor) -> bool:
    """Whether two parts of one tensor were taken at equal indices."""
    mine, theirs = getattr(first, "picks", None), getattr(second, "picks", None)
    if mine is None or theirs is None or len(mine) != len(theirs):
        return False
    pairs = zip(mine, theirs, strict=True)
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([_mapped(item, change) for item in value])
    return value


# Families of operators.


def _pointwise(call: Call, choose: Chooser) -> Slice | None:
    """Each element of a result depends on the elements at its place in the arguments."""
    given = call.given
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in given))
    except RuntimeError:  # a tensor that only names a type, or a call that will fail
        return None
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
    return Slice(args, kwargs, parts, written if op_names.sounds_in_place(call.name) else None)


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
            """Slice a tensor of the first argument's dimensions; copy any other tensor whole."""
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
    may_write = call.name.startswith("torch.nn.functional.") and mutation.may_write(call)
    if not may_write and not op_names.sounds_in_place(call.name):
        return None
    return lambda: [part(call.given[0]), *[None] * (len(call.given) - 1)]


def _is_kernel(call: Call) -> bool:
    """Whether a call has the arguments of an operator of ATen, at any level."""
    return call.level == "aten" or isinstance(call.func, OpOverload)


def _argument(call: Call, place: int, name: str, default: Any = None) -> Any:
    return call.args[place] if len(call.args) > place else call.kwargs.get(name, default)


def _dim(place: int, default: Any = None, name: str = "dim") -> Callable[[Call], Sequence[int]]:
    def kept(call: Call) -> Sequence[int]:
        dim = _argument(call, place, name, default)
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
        column = choose.indices(width, edge, -1) if width > edge else None
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
    weight_first = _is_kernel(call)
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
    groups = call.args[8] if _is_kernel(call) else _argument(call, 6, "groups", 1)
    transposed = call.args[6] if _is_kernel(call) else "transpose" in call.name
    if image.dim() != weight.dim() or math.prod(image.shape[1:]) > WHOLE:
        return None
    images = choose.indices(len(image), 1, 0) if len(image) > 1 else None
    width = weight.shape[1] if transposed else len(weight)
    channels = choose.indices(width, 4, 1) if groups == 1 and width > 4 else None
    left: list[Tensor | None] = [None] * (image.dim() - 2)
    args = list(call.args)
    args[0] = take(image, (images, None, *left))
    args[1] = take(weight, (None, channels, *left) if transposed else (channels, None, *left))
    kwargs = dict(call.kwargs)
    if isinstance(bias, Tensor):
        part = take(bias, (channels,))
        if len(call.args) > 2:
            args[2] = part
        else:
            kwargs["bias"] = part
    return Slice(tuple(args), kwargs, lambda result: take(result, (images, channels, *left)))


def _convolution_gradients(
    options: Sequence[Any],
    mask: Sequence[bool],
    image: Sequence[Tensor],
    channels: Sequence[Tensor] | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of one image, and those of some channels' weights and biases."""
    gradients = torch.ops.aten.convolution_backward.default
    ours = gradients(*image, None, *options, [True, False, False])[:1] if mask[0] else (None,)
    if channels is None:
        return *ours, None, None
    sizes = [len(channels[2])] if mask[2] else None
    return *ours, *gradients(*channels, sizes, *options, [False, *mask[1:]])[1:]


def _convolution_backward(call: Call, choose: Chooser) -> Slice | None:
    """The gradient of one image; of the weights those of some channels, if all images are few."""
    flown, image, weight = call.args[:3]
    options, mask = call.args[4:10], call.args[10]
    transposed, groups = call.args[7], call.args[9]
    if math.prod(image.shape[1:]) + math.prod(flown.shape[1:]) > WHOLE:
        return None
    left: list[Tensor | None] = [None] * (image.dim() - 2)
    images = choose.indices(len(image), 1, 0)
    alone = (images, None, *left)
    ours = take(flown, alone), take(image, alone), weight.detach().clone()
    theirs: tuple[Tensor, ...] | None = None
    channels = None
    if (mask[1] or mask[2]) and groups == 1 and not transposed and image.numel() <= WHOLE:
        channels = choose.indices(len(weight), min(2, len(weight)))
        of_weight = (channels, None, *left)
        theirs = take(flown, (None, channels, *left)), image.detach().clone()
        theirs = *theirs, take(weight, of_weight)
    if theirs is None and not mask[0]:
        return None

    def part(result: Any) -> Any:
        gradients: list[Tensor | None] = [None] * 3
        if mask[0]:
            gradients[0] = take(result[0], alone)
        for at in (1, 2):
            if theirs is not None and mask[at]:
                gradients[at] = take(result[at], (channels, *[None] * (result[at].dim() - 1)))
        return tuple(gradients)

    return Slice((options, mask, ours, theirs), {}, part, func=_convolution_gradients)


def _channels(call: Call, choose: Chooser) -> Slice | None:
    """Some channels of a batch norm, with everything that belongs to them."""
    first = call.given[0]
    picks = choose(first.shape, [1], 4 * choose.sample)
    if picks is None or picks[1] is None:
        return None
    channel = picks[1]

    def part(tensor: Tensor) -> Tensor:
        if not tensor.numel():  # statistics that are not computed in evaluation
            return tensor.detach()
        return take(tensor, picks if tensor.dim() == first.dim() else (channel,))

    given = call.given
    return Slice(
        _mapped(call.args, part),
        {key: _mapped(value, part) for key, value in call.kwargs.items()},
        lambda result: _mapped(result, part),
        lambda: [None if tensor is first else part(tensor) for tensor in given],
        [part] * len(given),
    )


def _group_norm(call: Call, choose: Chooser) -> Slice | None:
    """Some groups of channels of some images."""
    backward, kernel = "backward" in call.name, _is_kernel(call)
    first = call.args[0]
    groups = call.args[8 if backward else 6] if kernel else call.args[1]
    width = first.shape[1] // groups
    image, group = choose.indices(len(first), 1, 0), choose.indices(groups, 1)
    if math.prod(first.shape[2:]) * width > WHOLE:
        return None
    channels = group * width + torch.arange(width)
    left: list[Tensor | None] = [None] * (first.dim() - 2)

    def part(tensor: Tensor) -> Tensor:
        if tensor.dim() == 1:
            return take(tensor, (channels,))
        if tensor.shape == first.shape:
            return take(tensor, (image, channels, *left))
        return take(tensor, (image, group))  # a statistic

    args = list(_mapped(call.args, part))
    if not kernel:
        args[1] = 1
    elif backward:
        args[5:] = [1, width, args[7], 1, [True, False, False]]
    else:
        args[3:7] = [1, width, args[5], 1]
    return Slice(
        tuple(args),
        {key: _mapped(value, part) for key, value in call.kwargs.items()},
        lambda result: (part(result[0]), None, None) if backward else _mapped(result, part),
        None,
        [part, *[None] * (len(call.given) - 1)],
    )


def _attention(call: Call, choose: Chooser) -> Slice | None:
    """One head of one sequence, with all that it attends to."""
    query, key, value = call.args[:3]
    mask = _argument(call, 3, "attn_mask")
    if query.dim() != 4 or _argument(call, 4, "dropout_p", 0.0):
        return None
    if query.shape[2] * key.shape[2] > 4 * WHOLE:
        return None
    head, sequence = choose.indices(query.shape[1], 1, 1), choose.indices(len(query), 1, 0)
    mine = (sequence, head, None, None)
    shared = (sequence, head // (query.shape[1] // key.shape[1]), None, None)
    args = [take(query, mine), take(key, shared), take(value, shared), *call.args[3:]]
    kwargs = dict(call.kwargs)
    if isinstance(mask, Tensor):
        if len(args) > 3:
            args[3] = take(mask, mine)
        else:
            kwargs["attn_mask"] = take(mask, mine)

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, mine)

    alone = query.shape[1] == key.shape[1]  # else a gradient of a key is a sum over its group
    shared_part = part if alone else None
    return Slice(
        tuple(args),
        kwargs,
        part,
        None,
        [part, shared_part, shared_part, *[None] * (len(call.given) - 3)],
    )


def _multi_head(call: Call, choose: Chooser) -> Slice | None:
    """One sequence, with all weights, if they are not too large."""
    query, mask = call.args[0], call.kwargs.get("key_padding_mask")
    drops = call.args[10] and _argument(call, 13, "training", True)
    if len(call.args) > 14 or drops or query.dim() != 3:
        return None
    rest = [*call.args[3:], *[value for key, value in call.kwargs.items() if key != "attn_mask"]]
    weights = sum(tensor.numel() for tensor in tensor_list(rest) if tensor is not mask)
    attended = call.kwargs.get("attn_mask")
    if weights > WHOLE or (attended is not None and attended.dim() != 2):
        return None
    sequence = choose.indices(query.shape[1], 1, 1)

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, (None, sequence, None))

    def result(made: Any) -> Any:
        if isinstance(made, Tensor):  # a gradient
            return part(made) if made.shape == query.shape else take(made, (sequence, None, None))
        averaged = call.kwargs.get("average_attn_weights", True)
        picks = (sequence, *[None] * (2 if averaged else 3))
        return part(made[0]), None if made[1] is None else take(made[1], picks)

    kwargs = {word: _mapped(value, _copied) for word, value in call.kwargs.items()}
    if mask is not None:
        kwargs["key_padding_mask"] = take(mask, (sequence, None))
    args = [*map(part, call.args[:3]), *_mapped(call.args[3:], _copied)]
    others = [None] * (len(call.given) - 3)
    return Slice(tuple(args), kwargs, result, None, [part, part, part, *others])


def _named(call: Call) -> dict[str, Any]:
    """The arguments of an operator of ATen by their names."""
    schema = getattr(call.func, "_schema", None)
    if schema is None:
        raise TypeError("no operator of ATen")
    declared = schema.arguments
    given = {argument.name: argument.default_value for argument in declared}
    given |= dict(zip([argument.name for argument in declared], call.args, strict=False))
    return given | call.kwargs


def _attended(named: dict[str, Any], heads: Picks) -> dict[str, Any]:
    """What else than tensors an attention is given."""
    mask = named.get("attn_mask", named.get("attn_bias"))
    made = {"is_causal": named["is_causal"], "scale": named.get("scale")}
    return made if mask is None else {**made, "attn_mask": take(mask, heads)}


def _first_of_attention(*args: Any, **kwargs: Any) -> tuple[Tensor]:
    return (F.scaled_dot_product_attention(*args, **kwargs),)


def _fused_attention(call: Call, choose: Chooser) -> Slice | None:
    """A kernel of attention, of which only the first result is the meaning of all of them."""
    named = _named(call)
    query, key, value = (named[word] for word in ("query", "key", "value"))
    if named["dropout_p"] or query.dim() != 4 or query.shape[2] * key.shape[2] > 4 * WHOLE:
        return None
    head, sequence = choose.indices(query.shape[1], 1, 1), choose.indices(len(query), 1, 0)
    mine = (sequence, head, None, None)
    shared = (sequence, head // (query.shape[1] // key.shape[1]), None, None)
    args = take(query, mine), take(key, shared), take(value, shared)
    return Slice(
        args,
        _attended(named, mine),
        lambda result: (take(result[0], mine),),
        func=_first_of_attention,
    )


def _attention_gradients(
    flown: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: float | None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of an attention, without autograd, which kernels are called without."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.transpose(-1, -2) * scale
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    shares = scores.softmax(-1)
    of_shares = flown @ value.transpose(-1, -2)
    of_scores = shares * (of_shares - (shares * of_shares).sum(-1, keepdim=True)) * scale
    of_key = (of_scores.transpose(-1, -2) @ query).sum(1, keepdim=True)
    of_value = (shares.transpose(-1, -2) @ flown).sum(1, keepdim=True)
    return of_scores @ key, of_key, of_value


def _fused_attention_backward(call: Call, choose: Chooser) -> Slice | None:
    """Gradients of one head of the keys, and of all queries' heads that attend to it."""
    named = _named(call)
    query, key, value = (named[word] for word in ("query", "key", "value"))
    flown = named["grad_out" if "grad_out" in named else "grad_out_"]
    group = query.shape[1] // key.shape[1]
    if named["dropout_p"] or query.dim() != 4 or value.shape[1] != key.shape[1]:
        return None
    if group * query.shape[2] * key.shape[2] > 4 * WHOLE:
        return None
    shared, sequence = choose.indices(key.shape[1], 1), choose.indices(len(query), 1)
    heads = (sequence, shared * group + torch.arange(group), None, None)
    keys = (sequence, shared, None, None)
    args = take(flown, heads), take(query, heads), take(key, keys), take(value, keys)
    return Slice(
        args,
        _attended(named, heads),
        lambda result: tuple(map(take, result[:3], (heads, keys, keys))),
        func=_attention_gradients,
    )


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


def _stacked(call: Call, choose: Chooser) -> Slice | None:
    """Tensors put side by side along a new dimension."""
    members = list(call.args[0])
    dim = _argument(call, 1, "dim", 0) % (members[0].dim() + 1)
    picks = choose(members[0].shape, range(members[0].dim()), choose.sample // len(members) + 1)
    if picks is None:
        return None

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, picks)

    return Slice(
        ([part(member) for member in members], *call.args[1:]),
        call.kwargs,
        lambda result: take(result, (*picks[:dim], None, *picks[dim:])),
        None,
        [part] * len(members),
    )


def _elements(tensor: Tensor, flat: Tensor) -> Tensor:
    """The elements of a tensor at some places in their order, copied, outside of the graph."""
    places = torch.unravel_index(flat, tensor.shape)
    return tensor.detach()[tuple(at.to(tensor.device, non_blocking=True) for at in places)]


def _reshaped(shape: Callable[[Call], tuple[Any, ...]]) -> Any:
    """A copy in another shape: elements keep their order. `shape`: other arguments of the slice."""

    def rule(call: Call, choose: Chooser) -> Slice | None:
        first = call.args[0]
        flat = choose.indices(first.numel(), min(first.numel(), choose.sample))

        def part(tensor: Tensor) -> Tensor:
            return _elements(tensor, flat)

        return Slice((part(first), *shape(call)), {}, part, None, [part])

    return rule


def _repeated(call: Call, choose: Chooser) -> Slice | None:
    """Repeated along some dimensions; the others are independent."""
    first, sizes = call.args[0], _sizes(call)
    free = [at for at in range(-first.dim(), 0) if sizes[at] == 1]
    picks = choose(first.shape, [at + first.dim() for at in free], choose.sample)
    if picks is None or all(indices is None for indices in picks):
        return None

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, picks)

    return Slice((part(first), tuple(sizes)), {}, part, None, [part])


def _sizes(call: Call) -> list[int]:
    """Sizes after the first argument, as a list or one by one."""
    rest = call.args[1:] or tuple(call.kwargs.values())
    return list(rest[0] if isinstance(rest[0], (tuple, list)) else rest)


def _filled(call: Call, choose: Chooser) -> Slice | None:
    """A tensor of a given size, filled with one value."""
    sizes = call.args[1]
    picks = choose(sizes, range(len(sizes)), choose.sample)
    if picks is None or isinstance(sizes, int):
        return None
    args = call.args[0].detach()[..., :0].clone(), _counts(sizes, picks), *call.args[2:]
    return Slice(args, call.kwargs, lambda result: take(result, picks))


def _counts(sizes: Sequence[int], picks: Picks) -> list[int]:
    return [
        size if indices is None else len(indices)
        for size, indices in zip(sizes, picks, strict=True)
    ]


def _of_part(call: Call, choose: Chooser) -> Slice | None:
    """The gradient of a view along one dimension: zeros around what flows back."""
    flown, sizes, dim = call.args[:3]
    dim %= len(sizes)
    picks = choose(sizes, [at for at in range(len(sizes)) if at != dim], choose.sample)
    if picks is None or all(indices is None for indices in picks):
        return None
    selects = flown.dim() < len(sizes)
    of_flown = tuple(index for at, index in enumerate(picks) if not selects or at != dim)
    args = take(flown, of_flown), _counts(sizes, picks), dim, *call.args[3:]
    return Slice(args, call.kwargs, lambda result: take(result, picks))


def _upsampled_backward(call: Call, choose: Chooser) -> Slice | None:
    """Some channels of some images, with all their elements."""
    flown, sizes = call.args[0], call.args[2]
    picks = choose(flown.shape, [0, 1], choose.sample)
    if picks is None or all(indices is None for indices in picks):
        return None
    args = take(flown, picks), call.args[1], _counts(sizes, (*picks[:2], *[None] * len(sizes[2:])))
    return Slice((*args, *call.args[3:]), call.kwargs, lambda result: take(result, picks))


def _selected(call: Call, choose: Chooser) -> Slice | None:
    """What an index along one dimension names; the other dimensions are independent."""
    first, dim, index = call.args[:3]
    return _indexed(call, choose, dim % first.dim(), index, lambda part, at: (part, dim, at))


def _subscripted(call: Call, choose: Chooser) -> Slice | None:
    """A subscript with one tensor of numbers, before or behind whole dimensions."""
    given = call.args[1]
    parts = [given] if isinstance(given, Tensor) else list(given)
    [dim] = [at for at, part in enumerate(parts) if isinstance(part, Tensor)]
    whole = all(at == dim or part in (None, slice(None)) for at, part in enumerate(parts))
    if not whole or (None in parts and not _is_kernel(call)):
        return None
    if parts[dim].dtype not in (torch.int64, torch.int32):
        return None

    def args(part: Tensor, at: Tensor) -> tuple[Any, ...]:
        if isinstance(given, Tensor):
            return part, at
        return part, type(given)([*parts[:dim], at, *parts[dim + 1 :]])

    return _indexed(call, choose, dim, parts[dim], args)


def _indexed(
    call: Call,
    choose: Chooser,
    dim: int,
    index: Tensor,
    arguments: Callable[[Tensor, Tensor], tuple[Any, ...]],
) -> Slice | None:
    first = call.args[0]
    shape = [*first.shape[:dim], *index.shape, *first.shape[dim + 1 :]]
    picks = choose(shape, range(len(shape)), choose.sample)
    if picks is None:
        return None
    end = dim + index.dim()
    numbers = take(index, picks[dim:end])
    whole: Picks = (*picks[:dim], None, *picks[end:])
    # the elements by their place: the operator that copies rows may be the one that is judged
    places = numbers.reshape(-1).to(first.device)
    rows = first.detach()[(*[slice(None)] * dim, places)]
    part = take(rows, whole)
    at = torch.arange(numbers.numel(), device=numbers.device).view_as(numbers)
    return Slice(arguments(part, at), call.kwargs, lambda result: take(result, picks))


def _added(call: Call, choose: Chooser) -> Slice | None:
    """Rows added at the places of an index; the other dimensions are independent."""
    first, dim = call.args[0], call.args[1] % call.args[0].dim()
    picks = choose(first.shape, [at for at in range(first.dim()) if at != dim], choose.sample)
    if picks is None or all(indices is None for indices in picks):
        return None

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, picks) if tensor.dim() == first.dim() else tensor.detach().clone()

    if call.args[2].dim() == first.dim() and any(
        size != first.shape[at] for at, size in enumerate(call.args[2].shape) if at != dim
    ):
        return None  # a shorter index
    args = _mapped(call.args, part)
    if call.args[2].dim() != first.dim():  # one number for each row, of which none is picked
        args = (*args[:2], call.args[2].detach().clone(), *args[3:])
    gathers = "gather" in call.name
    return Slice(
        args,
        {key: _mapped(value, part) for key, value in call.kwargs.items()},
        part,
        _rereads(call, part),
        [part if not gathers or at == 0 else None for at in range(len(call.given))],
    )


def _put(call: Call, choose: Chooser) -> Slice | None:
    """Rows written at the places of one index along the first dimension."""
    first: Tensor = call.args[0]
    indices, values = call.args[1:3]
    index, *others = indices
    if any(other is not None for other in others) or index.dtype == torch.bool:
        return None
    picks = choose(first.shape, range(1, first.dim()), choose.sample)
    if picks is None or all(indices is None for indices in picks):
        return None

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, picks)

    args = part(first), [_copied(index), *others], take(values, picks[1:]), *call.args[3:]
    return Slice(args, call.kwargs, part, _rereads(call, part))


def _embedding_backward(call: Call, choose: Chooser) -> Slice | None:
    """Some columns of the weight, with all words."""
    flown, words, count = call.args[:3]
    picks = choose((count, flown.shape[-1]), [1], choose.sample)
    if picks is None or words.numel() > WHOLE:
        return None
    args = take(flown, picks[1:]), words.detach().clone(), *call.args[2:]
    return Slice(args, call.kwargs, lambda result: take(result, picks))


def _likelihood(call: Call, choose: Chooser) -> Slice | None:
    """The loss, of the elements that the targets name: no other has a part in it."""
    values, targets, weight, reduction, ignored = call.args
    if weight is not None or targets.numel() > WHOLE:
        return None
    is_used = targets != ignored
    dim = 1 if values.dim() > 1 else 0
    named = targets.where(is_used, torch.zeros_like(targets)).unsqueeze(dim)
    part = values.detach().gather(dim, named)
    zeros = torch.zeros_like(targets).where(is_used, torch.full_like(targets, -100))
    return Slice(
        (part, zeros, None, reduction, -100), call.kwargs, lambda result: _mapped(result, _copied)
    )


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _likelihood_backward(call: Call, choose: Chooser) -> Slice | None:
    """The gradients of some rows of logarithms, each with its target."""
    flown, values, targets = call.args[:3]
    if values.dim() < 2:
        return None
    picks = choose(values.shape, [at for at in range(values.dim()) if at != 1], 4 * choose.sample)
    if picks is None or all(indices is None for indices in picks):
        return None
    places = (picks[0], *picks[2:])
    args = [_mapped(value, _copied) for value in call.args]
    args[0] = take(flown, places) if flown.dim() else args[0]
    args[1:3] = take(values, picks), take(targets, places)
    return Slice(tuple(args), call.kwargs, lambda result: take(result, picks))


def _sum_of_losses(values: Tensor, targets: Tensor, scale: float, **kwargs: Any) -> Tensor:
    return F.cross_entropy(values, targets, **kwargs, reduction="sum") * scale


def _cross_entropy(call: Call, choose: Chooser) -> Slice | None:
    """The gradients of some rows; the loss itself needs all rows."""
    values, targets = call.args[:2]
    named = {"weight": 2, "size_average": 3, "ignore_index": 4, "reduce": 5, "reduction": 6}
    given = {word: _argument(call, place, word) for word, place in named.items()}
    smoothing = _argument(call, 7, "label_smoothing", 0.0)
    ignored = -100 if given["ignore_index"] is None else given["ignore_index"]
    if values.dim() < 2 or targets.dtype != torch.int64 or given["weight"] is not None:
        return None
    if given["size_average"] is not None or given["reduce"] is not None:
        return None
    picks = choose(values.shape, [at for at in range(values.dim()) if at != 1], 4 * choose.sample)
    if picks is None or all(indices is None for indices in picks):
        return None
    places = (picks[0], *picks[2:])
    args = take(values, picks), take(targets, places)
    kwargs: dict[str, Any] = {"ignore_index": ignored, "label_smoothing": smoothing}
    gradients: list[Callable[[Tensor], Tensor] | None] = [
        lambda tensor: take(tensor, picks),
        *[None] * (len(call.given) - 1),
    ]
    if given["reduction"] == "none":
        kwargs["reduction"] = "none"
        return Slice(args, kwargs, lambda result: take(result, places), None, gradients)
    used = int((targets != ignored).sum())
    scale = 1.0 / max(used, 1) if given["reduction"] in (None, "mean") else 1.0
    kwargs["scale"] = scale
    return Slice(args, kwargs, _copied, None, gradients, _sum_of_losses, is_result_judged=False)


def _whole(call: Call, choose: Chooser) -> Slice | None:
    """A number that needs all elements: the whole call, if it is not too large."""
    if sum(tensor.numel() for tensor in call.given) > WHOLE:
        return None
    return Slice(
        _mapped(call.args, _copied),
        {word: _mapped(value, _copied) for word, value in call.kwargs.items()},
        lambda result: _mapped(result, _copied),
        None,
        [_copied] * len(call.given),
    )


def _reduced(call: Call, choose: Chooser) -> Slice | None:
    """A reduction along dimensions, or of all elements."""
    if _argument(call, 1, "dim") in (None, (), []):
        return _whole(call, choose)
    return _reduction(call, choose)


def _norms(call: Call, choose: Chooser) -> Slice | None:
    """The norms of two tensors of a list."""
    lists = call.args[0]
    fit = [at for at, tensor in enumerate(lists) if tensor.numel() <= WHOLE]
    if not fit:
        return None
    chosen = [fit[at] for at in choose.indices(len(fit), min(2, len(fit))).tolist()]
    args = [lists[at].detach().clone() for at in chosen], *call.args[1:]
    return Slice(args, call.kwargs, lambda result: [_copied(result[at]) for at in chosen])


def _triangle(call: Call, choose: Chooser) -> Slice | None:
    """Some matrices of a batch; of a single one a row."""
    first = call.args[0]
    diagonal = _argument(call, 1, "diagonal", 0)
    if first.dim() > 2 and first.shape[-2] * first.shape[-1] <= choose.sample:
        result: Slice | None = _rows(lambda call: (-2, -1))(call, choose)
        return result
    row = choose.indices(first.shape[-2], 1)
    others = choose(first.shape[:-2], range(first.dim() - 2), 1)
    if others is None and first.dim() > 2:
        return None
    picks = (*(others or ()), row, None)

    def part(tensor: Tensor) -> Tensor:
        return take(tensor, picks)

    return Slice((part(first), diagonal + int(row)), {}, part, _rereads(call, part), [part])


def _one_hot(call: Call, choose: Chooser) -> Slice | None:
    """Some numbers, each with its row."""
    first, count = call.args[0], _argument(call, 1, "num_classes", -1)
    picks = choose((*first.shape, count), range(first.dim()), choose.sample)
    if picks is None or count < 1:
        return None
    return Slice((take(first, picks[:-1]), count), {}, lambda result: take(result, picks))


def _outer(call: Call, choose: Chooser) -> Slice | None:
    """Some elements of both vectors."""
    first, second = call.args
    picks = choose((len(first), len(second)), (0, 1), choose.sample)
    if picks is None:
        return None
    args = take(first, picks[:1]), take(second, picks[1:])
    return Slice(args, {}, lambda result: take(result, picks))


def _einsum(call: Call, choose: Chooser) -> Slice | None:
    """Some indices of each letter of the result."""
    equation, *operands = call.args
    operands = list(operands[0]) if isinstance(operands[0], (tuple, list)) else operands
    given, arrow, made = equation.replace(" ", "").partition("->")
    letters = given.split(",")
    if not arrow or "." in equation:
        return None
    sizes = {
        letter: operand.shape[at]
        for word, operand in zip(letters, operands, strict=True)
        for at, letter in enumerate(word)
    }
    summed = math.prod(size for letter, size in sizes.items() if letter not in made)
    picks = choose([sizes[letter] for letter in made], range(len(made)), choose.edge(summed) ** 2)
    if picks is None:
        return None
    by_letter = dict(zip(made, picks, strict=True))

    def places(word: str) -> Picks:
        return tuple(by_letter.get(letter) for letter in word)

    parts = [take(operand, places(word)) for word, operand in zip(letters, operands, strict=True)]
    if sum(part.numel() for part in parts) > WHOLE:
        return None
    return Slice((equation, *parts), {}, lambda result: take(result, picks))


def _spatial(count: int | None = None) -> Any:
    """Images and channels are independent; the last `count` dimensions belong together."""
    return _rows(lambda call: range(-(count or call.given[0].dim() - 2), 0))


def _padded(call: Call) -> Sequence[int]:
    return range(-(len(_argument(call, 1, "pad")) // 2), 0)


def _without(count: int, func: Callable[..., Any] | None, rule: Any) -> Any:
    """A vendor's variant of an operator, without the last `count` arguments and further results."""

    def variant(call: Call, choose: Chooser) -> Slice | None:
        args = call.args[: len(call.args) - count]
        part: Slice | None = rule(call.given_others(args, call.kwargs), choose)
        if part is None:
            return None
        inner = part.result
        return replace(
            part, func=func, result=lambda result: inner(tuple(result[:3])), gradients=[]
        )

    return variant


def _cudnn_batch_norm_backward(
    given: Tensor, flown: Tensor, weight: Tensor, mean: Any, var: Any, *rest: Any
) -> tuple[Tensor, ...]:
    *saved, eps = rest
    kernel = torch.ops.aten.native_batch_norm_backward.default
    result: tuple[Tensor, ...] = kernel(
        flown, given, weight, mean, var, *saved, True, eps, [True, True, True]
    )
    return result


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
    hardswish_backward leaky_relu_backward elu_backward hardtanh_backward softplus_backward
    native_dropout_backward dropout zeros_like ones_like full_like nan_to_num type_as cpu
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __neg__
    __gt__ __lt__ __ge__ __le__ __eq__ __ne__ __and__ __or__ __invert__ __iadd__ __imul__
""".split()
_IN_PLACE = """
    add mul div sub clamp relu neg exp sqrt sigmoid tanh masked_fill lerp addcmul addcdiv silu
    rsqrt reciprocal pow clamp_min clamp_max leaky_relu hardtanh elu
""".split()

_FUSED = """
    flash_attention_for_cpu flash_attention efficient_attention cudnn_attention
    fused_attention_overrideable
""".split()

_linear = _product((0, 1), transposed=True, added=2)
_matmul = _product((0, 1))
_addmm = _product((1, 2), added=0)
_EXPENSIVE = frozenset(
    {
        _linear, _matmul, _addmm, _convolution, _convolution_backward, _attention,
        _fused_attention, _fused_attention_backward, _einsum,
    }
)  # fmt: skip

RULES: dict[str, Callable[[Call, Chooser], Slice | None]] = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    **{f"{word}_": _pointwise for word in _IN_PLACE},
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
    "_fused_rms_norm": _rows(_normalized),
    "_fused_rms_norm_backward": _rows(_normalized_backward, mask=5),
    "_safe_softmax": _rows(_dim(1)),
    "glu": _rows(_dim(1, -1)),
    "glu_backward": _rows(_dim(2)),
    "topk": _rows(_dim(2, -1)),
    "sort": _rows(_dim(1, -1)),
    "argsort": _rows(_dim(1, -1)),
    "flip": _rows(_dim(1, name="dims")),
    "roll": _rows(_dim(2, name="dims")),
    "pad": _rows(_padded),
    "constant_pad_nd": _rows(_padded),
    "repeat_interleave": _rows(_dim(2)),
    "split_with_sizes_copy": _rows(_dim(2, 0)),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "prod"), _reduced),
    **dict.fromkeys(("argmax", "argmin", "any", "all", "std", "var", "logsumexp"), _reduced),
    "mse_loss": _whole,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "conv_transpose1d": _convolution,
    "conv_transpose2d": _convolution,
    "conv_transpose3d": _convolution,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "batch_norm": _channels,
    "instance_norm": _channels,
    "native_batch_norm": _channels,
    "_native_batch_norm_legit": _channels,
    "_native_batch_norm_legit_no_training": _channels,
    "native_batch_norm_backward": _channels,
    "cudnn_batch_norm": _without(0, torch.ops.aten.native_batch_norm.default, _channels),
    "miopen_batch_norm": _without(0, torch.ops.aten.native_batch_norm.default, _channels),
    "cudnn_batch_norm_backward": _without(1, _cudnn_batch_norm_backward, _channels),
    "batch_norm_backward": _without(
        1, torch.ops.aten.native_batch_norm_backward.default, _channels
    ),
    "group_norm": _group_norm,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm,
    "interpolate": _spatial(),
    **{
        f"{word}{count}d": _spatial(count)
        for word in ("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "lp_pool")
        for count in (1, 2, 3)
    },
    **{
        f"{word}{count}d{end}": _spatial(count)
        for word, end in (
            ("max_pool", "_with_indices"),
            ("max_pool", "_with_indices_backward"),
            ("avg_pool", "_backward"),
            ("_adaptive_avg_pool", "_backward"),
        )
        for count in (2, 3)
    },
    **dict.fromkeys(
        ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"), _spatial(2)
    ),
    **dict.fromkeys(
        (
            "upsample_nearest2d_backward",
            "upsample_bilinear2d_backward",
            "upsample_bicubic2d_backward",
        ),
        _upsampled_backward,
    ),
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _multi_head,
    **dict.fromkeys([f"_scaled_dot_product_{word}" for word in _FUSED], _fused_attention),
    **dict.fromkeys(
        [f"_scaled_dot_product_{word}_backward" for word in _FUSED], _fused_attention_backward
    ),
    "nll_loss_forward": _likelihood,
    "nll_loss2d_forward": _likelihood,
    "nll_loss_backward": _likelihood_backward,
    "nll_loss2d_backward": _likelihood_backward,
    "cross_entropy": _cross_entropy,
    "cat": _joined,
    "stack": _stacked,
    **dict.fromkeys(("reshape", "_unsafe_view"), _reshaped(lambda call: ((-1,),))),
    "flatten": _reshaped(lambda call: ()),
    "repeat": _repeated,
    "new_zeros": _filled,
    "new_ones": _filled,
    "new_full": _filled,
    "select_backward": _of_part,
    "slice_backward": _of_part,
    "index_select": _selected,
    "index": _subscripted,
    "__getitem__": _subscripted,
    **dict.fromkeys(("gather", "scatter_add", "scatter_add_", "index_add", "index_add_"), _added),
    **dict.fromkeys(("index_put", "index_put_"), _put),
    "_foreach_norm": _norms,
    **dict.fromkeys(("tril", "triu", "tril_", "triu_"), _triangle),
    "one_hot": _one_hot,
    **dict.fromkeys(("outer", "ger"), _outer),
    "einsum": _einsum,
}


def rule_for(word: str) -> Callable[[Call, Chooser], Slice | None] | None:
    """The rule for an operator by the last part of its name."""
    if word.startswith(("_foreach_", "_fused_")) and "norm" not in word:
        return _lists
    return RULES.get(word)
