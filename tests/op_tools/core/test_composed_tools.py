"""Tools composed at random around random trainings.

Observers leave every bit of the program unchanged, in any combination. OpFallback and OpDtypeCast
give what the same work done by hand gives: on copies of the arguments, with writes copied back.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import op_tools
from op_tools.core import op_names, tool_errors
from tests.op_tools import small
from tests.op_tools.training_programs import Program, differences

QUICK, SLOW = 30, 501

Tool = Callable[[], AbstractContextManager[Any]]

LEVELS = ("api", "aten", "module")
OBSERVERS: list[tuple[str, Callable[[random.Random], Tool]]] = [
    ("capture", lambda c: _made(op_tools.OpCapture, level=c.choice(LEVELS[:2]))),
    (
        "statistics",
        lambda c: _made(op_tools.OpCapture, mode="statistics", level=c.choice(LEVELS[:2])),
    ),
    ("hashes", lambda c: _made(op_tools.OpCapture, mode="hash", level=c.choice(LEVELS[:2]))),
    ("compare", lambda c: _made(op_tools.OpAutoCompare, level=c.choice(LEVELS[:2]))),
    ("time", lambda c: _made(op_tools.OpTimeMeasure, level=c.choice(LEVELS))),
    ("observe", lambda c: _made(op_tools.OpObserve, level=c.choice(LEVELS))),
    ("overflow", lambda c: _made(op_tools.OpOverflowCheck, level=c.choice(LEVELS[:2]))),
    ("recorder", lambda c: op_tools.FlightRecorder),
]

# Functions that compute, draw no random numbers and return no view: what both sides replace.
FUNCTIONS = """
    torch.nn.functional.linear torch.nn.functional.layer_norm torch.nn.functional.batch_norm
    torch.nn.functional.instance_norm torch.nn.functional.gelu torch.nn.functional.cross_entropy
    torch.nn.functional.scaled_dot_product_attention torch.conv1d torch.softmax torch.sum torch.add
    torch.cat torch.Tensor.mul_ torch.Tensor.clamp_ torch.Tensor.index_add torch.Tensor.cumsum
    torch.Tensor.sigmoid torch.Tensor.tanh torch._fused_sgd_ torch._fused_adam_ torch._fused_adamw_
    torch._foreach_add_ torch._foreach_mul_ torch._foreach_addcdiv_ torch._foreach_addcmul_
    torch._foreach_lerp_ torch._foreach_sqrt
