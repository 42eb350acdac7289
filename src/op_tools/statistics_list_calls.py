"""Calls whose tensors come in lists, as an optimizer makes them, written down by Python alone.

What it writes is what `DirectCalls` and `Direct` write, who have the calls that are not like that.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import TYPE_CHECKING, Any

from torch import Tensor, is_grad_enabled
from torch._C import _functorch

from op_tools import diagnostics
from op_tools.call import PLAIN
from op_tools.interception import Plan, local
from op_tools.statistics_lists import Known
from op_tools.statistics_store import StatisticsStore
from op_tools.written import is_in_place

if TYPE_CHECKING:
    from op_tools.capture_run import Run
    from op_tools.statistics_calls import DirectCalls
    from op_tools.statistics_direct import Direct

_NUMBERS = frozenset({int, float, bool, complex, type(None)})
_Given = list[tuple[Known, list[Tensor]]]


class DirectLists:
    """Calls of one function or kernel of lists; it writes the first, or none."""

    def __init__(
        self, plan: Plan, run: Run, counted: Callable[[], None], otherwise: DirectCalls | Direct
    ) -> None:
        assert run.statistics is not None  # by the caller
        self._plan, self._run, self._counted = plan, run, counted
        self._store: StatisticsStore = run.statistics
        self._otherwise = otherwise
        self._writes = is_in_place(plan.name.split(".")[1])

    def __call__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if local.busy:
            return func(*args, **kwargs)
        given, line = None, None
        local.busy = True
        try:
            given = self._given(args, kwargs)
            if given is not None and self._plan.on(given[0][0].device):
                line = self._before(given)
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add("OpCapture", self._plan.name, error)
            given = None
        finally:
            local.busy = False
        if given is None or line is None:
            return self._otherwise(func, args, kwargs)
        result = func(*args, **kwargs)
        local.busy = True
        try:
            self._after(line, given, result)
        except Exception as error:  # the same
            diagnostics.add("OpCapture", self._plan.name, error)
        finally:
            local.busy = False
        return result

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Given | None:
        """The lists, and what is known of them; None: it is another kind of call."""
        if is_grad_enabled() or _functorch.peek_interpreter_stack() is not None:
            return None
        found: _Given = []
        find = self._store.lists.find
        for value in (*args, *kwargs.values()):
            kind = type(value)
            if kind in _NUMBERS:
                continue
            if (kind is not list and kind is not tuple) or not value:
                return None
            if type(value[0]) in PLAIN:
                known = find(value)
                if known is None:
                    return None
                found.append((known, value))
            elif type(value[0]) not in _NUMBERS:
                return None
        if self._writes and any(not found[0][0].ids.isdisjoint(one.ids) for one, _ in found[1:]):
            return None
        return found or None

    def _before(self, given: _Given) -> str:
        self._counted()
        text = self._store.lists.text
        inputs = ",".join([text(known, tensors).inside.text for known, tensors in given])
        if self._writes:
            self._store.before_list(given[0][0])
        return f'{self._otherwise.head()},"inputs":[{inputs}]'

    def _after(self, line: str, given: _Given, result: Any) -> None:
        store, (known, tensors) = self._store, given[0]
        outputs, mutated = "", ""
        if self._writes:
            store.list_written(known)
            after = store.lists.text(known, tensors, True)
            if result and all(map(is_, result, tensors)):
                outputs = after.inside.text
            else:
                mutated = f',"mutated":{{{after.after.text}}}'
        elif result:
            made = list(result)
            new = store.lists.find(made) if type(made[0]) in PLAIN else None
            if new is None:
                outputs = store.waiting_texts(made)
            else:
                outputs = store.lists.text(new, made).inside.text
        store.add(f'{line},"outputs":[{outputs}]{mutated}}}\n')
        self._run.calls += 1
        self._run.operators.add(self._plan.name)
