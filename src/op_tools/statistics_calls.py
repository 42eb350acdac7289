"""Calls of torch's functions written down by Python alone, without a record of each: hot path.

For where the native part is missing. What it writes is what `OpCapture.before` and `after` write,
and what `gradients.watch` hears.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

from torch import Tensor, is_grad_enabled
from torch._C import (
    DisableTorchFunction,
    _autograd,
    _current_autograd_node,
    _current_graph_task_id,
    _functorch,
)
from torch.autograd.function import BackwardCFunction

from op_tools import diagnostics, gradients, interception, modules
from op_tools.call import PLAIN, call_site, given_tensors, tensor_list
from op_tools.gradients import Arguments, Edges, Gradients
from op_tools.interception import Plan, local
from op_tools.statistics_direct import device_of
from op_tools.statistics_store import Heads, StatisticsStore
from op_tools.written import may_write_by_name

if TYPE_CHECKING:
    from op_tools.capture_run import Run


class DirectCalls:
    """Calls of one function."""

    def __init__(self, plan: Plan, run: Run, counted: Callable[[], None]) -> None:
        assert run.statistics is not None  # by the caller
        self._plan, self._run, self._counted = plan, run, counted
        self._store: StatisticsStore = run.statistics
        self._heads = Heads(plan.name)
        self._writes = may_write_by_name(plan.name)
        self._single = True  # it makes one node of the graph, as the last time
        self._list = self._writes and plan.name.startswith("torch._foreach_")

    def __call__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if local.busy:
            return func(*args, **kwargs)
        given = given_tensors(args, kwargs)
        device = device_of(given)
        if device is None or _functorch.peek_interpreter_stack() is not None:
            return interception.run(self._plan, func, args, kwargs)
        if not self._plan.on(device):
            return func(*args, **kwargs)
        state = None
        local.busy = True
        try:
            state = self._before(args, kwargs, given)
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add("OpCapture", self._plan.name, error)
        finally:
            local.busy = False
        result = func(*args, **kwargs)
        if state is not None:
            local.busy = True
            try:
                self._after(state, args, given, result)
            except Exception as error:  # the same
                diagnostics.add("OpCapture", self._plan.name, error)
            finally:
                local.busy = False
        return result

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]) -> _State:
        self._counted()
        sequence = _autograd._get_sequence_nr()
        head = self.head(sequence)
        writes = self._writes or "out" in kwargs
        if not writes:  # `inplace`, by place or by name
            writes = any(map(_is_true, (*args, *kwargs.values())))
        text = self._store.before(given, writes)
        arguments = None
        if is_grad_enabled() and any(map(_requires_grad, given)):
            arguments = gradients.arguments_of(given)
        return head, text, list(map(_version, given)), arguments, sequence

    def head(self, sequence: int = -1) -> str:
        """The start of a line, as `Plan.record` finds it; `sequence`: autograd's count."""
        path, site = modules.path(), call_site()
        backward = _current_graph_task_id() != -1
        if backward:
            known = modules.forward_of(_current_autograd_node())
            path, site = path or known[0], site or known[1]
        else:
            if sequence < 0:
                sequence = _autograd._get_sequence_nr()
            modules.remember(sequence, path, site)
        return self._heads(backward, path, site)

    def _after(
        self, state: _State, args: tuple[Any, ...], given: list[Tensor], result: Any
    ) -> None:
        head, text, versions, arguments, sequence = state
        made = [result] if type(result) in PLAIN else tensor_list(result)
        changed = self._changed(versions, args, given)
        if changed:
            for tensor in changed.values():
                self._store.forget(tensor)
            returned = set(map(id, made))
            changed = {at: one for at, one in changed.items() if id(one) not in returned}
        self._store.call(head, text, made, changed)
        self._run.calls += 1
        self._run.operators.add(self._plan.name)
        if arguments is not None:
            self._watch(head, arguments, made, sequence)

    def _changed(
        self, versions: list[int], args: tuple[Any, ...], given: list[Tensor]
    ) -> dict[int, Tensor]:
        """The arguments that it has written, as `written.written` finds them."""
        now = list(map(_version, given))
        if self._list:  # a device may count none of them
            own = set(map(id, tensor_list(args[:1])))
            return {
                at: tensor
                for at, tensor in enumerate(given)
                if id(tensor) in own or versions[at] != now[at]
            }
        if now == versions:
            return {}
        return {at: tensor for at, tensor in enumerate(given) if versions[at] != now[at]}

    def _watch(self, head: str, arguments: Arguments, made: list[Tensor], sequence: int) -> None:
        counts = len(made), arguments.count
        quick = None
        if self._single and len(made) == 1:
            quick = gradients.single(sequence, arguments, made[0])
            self._single = quick is not None  # else it will make several again
        if quick is not None:
            node, leaving, entering = quick
            if not issubclass(type(node), BackwardCFunction):
                one = _Single(self._store, self._plan.name, head, counts, 1)
                one.leaving, one.entering = _kept(leaving), _kept(entering)
                one.several = len(entering) > 1 and _has_twice(entering)
                node.register_hook(one)
                return
        part = gradients.walked(sequence, arguments, made)
        if part is None:
            return
        nodes = part.nodes
        self._single = len(nodes) == 1
        if len(nodes) > 1:
            nodes = [node for node in nodes if node in part.outputs or node in part.inputs]
        heard = _Heard(self._store, self._plan.name, head, counts, len(nodes))
        several = _has_twice([edge for edges in part.inputs.values() for edge in edges])
        for node in nodes:
            out = _kept(part.outputs.get(node, _NO_EDGES))
            into = _kept(part.inputs.get(node, _NO_EDGES))
            if out and issubclass(
                type(node), BackwardCFunction
            ):  # the program's: it may write them
                node.register_prehook(_Before(heard, out))
                out = ()
            node.register_hook(_After(heard, out, into, several))


