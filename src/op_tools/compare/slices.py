# SPDX-License-Identifier: Apache-2.0
"""Which small call has, as its results, a part of the results of a large call.

A product of two matrices is a product of some rows with some columns; a softmax of some rows is the
same rows of the softmax. `slice_of` finds such a small call by a table of operator families. It
only indexes: the cost is that of gathering a few thousand elements, whatever the size of the call.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional as F

from op_tools.compare.eligibility import argument
from op_tools.compare.inputs import stream_of, upload
from op_tools.core import op_names
from op_tools.core.call import Call, tensor_list
from op_tools.tensors import host_transfer, mutation

LARGE = 1 << 16  # elements of all tensors of a call; a smaller call is judged as a whole
SAMPLE = 1 << 12  # elements of a result that are judged, where its elements are independent
WHOLE = 1 << 20  # elements that one independent slice may need (a row of a softmax, an image)

Picks = tuple[Tensor | None, ...]  # of each dimension the indices; None: all of them
Taker = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Slice:
    """A small call, and how its results and gradients are found in those of the large call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Callable[[Any], Any]  # the part of the large call's result
    written: Callable[[], list[Tensor | None]] | None = None  # parts of arguments after the call
    # of each tensor argument the part of its gradient; None: it needs more than the slice
    gradients: list[Taker | None] = field(default_factory=list)
    func: Callable[..., Any] | None = None  # what to call; None: the large call's function
    is_result_judged: bool = True  # False: only the gradients are parts of the large call's

    def copied(self, call: Call, copy: Taker) -> tuple[Call, frozenset[int]]:
        """The small call with copies of its arguments, and the ids of the copies whose gradients
        are wanted. `call`: the large one.
        """
        args, kwargs = self._joined(call)
        copies = host_transfer.Copies(copy)
        small = call.with_arguments(copies.of(args), copies.of(kwargs))
        small.func = call.func if self.func is None else self.func
        # the order of arguments is that of the large call, unless lists were cut short
        given = [id(own) for own in call.inputs]
        triples = zip(call.inputs, self.gradients, small.inputs, strict=False)
        # the gradient of a tensor that is given twice is the sum of two
        return small, frozenset(
            id(copy)
            for own, take, copy in triples
            if take is not None and own.requires_grad and given.count(id(own)) == 1
        )

    def _joined(self, call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with one part of a tensor that is given twice, where both parts are of the
        same elements; else the gradient, which is the sum of both, is not judged.
        """
        if len({id(tensor) for tensor in call.inputs}) == len(call.inputs):  # hot path
            return self.args, self.kwargs
        first: dict[int, int] = {}
        substitutes: dict[int, Tensor] = {}
        small = tensor_list(self.args, self.kwargs)
        for at, (own, part) in enumerate(zip(call.inputs, small, strict=False)):
            place = first.setdefault(id(own), at)
            if place == at:
                continue
            if _are_same_elements(small[place], part):
                substitutes[id(part)] = small[place]
            elif at < len(self.gradients):
                self.gradients[place] = self.gradients[at] = None
        args, kwargs = host_transfer.mapped(
            (self.args, self.kwargs), lambda leaf: substitutes.get(id(leaf), leaf)
        )
        return args, kwargs


_PLASTIC = 1.32471795724  # its powers fill a plane evenly
STEPS = [_PLASTIC**-1, _PLASTIC**-2, *(math.sqrt(number) % 1.0 for number in (2, 7, 11, 13))]
_BETWEEN = (math.sqrt(5) - 1) / 2  # between the places in neighbouring regions
ROUNDS = 64  # calls whose indices are computed and uploaded at once
BLOCKS = 1 << 10  # sizes of dimensions whose indices are held


class _Block:
    """Indices of one dimension for ROUNDS calls, on the host and on each device that used them."""

    def __init__(self, size: int, count: int, first: int, dimension: int) -> None:
        regions = np.arange(count + 1) * size // count
        calls = (first + np.arange(ROUNDS)) * STEPS[(dimension - 1) % len(STEPS)] + dimension / 7
        places = (calls[:, None] + np.arange(count) * _BETWEEN) % 1.0
        within = (places * np.diff(regions)).astype(np.int64)
        self.first = first
        self.host = torch.from_numpy(regions[:-1] + within)
        self._there: dict[tuple[torch.device, int], Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        stream = stream_of(device)
        found = self._there.get(stream)
        if found is None:
            found = self._there[stream] = upload(self.host, device)
        return found


class Chooser:
    """Indices, one from each of as many equal regions of a dimension as are wanted.

    Consecutive calls take other indices of each region, until all of them were taken about equally
    often: the places in the regions advance by irrational steps, another one for each dimension.

    `scale`: how many times as many elements as usual are chosen.
    """

    def __init__(self, seed: int = 0, scale: float = 1.0) -> None:
        self._first, self._dimension = 13 * seed, 0
        self._blocks: dict[tuple[int, int, int], _Block] = {}
        self._calls: Counter[tuple[int, int, int]] = Counter()
        self.scale = scale

    @property
    def sample(self) -> int:
        """Elements of a result that are chosen, where its elements are independent."""
        return int(SAMPLE * self.scale)

    def next_call(self) -> None:
        """The next indices are those of another call."""
        self._dimension = 0

    def members(self, length: int) -> list[int]:
        """The places of two members of a list."""
        found: list[int] = self.indices(length, min(2, length)).tolist()
        return found

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks:
        """Indices of the `free` dimensions of a shape so that about `elements` are left.

        ValueError: the other dimensions alone have too many.
        """
        counts = list(shape)
        _check_size(shape, free)
        while math.prod(counts) > elements:
            largest = max(free, key=lambda at: counts[at], default=None)
            if largest is None or counts[largest] == 1:
                break
            counts[largest] = (counts[largest] + 1) // 2
        return tuple(
            self.indices(size, count, at) if count < size else None
            for at, (size, count) in enumerate(zip(shape, counts, strict=True))
        )

    def cut(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks:
        """Indices as above; ValueError where all elements are chosen."""
        picks = self(shape, free, elements)
        if all(indices is None for indices in picks):
            raise ValueError("no dimension can be cut")
        return picks

    def edge(self, inner: int) -> int:
        """How many rows and columns of a product are chosen, by the length of its sums."""
        edge = max(8, min(64, WHOLE // 16 // max(inner, 1)))
        return max(4, int(edge * math.sqrt(self.scale)))

    def indices(self, size: int, count: int, at: int | None = None) -> Tensor:
        """`count` different indices below `size`, in order; `at`: the dimension of the result."""
        self._dimension += 1
        key = size, count, self._dimension
        round, row = divmod(self._first + self._calls[key], ROUNDS)
        self._calls[key] += 1
        block = self._blocks.get(key)
        if block is None or block.first != round * ROUNDS:
            if len(self._blocks) >= BLOCKS:
                self._blocks.clear()
            block = self._blocks[key] = _Block(size, count, round * ROUNDS, self._dimension)
        found = block.host[row]
        found.uploaded = block, row  # type: ignore[attr-defined]
        return found


def _on(indices: Tensor, device: torch.device) -> Tensor:
    """Indices on a device, of the same values; those of a Chooser are there."""
    block, row = getattr(indices, "uploaded", (None, 0))
    return upload(indices, device) if block is None else block.on(device)[row]


def _check_size(shape: Sequence[int], free: Sequence[int]) -> None:
    fixed = math.prod(size for at, size in enumerate(shape) if at not in free)
    if fixed > WHOLE or 0 in shape:
        raise ValueError("an independent slice is too large, or empty")


class Aim(Chooser):
    """Chooses given elements of a result: one index of each dimension, and some of the last; of a
    list of tensors those of one member.
    """

    def __init__(
        self, place: Sequence[int], last: Sequence[int] = (), member: int | None = None
    ) -> None:
        super().__init__()
        self._place, self._member = [[at] for at in place], member
        if last:
            self._place.append(sorted(last))

    def members(self, length: int) -> list[int]:
        return super().members(length) if self._member is None else [self._member]

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks:
        _check_size(shape, free)
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

    def __call__(self, shape: Sequence[int], free: Sequence[int], elements: int) -> Picks:
        picks = super().__call__(shape[: len(self._place)], free, elements)
        return (*picks, *[None] * (len(shape) - len(picks)))


def is_affordable(call: Call) -> bool:
    """Whether a large call can be judged as a whole within seconds."""
    elements = sum(tensor.numel() for tensor in call.inputs)
    rule = rule_for(call.operator)
    if rule in _EXPENSIVE or isinstance(rule, _Product):
        rows = max(math.prod(tensor.shape[:-1]) for tensor in call.inputs)
        return elements * min(rows, elements) <= WHOLE << 8
    return elements <= WHOLE


def is_large(call: Call) -> bool:
    """Whether a call is to be judged by a slice of it: its arguments are large, or its result."""
    sizes = [tensor.numel() for tensor in call.inputs]
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
            return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in call.inputs)))
        if isinstance(rule, _Product):
            return rule.elements(call)
    except (AttributeError, IndexError, RuntimeError, ValueError):  # a call that will fail
        pass
    return 0


def slice_of(call: Call, choose: Chooser) -> Slice | None:
    """A slice of a call, from before the call; None: there is no rule for it."""
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
            start = getattr(indices, "start", None)
            if start is None:
                part = part.index_select(at, _on(indices, tensor.device))
            else:
                part = _neighbours(part, at, start, len(indices))
    if part.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
        part = part.clone()
    part.picks = picks  # type: ignore[attr-defined]
    return part


def _neighbours(tensor: Tensor, dim: int, start: int, count: int) -> Tensor:
    """Neighbouring elements of a dimension, whose first element follows its last one."""
    before_end = min(count, tensor.shape[dim] - start)
    part = tensor.narrow(dim, start, before_end)
    if before_end == count:
        return part
    return torch.cat([part, tensor.narrow(dim, 0, count - before_end)], dim)


def _are_same_elements(first: Tensor, second: Tensor) -> bool:
    """Whether two parts of one tensor were taken at equal indices."""
    picks, others = getattr(first, "picks", None), getattr(second, "picks", None)
    if picks is None or others is None or len(picks) != len(others):
        return False
    pairs = zip(picks, others, strict=True)
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def _mapped(value: Any, change: Taker) -> Any:
    return host_transfer.mapped(
        value, lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf
    )


# Families of operators. A rule returns None, or raises ValueError, where it does not apply.

Rule = Callable[[Call, Chooser], Slice | None]
Dims = Callable[[Call], Sequence[int]]


def _is_kernel(call: Call) -> bool:
    """Whether a call has the arguments of an operator of ATen, at any level."""
    return call.level == "aten" or isinstance(call.func, OpOverload)


def _replaced(call: Call, parts: dict[tuple[int, str], Any]) -> tuple[tuple[Any, ...], Any]:
    """The arguments of a call with others at some places, or under their names."""
    args, kwargs = list(call.args), dict(call.kwargs)
    for (place, name), part in parts.items():
        if place < len(args):
            args[place] = part
        else:
            kwargs[name] = part
    return tuple(args), kwargs


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _sizes(sizes: Sequence[int], picks: Picks) -> list[int]:
    """The sizes of a part of a tensor."""
    pairs = zip(sizes, picks, strict=True)
    return [size if indices is None else len(indices) for size, indices in pairs]


def _free(sizes: Sequence[int], fixed: Sequence[int]) -> list[int]:
    """The dimensions that are not fixed."""
    whole = {at % len(sizes) for at in fixed}
    return [at for at in range(len(sizes)) if at not in whole]


def _written(call: Call, part: Taker) -> Callable[[], list[Tensor | None]] | None:
    """What takes the part of an argument that the call writes; None: it writes none."""
    may_write = call.name.startswith("torch.nn.functional.") and mutation.may_write(call)
    if not may_write and not op_names.sounds_in_place(call.name):
        return None
    return lambda: [part(call.inputs[0]), *[None] * (len(call.inputs) - 1)]


def _in_part(
    call: Call,
    part: Taker,
    result: Taker | None = None,
    gradients: Sequence[Taker | None] = (),
) -> Slice:
    """A call with a part of each of its tensors."""
    taker = part if result is None else result
    args, kwargs = _mapped((call.args, call.kwargs), part)
    return Slice(
        args,
        kwargs,
        lambda results: _mapped(results, taker),
        _written(call, part),
        list(gradients),
    )


def _pointwise(call: Call, choose: Chooser) -> Slice:
    """Each element of a result depends on the elements at its place in the arguments."""
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in call.inputs))
    except RuntimeError as error:  # a tensor that only names a type, or a call that will fail
        raise ValueError from error
    part = partial(take, picks=choose(shape, range(len(shape)), choose.sample))
    return _in_part(call, part, None, [part if t.shape == shape else None for t in call.inputs])


def _whole(call: Call, choose: Chooser) -> Slice | None:
    """A number that needs all elements: the whole call, if it is not too large."""
    if sum(tensor.numel() for tensor in call.inputs) > WHOLE:
        return None
    return _in_part(call, _copied, None, [_copied] * len(call.inputs))


def _lists(call: Call, choose: Chooser) -> Slice | None:
    """Lists of tensors, each handled alone: two members are picked, and elements of them."""
    lists = [value for value in call.args if _is_list(value)]
    length = len(lists[0])
    if any(len(value) != length for value in lists):
        return None
    members = choose.members(length)
    firsts = [lists[0][member] for member in members]
    elements = choose.sample // 2
    chosen = [
        choose(one.shape, range(one.dim()), elements) if one.numel() else () for one in firsts
    ]

    def part(tensor: Tensor, at: int) -> Tensor:
        if tensor.shape != firsts[at].shape:
            return _copied(tensor)
        found = take(tensor, chosen[at])
        found.member = members[at]  # type: ignore[attr-defined]
        return found

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


@dataclass(frozen=True)
class _Rows:
    """The dimensions of the first tensor are independent, all but those that `kept` names.

    A tensor with as many dimensions is sliced as the first one is; any other tensor is whole,
    unless `others` has its indices.
    """

    kept: Dims
    result: Callable[[Call, Picks], Picks] = lambda call, picks: picks
    others: Callable[[Call, Tensor, Picks], Picks | None] = lambda call, tensor, picks: None
    first: int = 0  # place of the tensor that is meant by the first one
    scale: int = 1  # times as many elements as usual
    mask: int | None = None  # place of an output mask, of which only the first result is judged

    def __call__(self, call: Call, choose: Chooser) -> Slice | None:
        first = call.inputs[self.first]
        free = _free(first.shape, self.kept(call))
        picks = choose.cut(first.shape, free, self.scale * choose.sample)

        def part(tensor: Tensor) -> Tensor:
            if tensor.dim() != first.dim():
                own = self.others(call, tensor, picks)
                return _copied(tensor) if own is None else take(tensor, own)
            if any(tensor.shape[at] not in (1, first.shape[at]) for at in free):
                raise ValueError("the tensors are not of one shape")
            return take(tensor, picks)

        gradients = [
            part if t.dim() == first.dim() and t.is_floating_point() else None for t in call.inputs
        ]
        found = _in_part(call, part, partial(take, picks=self.result(call, picks)), gradients)
        if self.mask is None:
            return found
        mask = [True] + [False] * (len(call.args[self.mask]) - 1)  # those of weights need all rows
        args = (*found.args[: self.mask], mask, *found.args[self.mask + 1 :])
        return replace(
            found, args=args, result=lambda results: (part(results[0]), *[None] * len(mask[1:]))
        )


def _dim(place: int, default: Any = None, name: str = "dim") -> Dims:
    """The dimensions that an argument names."""

    def kept(call: Call) -> Sequence[int]:
        dim = argument(call, place, name, default=default)
        if dim is None:
            raise ValueError("no dimension is given")
        return [dim] if isinstance(dim, int) else list(dim)

    return kept


def _normalized(place: int) -> Dims:
    """The last dimensions, as many as an argument has sizes."""
    return lambda call: range(-len(argument(call, place, "normalized_shape")), 0)


def _spatial(count: int | None = None) -> _Rows:
    """Images and channels are independent; the last `count` dimensions belong together."""
    return _Rows(lambda call: range(-(count or call.inputs[0].dim() - 2), 0))


def _repeats(call: Call) -> Sequence[int]:
    """The dimensions that are repeated."""
    rest = call.args[1:] or tuple(call.kwargs.values())
    sizes = list(rest[0] if isinstance(rest[0], (tuple, list)) else rest)
    return [at for at in range(-call.inputs[0].dim(), 0) if sizes[at] != 1]


def _with_new(call: Call, picks: Picks) -> Picks:
    """The result has one more dimension, at the place that an argument names."""
    dim = argument(call, 1, "dim", default=0) % (len(picks) + 1)
    return (*picks[:dim], None, *picks[dim:])


def _without_class(call: Call, tensor: Tensor, picks: Picks) -> Picks | None:
    """Targets and losses lack the dimension of the classes, the second one."""
    if call.args[3] is not None:
        raise ValueError("classes have weights")
    return (picks[0], *picks[2:]) if tensor.dim() else None


def _reduced(call: Call, choose: Chooser) -> Slice | None:
    """A reduction along some dimensions, or of all elements."""
    dim = argument(call, 1, "dim")
    if isinstance(dim, Tensor):
        return _pointwise(call, choose)
    if dim in (None, (), []):
        return _whole(call, choose)
    free = _free(call.inputs[0].shape, _dim(1)(call))
    keepdim = argument(call, 2, "keepdim", default=False)

    def left(call: Call, picks: Picks) -> Picks:
        return picks if keepdim else tuple(picks[at] for at in free)

    return _Rows(_dim(1), left, scale=4)(call, choose)


def _triangle(call: Call, choose: Chooser) -> Slice:
    """Some matrices of a batch; of a single one a row."""
    first = call.args[0]
    diagonal = argument(call, 1, "diagonal", default=0)
    if first.dim() > 2 and first.shape[-2] * first.shape[-1] <= choose.sample:
        return _Rows(lambda call: (-2, -1))(call, choose)  # type: ignore[return-value]
    row = choose.indices(first.shape[-2], 1)
    others = choose(first.shape[:-2], range(first.dim() - 2), 1)
    part = partial(take, picks=(*others, row, None))
    return Slice((part(first), diagonal + int(row)), {}, part, _written(call, part), [part])


def _sized(place: int, kept: Dims) -> Rule:
    """An argument has the sizes of the result: the gradient of a view, or of a larger image."""

    def rule(call: Call, choose: Chooser) -> Slice:
        sizes, grad_output = call.args[place], call.args[0]
        free = _free(sizes, kept(call))
        picks = choose.cut(sizes, free, choose.sample)
        own = picks if grad_output.dim() == len(sizes) else tuple(picks[at] for at in free)
        counts = _sizes(sizes, picks)
        args = take(grad_output, own), *call.args[1:place], counts, *call.args[place + 1 :]
        return Slice(args, call.kwargs, partial(take, picks=picks))

    return rule


def _filled(call: Call, choose: Chooser) -> Slice:
    """A tensor of a given size, filled with one value."""
    picks = choose(call.args[1], range(len(call.args[1])), choose.sample)
    empty = call.args[0].detach()[..., :0].clone()
    args = empty, _sizes(call.args[1], picks), *call.args[2:]
    return Slice(args, call.kwargs, partial(take, picks=picks))


def _reshaped(*shape: Any) -> Rule:
    """A copy in another shape: elements keep their order. `shape`: other arguments of the slice."""

    def rule(call: Call, choose: Chooser) -> Slice:
        first = call.args[0]
        flat = choose.indices(first.numel(), min(first.numel(), choose.sample))

        def part(tensor: Tensor) -> Tensor:
            return tensor.detach()[torch.unravel_index(_on(flat, tensor.device), tensor.shape)]

        return Slice((part(first), *shape), {}, part, None, [part])

    return rule


# Products: some indices of each letter of the result, and all of the letters that are summed.


@dataclass(frozen=True)
class _Product:
    """A product of tensors, whose dimensions have letters; `*` is any number of dimensions."""

    words: tuple[str, ...]  # of the arguments
    result: str
    last: str = ""  # the name of the last argument, where it has one

    def letters(self, call: Call) -> tuple[dict[tuple[int, str], tuple[Tensor, str]], str]:
        """By its place, each argument that is a tensor, with the letters of its dimensions; and the
        letters of the result.
        """
        names = [""] * (len(self.words) - 1) + [self.last]
        places = zip(enumerate(names), self.words, strict=True)
        found = {place: (argument(call, *place), word) for place, word in places}
        found = {place: pair for place, pair in found.items() if isinstance(pair[0], Tensor)}
        more = [value.dim() - len(word.strip("*")) for value, word in found.values()]
        for (_value, word), dims in zip(found.values(), more, strict=True):
            # what is added may have fewer dimensions than the result
            if ("*" not in word and dims) or ("k" in word and dims < 0):
                raise ValueError("a factor is no matrix")
        batch = "ABCDEFGH"[: max(more)]
        lettered = {
            place: (value, word.replace("*", batch)) for place, (value, word) in found.items()
        }
        return lettered, self.result.replace("*", batch)

    def elements(self, call: Call) -> int:
        """How many the result has."""
        found, result = self.letters(call)
        sizes = _sizes_of(found.values())
        return math.prod(sizes[letter] for letter in result)

    def __call__(self, call: Call, choose: Chooser) -> Slice:
        found, result = self.letters(call)
        parts, picks = _by_letters(list(found.values()), result, choose)
        args, kwargs = _replaced(call, dict(zip(found, parts, strict=True)))
        return Slice(args, kwargs, partial(take, picks=picks))


def _sizes_of(found: Iterable[tuple[Tensor, str]]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for tensor, word in found:
        for letter, size in zip(reversed(word), reversed(tensor.shape), strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return sizes


def _by_letters(
    found: Sequence[tuple[Tensor, str]], result: str, choose: Chooser
) -> tuple[list[Tensor], Picks]:
    """A part of each tensor, and the indices of the result that they give."""
    sizes = _sizes_of(found)
    summed = math.prod(size for letter, size in sizes.items() if letter not in result)
    shape = [sizes[letter] for letter in result]
    edge = choose.edge(summed)
    elements = min(edge, math.prod(shape[:-1])) * min(edge, shape[-1])
    picks = choose(shape, range(len(shape)), elements)
    chosen = dict(zip(result, picks, strict=True))
    return [take(t, tuple(chosen.get(letter) for letter in word)) for t, word in found], picks


def _einsum(call: Call, choose: Chooser) -> Slice | None:
    equation, *operands = call.args
    operands = list(operands[0]) if isinstance(operands[0], (tuple, list)) else operands
    words, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        return None
    parts, picks = _by_letters(list(zip(operands, words.split(","), strict=True)), result, choose)
    if sum(part.numel() for part in parts) > WHOLE:
        return None
    return Slice((equation, *parts), {}, partial(take, picks=picks))


# Convolutions and norms over channels.


def _convolution(call: Call, choose: Chooser) -> Slice | None:
    """Some images, and some channels of the result."""
    image, weight = call.args[:2]
    bias = argument(call, 2, "bias")
    kernel = _is_kernel(call)
    groups = call.args[8] if kernel else argument(call, 6, "groups", default=1)
    transposed = call.args[6] if kernel else "transpose" in call.name
    if image.dim() != weight.dim() or math.prod(image.shape[1:]) > WHOLE:
        return None
    images = choose.indices(len(image), 1, 0) if len(image) > 1 else None
    width = weight.shape[1] if transposed else len(weight)
    channels = choose.indices(width, 4, 1) if groups == 1 and width > 4 else None
    rest = (None,) * (image.dim() - 2)
    of_weight = (None, channels, *rest) if transposed else (channels, None, *rest)
    parts = {
        (0, "input"): take(image, (images, None, *rest)),
        (1, "weight"): take(weight, of_weight),
    }
    if isinstance(bias, Tensor):
        parts[2, "bias"] = take(bias, (channels,))
    return Slice(*_replaced(call, parts), partial(take, picks=(images, channels, *rest)))


def _convolution_gradients(
    options: Sequence[Any],
    mask: Sequence[bool],
    image: Sequence[Tensor],
    channels: Sequence[Tensor] | None,
) -> tuple[Tensor | None, ...]:
    """Gradients of one image, and those of some channels' weights and biases."""
    gradients = torch.ops.aten.convolution_backward.default
    of_image = gradients(*image, None, *options, [True, False, False])[0] if mask[0] else None
    if channels is None:
        return of_image, None, None
    sizes = [len(channels[2])] if mask[2] else None
    return of_image, *gradients(*channels, sizes, *options, [False, *mask[1:]])[1:]


def _convolution_backward(call: Call, choose: Chooser) -> Slice | None:
    """The gradient of one image; of the weights those of some channels, if all images are few."""
    grad_output, image, weight = call.args[:3]
    options, mask = call.args[4:10], call.args[10]
    transposed, groups = call.args[7], call.args[9]
    if math.prod(image.shape[1:]) + math.prod(grad_output.shape[1:]) > WHOLE:
        return None
    rest = (None,) * (image.dim() - 2)
    alone = (choose.indices(len(image), 1, 0), None, *rest)
    of_image = take(grad_output, alone), take(image, alone), _copied(weight)
    of_channels: tuple[Tensor, ...] | None = None
    picks: list[Picks | None] = [alone if mask[0] else None, None, None]
    if (mask[1] or mask[2]) and groups == 1 and not transposed and image.numel() <= WHOLE:
        channels = choose.indices(len(weight), min(2, len(weight)))
        part = take(grad_output, (None, channels, *rest)), _copied(image)
        of_channels = *part, take(weight, (channels, None, *rest))
        picks[1] = (channels, None, *rest) if mask[1] else None
        picks[2] = (channels,) if mask[2] else None
    if of_channels is None and not mask[0]:
        return None
    return Slice(
        (options, mask, of_image, of_channels),
        {},
        lambda result: tuple(
            None if own is None else take(gradient, own)
            for gradient, own in zip(result, picks, strict=True)
        ),
        func=_convolution_gradients,
    )


def _channels(call: Call, choose: Chooser) -> Slice | None:
    """Some channels of a batch norm, with everything that belongs to them."""
    first = call.inputs[0]
    picks = choose.cut(first.shape, [1], 4 * choose.sample)

    def part(tensor: Tensor) -> Tensor:
        if not tensor.numel():  # statistics that are not computed in evaluation
            return tensor.detach()
        return take(tensor, picks if tensor.dim() == first.dim() else (picks[1],))

    given = call.inputs
    found = _in_part(call, part, None, [part] * len(given))
    return replace(
        found, written=lambda: [None if tensor is first else part(tensor) for tensor in given]
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
    rest = (None,) * (first.dim() - 2)

    def part(tensor: Tensor) -> Tensor:
        if tensor.dim() == 1:
            return take(tensor, (channels,))
        if tensor.shape == first.shape:
            return take(tensor, (image, channels, *rest))
        return take(tensor, (image, group))  # a statistic

    found = _in_part(call, part, None, [part, *[None] * (len(call.inputs) - 1)])
    args = list(found.args)
    if not kernel:
        args[1] = 1
    elif backward:
        args[5:] = [1, width, args[7], 1, [True, False, False]]
        return replace(found, args=tuple(args), result=lambda result: (part(result[0]), None, None))
    else:
        args[3:7] = [1, width, args[5], 1]
    return replace(found, args=tuple(args))


def _without(count: int, func: Callable[..., Any] | None) -> Rule:
    """A vendor's batch norm, without the last `count` arguments and further results."""

    def variant(call: Call, choose: Chooser) -> Slice | None:
        args = call.args[: len(call.args) - count]
        part = _channels(call.with_arguments(args, call.kwargs), choose)
        if part is None:
            return None
        inner = part.result
        return replace(
            part, func=func, result=lambda results: inner(tuple(results[:3])), gradients=[]
        )

    return variant


def _cudnn_batch_norm_backward(
    image: Tensor, grad_output: Tensor, weight: Tensor, mean: Any, var: Any, *rest: Any
) -> tuple[Tensor, ...]:
    *saved, eps = rest
    kernel = torch.ops.aten.native_batch_norm_backward.default
    result: tuple[Tensor, ...] = kernel(
        grad_output, image, weight, mean, var, *saved, True, eps, [True, True, True]
    )
    return result


# Attention: one head of one sequence, with all that it attends to.


def _named(call: Call) -> dict[str, Any]:
    """The arguments of an attention by their names."""
    schema = getattr(call.func, "_schema", None)
    names: Sequence[str] = "query key value attn_mask dropout_p is_causal scale".split()
    defaults: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False}
    if schema is not None:
        names = [one.name for one in schema.arguments]
        defaults = {one.name: one.default_value for one in schema.arguments}
    return defaults | dict(zip(names, call.args, strict=False)) | call.kwargs


def _options(named: dict[str, Any], heads: Picks) -> dict[str, Any]:
    """The mask of some heads, and the options of an attention."""
    mask = named.get("attn_mask", named.get("attn_bias"))
    options = {"is_causal": named["is_causal"], "scale": named.get("scale")}
    return options if mask is None else {**options, "attn_mask": take(mask, heads)}


def _attention(call: Call, choose: Chooser) -> Slice | None:
    """One head. Of a kernel only the first result is the meaning of all of them."""
    named = _named(call)
    query, key, value = (named[word] for word in ("query", "key", "value"))
    if named["dropout_p"] or query.dim() != 4 or query.shape[2] * key.shape[2] > 4 * WHOLE:
        return None
    head, sequence = choose.indices(query.shape[1], 1, 1), choose.indices(len(query), 1, 0)
    own = (sequence, head, None, None)
    shared = (sequence, head // (query.shape[1] // key.shape[1]), None, None)
    args = take(query, own), take(key, shared), take(value, shared)
    part, options = partial(take, picks=own), _options(named, own)
    if _is_kernel(call):
        return Slice(args, options, lambda results: (part(results[0]),), func=_first_of_attention)
    # where heads share a key, its gradient is a sum
    of_key = part if query.shape[1] == key.shape[1] else None
    gradients: list[Taker | None] = [part, of_key, of_key, *[None] * (len(call.inputs) - 3)]
    return Slice(args, options, part, None, gradients)


def _first_of_attention(*args: Any, **kwargs: Any) -> tuple[Tensor]:
    return (F.scaled_dot_product_attention(*args, **kwargs),)


def _attention_gradients(
    grad_output: Tensor,
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
    of_shares = grad_output @ value.transpose(-1, -2)
    of_scores = shares * (of_shares - (shares * of_shares).sum(-1, keepdim=True)) * scale
    of_key = (of_scores.transpose(-1, -2) @ query).sum(1, keepdim=True)
    of_value = (shares.transpose(-1, -2) @ grad_output).sum(1, keepdim=True)
    return of_scores @ key, of_key, of_value


def _attention_backward(call: Call, choose: Chooser) -> Slice | None:
    """Gradients of one head of the keys, and of all queries' heads that attend to it."""
    named = _named(call)
    query, key, value = (named[word] for word in ("query", "key", "value"))
    grad_output = named["grad_out" if "grad_out" in named else "grad_out_"]
    group = query.shape[1] // key.shape[1]
    if named["dropout_p"] or query.dim() != 4 or value.shape[1] != key.shape[1]:
        return None
    if group * query.shape[2] * key.shape[2] > 4 * WHOLE:
        return None
    shared, sequence = choose.indices(key.shape[1], 1), choose.indices(len(query), 1)
    heads = (sequence, shared * group + torch.arange(group), None, None)
    keys = (sequence, shared, None, None)
    return Slice(
        (take(grad_output, heads), take(query, heads), take(key, keys), take(value, keys)),
        _options(named, heads),
        lambda result: tuple(map(take, result[:3], (heads, keys, keys))),
        func=_attention_gradients,
    )


def _multi_head(call: Call, choose: Chooser) -> Slice | None:
    """One sequence, with all weights, if they are not too large."""
    query, mask = call.args[0], call.kwargs.get("key_padding_mask")
    drops = call.args[10] and argument(call, 13, "training", default=True)
    if len(call.args) > 14 or drops or query.dim() != 3:
        return None
    rest = [*call.args[3:], *[value for key, value in call.kwargs.items() if key != "attn_mask"]]
    weights = sum(tensor.numel() for tensor in tensor_list(rest) if tensor is not mask)
    attended = call.kwargs.get("attn_mask")
    if weights > WHOLE or (attended is not None and attended.dim() != 2):
        return None
    sequence = choose.indices(query.shape[1], 1, 1)
    part = partial(take, picks=(None, sequence, None))

    def result(values: Any) -> Any:
        if isinstance(values, Tensor):  # a gradient
            is_part = values.shape == query.shape
            return take(values, (None, sequence, None) if is_part else (sequence, None, None))
        averaged = call.kwargs.get("average_attn_weights", True)
        picks = (sequence, *[None] * (2 if averaged else 3))
        return part(values[0]), None if values[1] is None else take(values[1], picks)

    kwargs = {word: _mapped(value, _copied) for word, value in call.kwargs.items()}
    if mask is not None:
        kwargs["key_padding_mask"] = take(mask, (sequence, None))
    args = [*map(part, call.args[:3]), *_mapped(call.args[3:], _copied)]
    others = [None] * (len(call.inputs) - 3)
    return Slice(tuple(args), kwargs, result, None, [part, part, part, *others])


# Indices: of some elements of the result, with what they name.


def _embedding(call: Call, choose: Chooser) -> Slice | None:
    """Some of the words, with the rows of the weights that they name."""
    weight_first = _is_kernel(call)
    indices, weight = (call.args[1], call.args[0]) if weight_first else call.args[:2]
    if argument(call, 3, "max_norm") is not None and not weight_first:
        return None
    width = weight.shape[1]
    picks = choose(indices.shape, range(indices.dim()), max(1, 4 * choose.sample // width))
    words = take(indices, picks)
    rows = weight.detach().index_select(0, words.reshape(-1).to(weight.device))
    numbers = torch.arange(words.numel(), device=words.device).view_as(words)
    args = (rows, numbers) if weight_first else (numbers, rows)
    return Slice(args, {}, partial(take, picks=(*picks, None)))


def _selected(call: Call, choose: Chooser) -> Slice | None:
    """What an index along one dimension names; the other dimensions are independent."""
    first, dim, index = call.args[:3]
    return _indexed(call, choose, dim % first.dim(), index, lambda part, at: (part, dim, at))


def _subscripted(call: Call, choose: Chooser) -> Slice | None:
    """A subscript with one tensor of numbers, before or behind whole dimensions."""
    subscript = call.args[1]
    parts = [subscript] if isinstance(subscript, Tensor) else list(subscript)
    [dim] = [at for at, part in enumerate(parts) if isinstance(part, Tensor)]
    whole = all(at == dim or part in (None, slice(None)) for at, part in enumerate(parts))
    if not whole or (None in parts and not _is_kernel(call)):
        return None
    if parts[dim].dtype not in (torch.int64, torch.int32):
        return None

    def args(part: Tensor, at: Tensor) -> tuple[Any, ...]:
        if isinstance(subscript, Tensor):
            return part, at
        return part, type(subscript)([*parts[:dim], at, *parts[dim + 1 :]])

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
    end = dim + index.dim()
    numbers = take(index, picks[dim:end])
    # the elements by their place: the operator that copies rows may be the one that is judged
    places = numbers.reshape(-1).to(first.device)
    rows = first.detach()[(*[slice(None)] * dim, places)]
    part = take(rows, (*picks[:dim], None, *picks[end:]))
    at = torch.arange(numbers.numel(), device=numbers.device).view_as(numbers)
    return Slice(arguments(part, at), call.kwargs, partial(take, picks=picks))


def _put(call: Call, choose: Chooser) -> Slice | None:
    """Rows written at the places of one index along the first dimension."""
    first: Tensor = call.args[0]
    indices, values = call.args[1:3]
    index, *others = indices
    if any(other is not None for other in others) or index.dtype == torch.bool:
        return None
    picks = choose.cut(first.shape, range(1, first.dim()), choose.sample)
    part = partial(take, picks=picks)
    args = part(first), [_copied(index), *others], take(values, picks[1:]), *call.args[3:]
    return Slice(args, call.kwargs, part, _written(call, part))


def _norms(call: Call, choose: Chooser) -> Slice | None:
    """The norms of two tensors of a list."""
    lists = call.args[0]
    fit = [at for at, tensor in enumerate(lists) if tensor.numel() <= WHOLE]
    if not fit:
        return None
    chosen = [fit[at] for at in choose.indices(len(fit), min(2, len(fit))).tolist()]
    args = [_copied(lists[at]) for at in chosen], *call.args[1:]
    return Slice(args, call.kwargs, lambda result: [_copied(result[at]) for at in chosen])


# Losses.


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
    args = part, zeros, None, reduction, -100
    return Slice(args, call.kwargs, lambda result: _mapped(result, _copied))


def _sum_of_losses(
    loss: Callable[..., Tensor], values: Tensor, targets: Tensor, used: Tensor, **kwargs: Any
) -> Tensor:
    return loss(values, targets, **kwargs, reduction="sum") / used


@dataclass(frozen=True)
class _Losses:
    """The gradients of some rows of a loss of classes; the loss itself needs all rows."""

    loss: Callable[..., Tensor]

    def __call__(self, call: Call, choose: Chooser) -> Slice | None:
        values, targets = call.args[:2]
        names = enumerate(("weight", "size_average", "ignore_index", "reduce", "reduction"), 2)
        weight, size_average, ignored, reduce, reduction = (argument(call, *one) for one in names)
        if values.dim() < 2 or size_average is not None or reduce is not None:
            return None
        ignored = -100 if ignored is None else ignored
        picks = choose.cut(values.shape, _free(values.shape, (1,)), 4 * choose.sample)
        rows = (picks[0], *picks[2:])
        has_shares = targets.is_floating_point()  # of each class
        args: tuple[Tensor, ...] = take(values, picks), take(targets, picks if has_shares else rows)
        kwargs: dict[str, Any] = {"ignore_index": ignored}
        if self.loss is F.cross_entropy:
            kwargs["label_smoothing"] = argument(call, 7, "label_smoothing", default=0.0)
        if weight is not None:
            kwargs["weight"] = _copied(weight)
        gradients: list[Taker | None] = [partial(take, picks=picks)]
        gradients += [None] * (len(call.inputs) - 1)
        if reduction == "none":
            kwargs["reduction"] = "none"
            return Slice(args, kwargs, partial(take, picks=rows), None, gradients)
        if reduction == "sum":
            used = values.new_ones(())
        elif has_shares:
            used = values.new_full((), values.numel() // values.shape[1], dtype=torch.float32)
        else:
            used = _used(targets, ignored, weight)
        func = partial(_sum_of_losses, self.loss)
        return Slice((*args, used), kwargs, _copied, None, gradients, func, is_result_judged=False)


def _used(targets: Tensor, ignored: int, weight: Tensor | None) -> Tensor:
    """What a mean of losses is divided by: the number of targets, or the sum of their weights."""
    is_used = targets != ignored
    if weight is None:
        return is_used.sum().clamp_min(1)
    return torch.where(is_used, weight.detach()[torch.where(is_used, targets, 0)], 0).sum()


# The table.

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
    add_ mul_ div_ sub_ clamp_ relu_ neg_ exp_ sqrt_ sigmoid_ tanh_ masked_fill_ lerp_ addcmul_
    addcdiv_ silu_ rsqrt_ reciprocal_ pow_ clamp_min_ clamp_max_ leaky_relu_ hardtanh_ elu_
"""
_FUSED = "flash_attention_for_cpu flash_attention efficient_attention cudnn_attention".split()
_FUSED += ["fused_attention_overrideable"]
_SHRINKING = "max_pool avg_pool adaptive_avg_pool _adaptive_avg_pool lp_pool".split()

# A family, and the operators in it by the last parts of their names.
_FAMILIES: list[tuple[Rule, str]] = [
    (_pointwise, _POINTWISE),
    (_Product(("*k", "nk", "n"), "*n", "bias"), "linear"),
    (_Product(("*mk", "*kn"), "*mn"), "mm bmm matmul __matmul__"),
    (_Product(("*mn", "*mk", "*kn"), "*mn"), "addmm baddbmm"),
    (_Product(("m", "n"), "mn"), "outer ger"),
    (_einsum, "einsum"),
    (_Rows(_dim(1)), "softmax log_softmax _softmax _log_softmax _safe_softmax cumsum"),
    (_Rows(_dim(1)), "gather scatter_add scatter_add_ index_add index_add_"),
    (_Rows(_dim(2)), "_softmax_backward_data _log_softmax_backward_data glu_backward"),
    (_Rows(_dim(2)), "repeat_interleave"),
    (_Rows(_dim(1, -1)), "glu sort argsort"),
    (_Rows(_dim(2, -1)), "topk"),
    (_Rows(_dim(1, name="dims")), "flip"),
    (_Rows(_dim(2, name="dims")), "roll"),
    (_Rows(_dim(2, 0)), "split_with_sizes_copy"),
    (_Rows(lambda call: range(-(len(argument(call, 1, "pad")) // 2), 0)), "pad constant_pad_nd"),
    (_Rows(_repeats), "repeat"),
    (_Rows(_dim(1, 0)), "cat"),
    (_Rows(lambda call: (), _with_new), "stack"),
    (_Rows(lambda call: (), lambda call, picks: (*picks, None)), "one_hot"),
    (_Rows(_normalized(1)), "layer_norm rms_norm native_layer_norm _fused_rms_norm"),
    (_Rows(_normalized(2), mask=7), "native_layer_norm_backward"),
    (_Rows(_normalized(2), mask=5), "_fused_rms_norm_backward"),
    (_put, "index_put index_put_"),
    (_Rows(lambda call: range(call.inputs[0].dim() - 1)), "embedding_dense_backward"),
    (_reduced, "sum mean amax amin max min prod argmax argmin any all std var logsumexp"),
    (_triangle, "tril triu tril_ triu_"),
    (_whole, "mse_loss"),
    (_spatial(), "interpolate"),
    *[(_spatial(at), " ".join(f"{word}{at}d" for word in _SHRINKING)) for at in (1, 2, 3)],
    *[
        (
            _spatial(at),
            f"max_pool{at}d_with_indices max_pool{at}d_with_indices_backward avg_pool{at}d_backward"
            f" _adaptive_avg_pool{at}d_backward",
        )
        for at in (2, 3)
    ],
    (_spatial(2), "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d"),
    (
        _sized(2, lambda call: range(2, len(call.args[2]))),
        "upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward",
    ),
    (_sized(1, lambda call: (call.args[2],)), "select_backward slice_backward"),
    (_filled, "new_zeros new_ones new_full"),
    (_reshaped((-1,)), "reshape _unsafe_view"),
    (_reshaped(), "flatten"),
    (_embedding, "embedding"),
    (_selected, "index_select"),
    (_subscripted, "index __getitem__"),
    (_norms, "_foreach_norm"),
    (_convolution, "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    (_convolution, "convolution"),
    (_convolution_backward, "convolution_backward"),
    (_channels, "batch_norm instance_norm native_batch_norm native_batch_norm_backward"),
    (_channels, "_native_batch_norm_legit _native_batch_norm_legit_no_training"),
    (_without(0, torch.ops.aten.native_batch_norm.default), "cudnn_batch_norm miopen_batch_norm"),
    (_without(1, _cudnn_batch_norm_backward), "cudnn_batch_norm_backward"),
    (_without(1, torch.ops.aten.native_batch_norm_backward.default), "batch_norm_backward"),
    (_group_norm, "group_norm native_group_norm native_group_norm_backward"),
    (_attention, "scaled_dot_product_attention"),
    (_attention, " ".join(f"_scaled_dot_product_{word}" for word in _FUSED)),
    (_attention_backward, " ".join(f"_scaled_dot_product_{word}_backward" for word in _FUSED)),
    (_multi_head, "multi_head_attention_forward"),
    (_likelihood, "nll_loss_forward nll_loss2d_forward"),
    (
        _Rows(lambda call: (1,), others=_without_class, first=1, scale=4),
        "nll_loss_backward nll_loss2d_backward",
    ),
    (_Losses(F.cross_entropy), "cross_entropy"),
    (_Losses(F.nll_loss), "nll_loss"),
]
RULES: dict[str, Rule] = {word: rule for rule, words in _FAMILIES for word in words.split()}
_EXPENSIVE = (_convolution, _convolution_backward, _attention, _attention_backward, _einsum)


def rule_for(word: str) -> Rule | None:
    """The rule for an operator by the last part of its name."""
    if word.startswith(("_foreach_", "_fused_")) and "norm" not in word:
        return _lists
    return RULES.get(word)
