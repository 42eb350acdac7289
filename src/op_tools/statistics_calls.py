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
from op_tools.call import call_site, tensor_list
from op_tools.gradients import Arguments, Gradients, Group
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
        self._list = self._writes and plan.name.startswith("torch._foreach_")

    def __call__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if local.busy:
            return func(*args, **kwargs)
        given = tensor_list(args, kwargs)
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
        return head, text, [tensor._version for tensor in given], arguments, sequence

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
        made = tensor_list(result)
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
        now = [tensor._version for tensor in given]
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
        part = gradients.part(sequence, arguments, made)
        if part is None:
            return
        nodes = part.nodes
        if len(nodes) > 1:
            nodes = [node for node in nodes if node in part.outputs or node in part.inputs]
        blank = Gradients([None] * len(made), [None] * arguments.count, True)
        store = self._store

        def done(found: Gradients) -> None:
            store.gradients(head, found.inputs, found.outputs)

        group, name = Group(done, blank, len(nodes)), self._plan.name
        entering = [at for edges in part.inputs.values() for _, at in edges]
        several = frozenset(entering) if len(set(entering)) < len(entering) else _NONE
        for node in nodes:
            out, into = part.outputs.get(node, _NO_EDGES), part.inputs.get(node, _NO_EDGES)
            if out and issubclass(
                type(node), BackwardCFunction
            ):  # the program's: it may write them
                node.register_prehook(_Before(name, store, group, out))
                out = _NO_EDGES
            node.register_hook(_After(name, store, group, out, into, several))


_requires_grad = attrgetter("requires_grad")
_is_true = partial(is_, True)
_State = tuple[str, str, list[int], Arguments | None, int]
_Edges = list[tuple[int, int]]
_NONE: frozenset[int] = frozenset()
_NO_EDGES: _Edges = []


class _After:
    """Hears what flows through a node that a call made. It holds no tensor of the graph."""

    __slots__ = ("_entering", "_group", "_leaving", "_name", "_several", "_store")

    def __init__(
        self,
        name: str,
        store: StatisticsStore,
        group: Group,
        leaving: _Edges,
        entering: _Edges,
        several: frozenset[int] = _NONE,
    ) -> None:
        self._name, self._store, self._group = name, store, group
        self._leaving, self._entering = leaving, entering
        self._several = several  # arguments that are reached in more ways than one, some of them

    def __call__(self, grad_inputs: Any, grad_outputs: Any) -> None:
        if self._group.waiting <= 0:  # it was written down
            return
        previous, local.busy = local.busy, True
        try:
            with DisableTorchFunction():  # the mode that watches calls is on in here
                self._heard(grad_inputs, grad_outputs)
                self._over()
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add("OpCapture", self._name, error)
        finally:
            local.busy = previous

    def _heard(self, grad_inputs: Any, grad_outputs: Any) -> None:
        group = self._group
        tensors, places = [], []
        for place, number in self._leaving:
            gradient = grad_outputs[number]
            if gradient is not None:
                tensors.append(gradient)
                places.append((group.gradients.outputs, place))
        for number, place in self._entering:
            gradient = grad_inputs[number]
            if gradient is not None:
                if place in self._several:
                    before = group.sums.get(place)
                    gradient = gradient.detach() if before is None else before + gradient.detach()
                    group.sums[place] = gradient
                tensors.append(gradient)
                places.append((group.gradients.inputs, place))
        if tensors:
            texts = self._store.texts(tensors)
            for (side, place), text in zip(places, texts, strict=True):
                side[place] = text

    def _over(self) -> None:
        gradients.count_down(self._group)


class _Before(_After):
    """The same, before it runs."""

    __slots__ = ()

    def __init__(self, name: str, store: StatisticsStore, group: Group, leaving: _Edges) -> None:
        super().__init__(name, store, group, leaving, _NO_EDGES)

    def __call__(self, grad_outputs: Any) -> None:  # type: ignore[override]
        super().__call__((), grad_outputs)

    def _over(self) -> None:
        pass