_requires_grad, _version = attrgetter("requires_grad"), attrgetter("_version")
_is_true = partial(is_, True)
_State = tuple[str, str, list[int], Arguments | None, int]
_NO_EDGES: Edges = []
_NOTHING: list[str | None] = []  # until the first gradient comes
EDGES = 10_000  # kinds that are kept at most
_NO_SUMS: dict[int, Tensor] = {}  # stays empty
_Kept = tuple[tuple[int, int], ...]
_edges: dict[_Kept, _Kept] = {}


def _kept(edges: Edges) -> _Kept:
    """One object for all that are the same: they stay until the backward pass, and are many."""
    if not edges:
        return ()
    found = tuple(edges)
    kept = _edges.get(found)
    if kept is None:
        if len(_edges) > EDGES:
            _edges.clear()
        kept = _edges[found] = found
    return kept


def _has_twice(entering: Edges) -> bool:
    """Whether an argument is reached in more ways than one: of such a call, all are summed."""
    return len({at for _, at in entering}) < len(entering)


class _Heard:
    """The gradients of one call while they come in, as `gradients.Group`. Neither it nor what hears
    them holds a tensor of the graph; and few objects: Python's collector runs by their number.
    """

    __slots__ = ("_counts", "_head", "_name", "_store", "inputs", "outputs", "sums", "waiting")

    def __init__(
        self, store: StatisticsStore, name: str, head: str, counts: tuple[int, int], nodes: int
    ) -> None:
        self._store, self._name, self._head, self._counts = store, name, head, counts
        self.outputs: list[str | None] = _NOTHING
        self.inputs = _NOTHING
        self.sums = _NO_SUMS
        self.waiting = nodes

    @property
    def gradients(self) -> _Heard:
        return self

    def done(self, found: Gradients) -> None:
        self._store.gradients(self._head, found.inputs, found.outputs)

    def hear(
        self,
        leaving: _Kept,
        entering: _Kept,
        several: bool,
        grad_inputs: Any,
        grad_outputs: Any,
        last: bool = True,
    ) -> None:
        """What flows through a node; `last`: the node is through."""
        if self.waiting <= 0:  # it was written down
            return
        previous, local.busy = local.busy, True
        try:
            with DisableTorchFunction():  # the mode that watches calls is on in here
                self._take(leaving, entering, several, grad_inputs, grad_outputs)
                if last:
                    gradients.count_down(self)  # type: ignore[arg-type]
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add("OpCapture", self._name, error)
        finally:
            local.busy = previous

    def _take(
        self, leaving: _Kept, entering: _Kept, several: bool, grad_inputs: Any, grad_outputs: Any
    ) -> None:
        if self.outputs is _NOTHING:
            made, given = self._counts
            self.inputs, self.outputs = [None] * given, [None] * made
        tensors, places = [], []
        for place, number in leaving:
            gradient = grad_outputs[number]
            if gradient is not None:
                tensors.append(gradient)
                places.append(place)
        first = len(tensors)
        for number, place in entering:
            gradient = grad_inputs[number]
            if gradient is not None:
                tensors.append(self._sum(place, gradient) if several else gradient)
                places.append(place)
        if tensors:
            texts = self._store.texts(tensors)
            for at, place in enumerate(places):
                (self.outputs if at < first else self.inputs)[place] = texts[at]

    def _sum(self, place: int, gradient: Tensor) -> Tensor:
        if self.sums is _NO_SUMS:
            self.sums = {}
        before = self.sums.get(place)
        found = gradient.detach() if before is None else before + gradient.detach()
        self.sums[place] = found
        return found


class _Single(_Heard):
    """Those of a call that has made one node, whose hook it is."""

    __slots__ = ("entering", "leaving", "several")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.leaving: _Kept = ()
        self.entering: _Kept = ()
        self.several = False

    def __call__(self, grad_inputs: Any, grad_outputs: Any) -> None:
        self.hear(self.leaving, self.entering, self.several, grad_inputs, grad_outputs)


class _After:
    """A hook of one of several nodes."""

    __slots__ = ("_entering", "_heard", "_leaving", "_several")

    def __init__(self, heard: _Heard, leaving: _Kept, entering: _Kept, several: bool) -> None:
        self._heard, self._leaving, self._entering = heard, leaving, entering
        self._several = several

    def __call__(self, grad_inputs: Any, grad_outputs: Any) -> None:
        self._heard.hear(self._leaving, self._entering, self._several, grad_inputs, grad_outputs)


class _Before:
    """The same, before it runs."""

    __slots__ = ("_heard", "_leaving")

    def __init__(self, heard: _Heard, leaving: _Kept) -> None:
        self._heard, self._leaving = heard, leaving

    def __call__(self, grad_outputs: Any) -> None:
        self._heard.hear(self._leaving, (), False, (), grad_outputs, last=False)
