"""torch's functions in C, met by who calls them: they need not find their way to the function mode.

What the mode would do with a call is done at once, and natively. All other calls (of properties,
by an index, of functions in Python) come to the mode as before, as do these in a strange place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch._C import TensorBase
from torch.overrides import TorchFunctionMode

from op_tools.interception import Plan

_OPERATORS = "add radd iadd sub isub mul rmul imul truediv matmul eq ne lt le gt ge".split()
_helper: ModuleType | None = None


def expect(helper: ModuleType | None, mode: TorchFunctionMode) -> None:
    """The mode whose calls are met from now on; without the native part, none are."""
    global _helper
    _helper = helper
    if helper is not None:
        helper.meet_for(mode, vars(torch.compiler))
        _asked()


def meet(func: Callable[..., Any], plan: Plan | None) -> None:
    """A function about which all is decided; one that Python has to see goes to the mode."""
    if _helper is None or (plan is not None and plan.direct is None):
        return
    direct = None if plan is None else plan.direct
    _helper.meet(func, func, direct, False)
    for operator, soft in _asked().get(func, ()):
        _helper.meet(operator, func, direct, soft)


def leave() -> None:
    """None of them is met until it is decided about again."""
    if _helper is not None:
        _helper.leave_all()


@cache
def _asked() -> dict[Callable[..., Any], list[tuple[Any, bool]]]:
    """Which function a mode is told of where an operator of Python's is used (`torch.Tensor.add`
    of `+`), and whether an error of types is one to the program: torch itself is asked.
    """
    with torch._C.DisableTorchFunction():
        tensor = torch.empty(0, device="cpu")
    found: dict[Callable[..., Any], list[tuple[Any, bool]]] = {}
    for name in (f"__{operator}__" for operator in _OPERATORS):
        operator = vars(TensorBase).get(name)
        with _Told() as told:
            soft = operator is not None and operator(tensor, tensor) is NotImplemented
        if told.func is not None and told.func is not operator:
            found.setdefault(told.func, []).append((operator, soft))
    return found


class _Told(TorchFunctionMode):
    """Keeps what was called, and refuses it."""

    func: Callable[..., Any] | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.func = func
        raise TypeError
