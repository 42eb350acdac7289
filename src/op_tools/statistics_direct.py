"""A kernel's calls written down by Python alone, without a record of each: hot path.

For where the native part is missing. What it writes is what `OpCapture.before` and `after` write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _autograd, _current_autograd_node, _current_graph_task_id, _functorch

from op_tools import diagnostics, interception, modules
from op_tools.call import PLAIN, call_site, given_tensors, tensor_list
from op_tools.interception import Plan, local
from op_tools.statistics_store import Heads, StatisticsStore

if TYPE_CHECKING:
    from op_tools.capture_run import Run


_NOTHING: list[Any] = []
_HOST = torch.device("cpu")


class Direct:
    """Calls of one kernel of torch's own, whose schema says what it writes."""

    def __init__(self, plan: Plan, run: Run, counted: Callable[[], None]) -> None:
        assert run.statistics is not None  # by the caller
        self._plan, self._run, self._counted = plan, run, counted
        self._store: StatisticsStore = run.statistics
        self._heads = Heads(plan.name)
        self._written: list[tuple[int, str]] | None = None  # arguments, by place or name

    def __call__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if local.busy:
            return func(*args, **kwargs)
        given = given_tensors(args, kwargs)
        device = device_of(given)
        if device == _HOST and not self._plan.on(device):  # nothing of the host's waits
            return func(*args, **kwargs)
        line, own = None, _NOTHING
        local.busy = True
        try:
            if device is None or _functorch.peek_interpreter_stack() is not None:
                self._store.settle()
                device = None
            else:
                if self._written is not _NOTHING:
                    own = self._own(func, args, kwargs)
                if self._plan.on(device):
                    self._counted()
                    line = f'{self.head()},"inputs":[{self._store.waiting_texts(given)}]'
                if own:
                    self._store.before_write(own)
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add("OpCapture", self._plan.name, error)
            line = None
        finally:
            local.busy = False
        if device is None:
            return interception.run(self._plan, func, args, kwargs)
        result = func(*args, **kwargs)
        if line is not None:
            local.busy = True
            try:
                self._after(line, given, own, result)
            except Exception as error:  # the same
                diagnostics.add("OpCapture", self._plan.name, error)
            finally:
                local.busy = False
        return result

    def head(self) -> str:
        """The start of a line."""
        path, site = modules.path(), call_site()
        backward = _current_graph_task_id() != -1
        if backward:  # see `Plan.record`
            known = modules.forward_of(_current_autograd_node())
            path, site = path or known[0], site or known[1]
        else:
            modules.remember_made(_autograd._get_sequence_nr(), path, site)
        return self._heads(backward, path, site)

    def _after(self, line: str, given: list[Tensor], own: list[Tensor], result: Any) -> None:
        run, store = self._run, self._store
        made = [result] if type(result) in PLAIN else tensor_list((result,))
        if not own:
            store.add(f'{line},"outputs":[{store.waiting_texts(made)}]}}\n')
        else:
            written = set(map(id, own))
            changed = {at: tensor for at, tensor in enumerate(given) if id(tensor) in written}
            for tensor in changed.values():
                store.forget(tensor)
            returned = {id(tensor) for tensor in made}
            outputs = ",".join(store.waiting_text(tensor, id(tensor) in written) for tensor in made)
            texts = [
                f'"{at}":{store.waiting_text(tensor, True)}'
                for at, tensor in changed.items()
                if id(tensor) not in returned
            ]
            mutated = f',"mutated":{{{",".join(texts)}}}' if texts else ""
            store.add(f'{line},"outputs":[{outputs}]{mutated}}}\n')
        run.calls += 1
        run.operators.add(self._plan.name)

    def _own(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that it writes."""
        if self._written is None:
            arguments = enumerate(func._schema.arguments)
            self._written = [
                (at, argument.name)
                for at, argument in arguments
                if argument.alias_info and argument.alias_info.is_write
            ] or _NOTHING
        values = [
            kwargs.get(name, args[at] if at < len(args) else None) for at, name in self._written
        ]
        return tensor_list(values)


def device_of(given: list[Tensor]) -> torch.device | None:
    """As `call.scan` finds it; None: there is none, or one of them is of an unusual type."""
    device, found = None, False
    for tensor in given:
        if type(tensor) not in PLAIN or tensor.is_inference():
            return None
        if not found:
            device = tensor.device
            found = device.type != "cpu"
    return device