""".split()


def _made(kind: Any, **options: Any) -> Tool:
    return lambda: kind(**options)


class ByHand:
    """Chosen functions on changed copies of their arguments; what a call wrote is copied back.

    The functions are replaced in torch's modules, so recomputation in a backward pass finds them
    too. Writes are found by comparing every copy with its values before the call.
    """

    def __init__(self, functions: list[str], change: Callable[[Tensor], Tensor]) -> None:
        self.functions, self.change = functions, change
        self._patches = pytest.MonkeyPatch()
        self._inside = False

    def __enter__(self) -> None:
        for name in self.functions:
            func = op_names.resolve(name)
            changed = functools.partial(self._call, func)
            for owner in (torch, torch.nn.functional):
                for word in [word for word, value in vars(owner).items() if value is func]:
                    self._patches.setattr(owner, word, changed)
            if name.startswith("torch.Tensor."):
                # a plain function binds as a method
                bound = lambda *args, _f=changed, **kwargs: _f(*args, **kwargs)  # noqa: E731
                self._patches.setattr(Tensor, name.rpartition(".")[2], bound)

    def __exit__(self, *_: object) -> None:
        self._patches.undo()

    def _call(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return func(*args, **kwargs)
        self._inside = True
        try:
            return self._changed(func, args, kwargs)
        finally:
            self._inside = False

    def _changed(self, func: Any, args: Any, kwargs: Any) -> Any:
        pairs: list[tuple[Tensor, Tensor, Tensor]] = []

        def copied(value: Any) -> Any:
            if isinstance(value, Tensor):
                for original, copy, _ in pairs:
                    if original is value:
                        return copy
                copy = self.change(value)
                copy = copy.clone() if copy is value else copy
                pairs.append((value, copy, copy.detach().clone()))
                return copy
            if isinstance(value, (list, tuple)):
                return type(value)(copied(item) for item in value)
            return value

        result = func(*copied(args), **{key: copied(value) for key, value in kwargs.items()})
        for original, copy, before in pairs:
            if copy.shape != before.shape or not torch.equal(copy, before):
                if original.shape != copy.shape:
                    original.resize_(copy.shape)
                original.copy_(copy)
        return self._returned(result, pairs)

    def _returned(self, result: Any, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Any:
        if isinstance(result, (list, tuple)):
            return type(result)(self._returned(item, pairs) for item in result)
        if not isinstance(result, Tensor):
            return result
        for original, copy, _ in pairs:
            if copy is result:
                return original
        first = pairs[0][0]
        dtype = first.dtype if result.is_floating_point() else result.dtype
        return result.to(first.device, dtype)


@contextmanager
def _all(tools: list[Tool]) -> Iterator[list[Any]]:
    with ExitStack() as stack:
        yield [stack.enter_context(tool()) for tool in tools]


def _seeds(count: int, slow: int) -> list[Any]:
    marks = pytest.mark.slow
    return [*range(count), *(pytest.param(seed, marks=marks) for seed in range(count, slow))]


@pytest.mark.parametrize("seed", _seeds(QUICK // 3, SLOW // 3))
def test_observers_leave_every_bit_unchanged(seed: int) -> None:
    choice = random.Random(seed)
    program = Program(seed)
    chosen = [(name, make(choice)) for name, make in choice.sample(OBSERVERS, choice.randint(2, 4))]
    wanted = program.run()
    with _all([tool for _, tool in chosen]):
        mine = program.run()
    context = program.describe(), [name for name, _ in chosen]
    assert differences(mine, wanted) == [], context
    assert tool_errors.problems() == [], context


@pytest.mark.parametrize("seed", _seeds(QUICK // 3, SLOW // 3))
def test_fallback_gives_what_the_cpu_gives(seed: int) -> None:
    """The device is faulty in normalisations, so a call that was not moved would show."""
    choice = random.Random(seed)
    program = Program(seed, dropout=False)
    level, ops = choice.choice([("api", ".*"), ("aten", ".*"), ("api", FUNCTIONS)])
    tools = [_made(op_tools.OpFallback, ops=ops, level=level)]
    tools += [make(choice) for _, make in choice.sample(OBSERVERS, choice.randint(1, 3))]
    choice.shuffle(tools)
    wanted = program.run()
    faulty: Any = torch.get_device_module(small.CARD).quirk("wrong_epsilon")  # in normalisations
    with faulty, _all(tools):
        mine = program.run()
    context = program.describe(), level, ops
    assert differences(mine, wanted) == [], context
    assert tool_errors.problems() == [], context


@pytest.mark.parametrize("seed", _seeds(QUICK // 3, SLOW // 3))
def test_cast_and_fallback_give_what_is_done_by_hand(seed: int) -> None:
    choice = random.Random(seed)
    program = Program(seed, dropout=False)
    program.precision = "float32"
    functions = choice.sample(FUNCTIONS, choice.randint(3, len(FUNCTIONS)))

    def change(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.dtype == torch.float32 else tensor

    with ByHand(functions, change):
        wanted = program.run()
    casts = {"torch.float32": "torch.float64"}
    tools: list[Tool] = [_made(op_tools.OpDtypeCast, ops=functions, casts=casts)]
    if choice.random() < 0.6:
        tools.append(_made(op_tools.OpFallback, ops=choice.sample(functions, 2)))
    tools += [make(choice) for _, make in choice.sample(OBSERVERS, choice.randint(0, 2))]
    choice.shuffle(tools)
    with _all(tools):
        mine = program.run()
    context = program.describe(), functions
    assert differences(mine, wanted) == [], context
    assert tool_errors.problems() == [], context
