# SPDX-License-Identifier: Apache-2.0
"""Write decompositions.csv, in about two minutes:

    python -m diopi.decomposition_trace tests.diopi.op_samples:all_samples

Every op's meaning runs on samples, each overload that it calls is decomposed, and each step is
recorded. Samples come from torch's op database and from the named function (the arguments of one
call by op); an op without samples gets arguments invented by their types.
"""

from __future__ import annotations

import csv
import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice, product
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from diopi.decomposition import FILE, is_free, step
from diopi.op import Op, all_ops
from diopi.schema import Argument

Steps = dict[str, set[str]]
Sample = tuple[tuple[Any, ...], dict[str, Any]]

SHAPES = ((2, 3), (2, 4, 4), (2, 4, 8, 8), (2, 2, 4, 4, 4), (6,), (4, 4))
LISTS = ([2], [2, 2], [1, 1, 1, 1], [2, 2, 2], [1, 1], [0, 1], [1] * 6, [8, 8], [0])
LOOPS = "sample:loops"  # the overloads whose decomposition calls themselves
POSITIONS = ("index", "indices", "target", "tgt", "labels", "offsets", "perm")  # of integers


class _Recorder(TorchDispatchMode):
    """Records for each overload the calls of its decomposition."""

    def __init__(self, found: Steps, root: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found
        self._found.setdefault(LOOPS, set())
        self._callers = [root]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        if is_free(func):
            return func(*args, **kwargs)
        self._found.setdefault(self._callers[-1], set()).add(name)
        decompose = step(func)
        if decompose is None:
            return func(*args, **kwargs)
        if name in self._callers:  # a recursion is no decomposition
            self._found[LOOPS].add(name)
            return func(*args, **kwargs)
        self._callers.append(name)
        self._found.setdefault(name, set())
        try:
            with self:
                result = decompose(*args, **kwargs)
        finally:
            self._callers.pop()
        return func(*args, **kwargs) if result is NotImplemented else result


def trace(most: int = 5, more: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> Steps:
    """Return the steps of all ops, of at most `most` samples each; `more` are arguments by op."""
    found: Steps = {}
    entries = _op_db()
    for op in all_ops().values():
        for name in op.opinfo:
            for entry in entries.get(name, ()):
                _gradients(entry, most, found)
        tried = [_run(op, sample, found) for sample in islice(_recorded(op, entries), most)]
        if op.name in more:
            tried.append(_run(op, _ordered(op, more[op.name]), found))
        if not any(tried):
            hits = 0
            for sample in islice(_invented(op), 200):
                hits += _run(op, sample, found)
                if hits == most:
                    break
    return {
        name: calls
        for name, calls in found.items()
        if not name.startswith("sample:") and name not in found[LOOPS]
    }


def _op_db() -> dict[str, list[Any]]:
    from torch.testing._internal.common_methods_invocations import op_db

    entries: dict[str, list[Any]] = {}
    for entry in op_db:
        if torch.float32 in entry.supported_dtypes("cpu"):
            entries.setdefault(entry.name, []).append(entry)
    return entries


def _run(op: Op, sample: Sample, found: Steps) -> bool:
    """Run the meaning on a sample; record the steps only if it accepts the sample."""
    fresh: Steps = {f"op:{op.name}": set()}
    args, kwargs = sample
    filled = {a.name: a.default for a in op.arguments[len(args) :] if not a.required} | kwargs
    try:
        op.meaning(*args, **filled)  # alone first, to check that it is a call of this op
        with torch.no_grad(), _Recorder(fresh, f"op:{op.name}"):
            op.meaning(*args, **filled)
    except Exception:  # invented arguments are invalid more often than not
        return False
    for name, calls in fresh.items():
        found.setdefault(name, set()).update(calls)
    return True


def _ordered(op: Op, given: dict[str, Any]) -> Sample:
    """Return the arguments, positional up to the first missing one."""
    named, args = dict(given), []
    for argument in op.arguments:
        if argument.kwarg_only or argument.name not in named:
            break
        args.append(named.pop(argument.name))
    return tuple(args), named


def _recorded(op: Op, entries: dict[str, list[Any]]) -> Iterator[Sample]:
    for name in op.opinfo:
        for entry in entries.get(name, ()):
            for sample in islice(entry.sample_inputs("cpu", torch.float32), 8):
                yield (sample.input, *sample.args), sample.kwargs


def _gradients(entry: Any, most: int, found: Steps) -> None:
    """Record the steps of an entry's gradients, which contain the backward ops."""
    if not entry.supports_autograd:
        return
    for sample in islice(entry.sample_inputs("cpu", torch.float32, requires_grad=True), most):
        fresh: Steps = {}
        try:
            with _Recorder(fresh, f"sample:{entry.name}"):
                result = entry.op(sample.input, *sample.args, **sample.kwargs)
                outs = [t for t in _tensors(result) if t.requires_grad]
                leaves = [t for t in _tensors((sample.input, sample.args)) if t.requires_grad]
                grads = [torch.ones_like(t) for t in outs]
                torch.autograd.grad(outs, leaves, grads, allow_unused=True)
        except Exception:  # a decomposition that fails leaves no step, and so supports nothing
            continue
        for name, calls in fresh.items():
            found.setdefault(name, set()).update(calls)


def _invented(op: Op) -> Iterator[Sample]:
    """Invent arguments by their types: one shape for all tensors, one list for all lists."""
    for shape, numbers, whole in product(SHAPES, LISTS, (False, True)):
        given = [a for a in op.arguments if a.required or (a.optional and a.type == "Tensor")]
        yield (), {a.name: _value(a, shape, numbers, whole) for a in given}


def _value(argument: Argument, shape: tuple[int, ...], numbers: list[int], whole: bool) -> Any:
    if argument.type.startswith("Tensor"):
        integral = argument.name in POSITIONS or (whole and not argument.name.startswith("grad"))
        made = torch.zeros(shape, dtype=torch.int64) if integral else torch.rand(shape) + 0.5
        return [made, made.clone()] if argument.type.endswith("[]") else made
    plain = {"int": 1, "float": 0.5, "bool": True, "Scalar": 1, "str": "mean"}
    if argument.type.endswith("[]"):
        return list(numbers)
    return {"dtype": torch.float32}.get(argument.type, plain.get(argument.type))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def main() -> None:
    """Write the file, sorted: a change of torch's decompositions gives a small difference."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    more = {}
    if len(sys.argv) > 1:
        module, _, function = sys.argv[1].partition(":")
        more = getattr(importlib.import_module(module), function)()
    rows = trace(more=more)
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["overload", "calls"])
        writer.writerows([name, " ".join(sorted(rows[name]))] for name in sorted(rows))


if __name__ == "__main__":
    main()
