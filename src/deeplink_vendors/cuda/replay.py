# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs with persistent results: a recording runs again only when its results are released.

Results are in a recording's own memory, and its next run overwrites them. So there may be several
recordings of one graph: a call uses one whose results are all released, and creates another while
there are few; the last one returns copies, and is always free.

In training, the tensors that backward needs are results as well, released after it; the recording
of backward reads them at their addresses. A result that outlives them (a loss) is returned as a
copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

import torch
from torch import Tensor

from dicp import torch_internals

MOST = 3  # recordings for one set of sizes
MOST_TRAINED = 2  # as many steps as run at once; each has all that backward needs
# of the bytes of all results: longer-lived results are copied if they are at most this share
SHARE = 0.5
SIZES = 8  # sets of sizes that are recorded
MOVES = 8  # changes of the weights' addresses after which nothing is recorded
PLACES = 3  # sets of addresses that recordings of backward read from, one for each of forward
ALIGNED = 16  # bytes; compiled kernels rely on it

Boxed = Callable[[list[Any]], Sequence[Any]]  # empties its list of arguments
Replay = Callable[[list[Any]], None]


class Recorder(Protocol):
    """The interface of a ring to a device."""

    def lie(self, inputs: list[Any], places: list[int | None], numbers: list[int]) -> bool:
        """Whether the inputs of these numbers have the given addresses."""

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        """Run without a recording; the results have memory of their own."""

    def record(self, inputs: list[Any]) -> tuple[Replay, Sequence[Any]]:
        """Create a recording; return the function that runs it with inputs, and its results."""


class Recording:
    """One recording, and the holders of its results;
    some results are returned as copies, by number.
    """

    def __init__(
        self, run: Replay, results: Sequence[Any], copied: Set[int], weights: frozenset[int]
    ) -> None:
        self._run, self._results = run, results
        self._storages = [_storage(x) for x in results]
        self._copied = {self._storages[number] for number in copied}
        mine = set(self._storages) - weights - self._copied - {None}
        self._held = [(s, torch_internals.holders(s)) for s in mine if s is not None]
        self._bytes = {_storage(x): x.untyped_storage().nbytes() for x in _tensors(results)}

    def free(self) -> bool:
        """Whether its next run changes nothing that the program can read."""
        return all(torch_internals.holders(s) <= n for s, n in self._held)

    def outliving(self) -> set[int]:
        """Return the numbers of the results that are held;
        none where they are most of its bytes.
        """
        still = {s for s, n in self._held if torch_internals.holders(s) > n}
        room = SHARE * sum(self._bytes[s] for s, _ in self._held)
        if sum(self._bytes[s] for s in still) > room:
            return set()
        return {number for number, s in enumerate(self._storages) if s in still}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        # hot path
        self._run(inputs)
        copied = self._copied
        return [
            x if s is None else x.clone() if s in copied else x.detach()
            for x, s in zip(self._results, self._storages, strict=True)
        ]


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [x for x in values if isinstance(x, Tensor)]


def _storage(value: Any) -> int | None:
    """Return the address of a tensor's storage, which views share."""
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


Places = list[int | None]  # of all inputs that are weights
Rings = dict[tuple[int, ...], list[Recording]]  # by the numbers among the inputs


class Ring(threading.local):
    """The recordings of one graph, separate in each thread; called like the graph, with a list."""

    def __init__(
        self, recorder: Callable[[], Recorder], static: Sequence[int], kind: str = "inference"
    ) -> None:
        self._recorder, self._static, self._kind = recorder(), list(static), kind
        self._lie = self._recorder.lie
        self._known: list[tuple[Places, Rings]] = []
        self._copied: set[int] = set()  # results that outlived the others, by their number
        self._moves = 0

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        # hot path
        for places, rings in self._known:
            if self._lie(inputs, places, self._static):
                key = tuple([x for x in inputs if not isinstance(x, Tensor)])
                for recording in rings.get(key, ()):
                    if recording.free():
                        return recording(inputs)
                return self._more(rings, key, inputs)
        return self._begin(inputs)

    def _begin(self, inputs: list[Any]) -> Sequence[Any]:
        """Run a call before any recording with these weights, which compiles the kernels."""
        self._moves += 1
        if self._moves <= MOVES or self._kind != "backward":
            weights = {i: inputs[i].data_ptr() for i in self._static}
            places = [weights.get(i) for i in range(len(inputs))]
            recorded = [one for one in self._known if one[1] and self._kind == "backward"]
            self._known = [(places, {}), *recorded[: PLACES - 1]]
            if any(place % ALIGNED for place in weights.values()):
                self._moves = MOVES + 1
        return self._recorder.run(inputs)

    def _more(self, rings: Rings, key: tuple[int, ...], inputs: list[Any]) -> Sequence[Any]:
        new = key not in rings
        if self._moves > MOVES or (new and len(rings) == SIZES):
            return self._recorder.run(inputs)
        ring = rings.setdefault(key, [])
        if new and key:  # other sizes have other kernels
            return self._recorder.run(inputs)
        if self._kind == "inference":
            return self._record(ring, inputs, len(ring) == MOST - 1)
        before, kept = list(ring), [r for r in ring if not self._outlived(r)]
        if len(kept) == MOST_TRAINED:
            return self._recorder.run(inputs)
        ring[:] = kept
        made = self._record(ring, inputs, False)
        del before  # until here: the new recording may use the memory of a deleted one
        return made

    def _outlived(self, recording: Recording) -> bool:
        """Whether to recreate the recording, with copies of the held results,
        which the program owns.
        """
        found = recording.outliving()
        self._copied |= found
        return bool(found)

    def _record(self, ring: list[Recording], inputs: list[Any], copies: bool) -> Sequence[Any]:
        weights = frozenset(inputs[i].untyped_storage()._cdata for i in self._static)
        try:
            run, results = self._recorder.record(inputs)
        except torch.OutOfMemoryError:  # a recording has separate memory; a plain run may still fit
            self._moves = MOVES + 1
            self._known.clear()
            return self._recorder.run(inputs)
        copied = set(range(len(results))) if copies else self._copied
        ring.append(Recording(run, results, copied, weights))
        return ring[-1](inputs)


class CudaRecorder:
    """Recordings of a graph that inductor compiled."""

    lie = staticmethod(torch_internals.same_places)

    def __init__(
        self, model: Boxed, static: Sequence[int], mutated: Sequence[int], device: int
    ) -> None:
        self._model, self._static, self._mutated = model, frozenset(static), mutated
        self._device = device
        self._plain: Boxed | None = None
        self._pool: Any = None
        self._last = torch.cuda.current_stream(device)

    def run(self, inputs: list[Any]) -> Sequence[Any]:
        if self._plain is None:
            self._plain = torch_internals.aligning(self._model, inputs, self._static, self._mutated)
        return self._plain(inputs)

    def record(self, inputs: list[Any]) -> tuple[Replay, Sequence[Any]]:
        with torch.cuda.device(self._device), torch_internals.preserve_rng_state():
            places = [self._place(i, x) for i, x in enumerate(inputs)]
            graph = torch.cuda.CUDAGraph()
            # sequential, never concurrent: they may share temporary memory
            with torch_internals.recording(graph, self._pool):
                results = list(self._model(list(places)))
            self._pool = graph.pool()
        own = {i: x for i, x in enumerate(places) if x is not inputs[i]}
        copies = torch_internals.copies_into(list(own.values()))
        numbers = list(own)

        def replay(inputs: list[Any]) -> None:
            # hot path
            self._wait()
            copies([inputs[i] for i in numbers])
            inputs.clear()
            graph.replay()

        return replay, results

    def _place(self, number: int, value: Any) -> Any:
        """Return the address where a recording reads an input: a buffer,
        or a weight's own memory.
        """
        if not isinstance(value, Tensor) or number in self._static:
            return value
        return torch_internals.static_input(value)

    def _wait(self) -> None:
        """Let runs in another stream follow those in the last one, because they share memory."""
        if torch_internals.raw_stream(self._device) != self._last.cuda_stream:
            now = torch.cuda.current_stream(self._device)
            now.wait_stream(self._last)
            self._last = now


def ring(
    model: Boxed, static: Sequence[int], mutated: Sequence[int], device: int, kind: str
) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a compiled graph as recordings; unchanged if it writes an input that is no weight.

    `kind`: inference, forward or backward.
    """

    def recorder() -> CudaRecorder:
        return CudaRecorder(model, static, mutated, device)

    if set(mutated) - set(static):
        return recorder().run
    return Ring(recorder, static, kind)
