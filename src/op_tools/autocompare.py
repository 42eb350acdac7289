"""OpAutoCompare: each call again on the CPU in higher precision; results and gradients compared."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from deeplink import settings
from deeplink.errors import SettingError
from deeplink.judge import NAMES as STANDARDS
from op_tools import comparison, engine, gradients, host, names, reference, report
from op_tools.background import Background
from op_tools.call import Call, device_of, tensors
from op_tools.comparison import Item, Taken
from op_tools.comparison_report import Failure, Rows, show_call, show_gradients, show_summary
from op_tools.comparison_store import Saver
from op_tools.options import Options
from op_tools.reference import NoReferenceError
from op_tools.tool import Observer, Started

MODES = ("every", "signature", "sample")
SAMPLE = 10  # of the calls of an operator, every so many-th


@dataclass(frozen=True)
class _How:
    """What only this tool is asked."""

    mode: str
    standard: str
    background: bool
    sample: int
    recheck: float  # share of calls of a known signature that are compared all the same


@dataclass
class _Before:
    """What is known of a call before it is made."""

    call: Call  # with arguments on the host; those of a view as they stand on the device
    requires: frozenset[int]
    versions: list[int]
    given: gradients.Arguments | None
    guards: list[tuple[Tensor, Tensor]]
    is_view: bool = False


class OpAutoCompare(Observer):
    """Compares arguments, results and gradients of each call with the CPU's in float64.

    `mode`: every call, one of each signature, or a sample. `standard`: calibrated, allclose, torch,
    ascend or ulp. `background=True`: the references are computed in a thread of their own.
    """

    key = "AUTOCOMPARE"
    hook = "OpAutoCompareHook"
    wants_modules = True
    only_looks = False  # it runs kernels of its own, which an observer of kernels must not

    failures: list[Failure]
    compared: int  # calls

    def begin(self, options: Options) -> None:
        self._how = _how(options)
        for setting in settings.table():
            if setting.name.startswith("AUTOCOMPARE_ERROR_TOLERANCE"):
                setting.get()  # a bad one is told now
        self.failures, self.compared, self.items = [], 0, 0
        self.skipped: Counter[tuple[str, str]] = Counter()
        self._seen: set[Hashable] = set()
        self._calls: Counter[str] = Counter()
        self._chance = random.Random(0)
        self._lock = threading.Lock()
        self._rows, self._saver = Rows(), Saver()
        self._background = Background() if self._how.background else None

    # Which calls.

    def selects(self, call: Call) -> bool:
        return super().selects(call) and self._chosen(call)

    def _chosen(self, call: Call) -> bool:
        if self._how.mode == "every":
            return True
        with self._lock:
            if self._how.mode == "sample":
                self._calls[call.name] += 1
                return self._calls[call.name] % self._how.sample == 1 or self._how.sample == 1
            key = (
                call.direction,
                torch.is_grad_enabled(),
                call.name,
                _kind((call.args, call.kwargs)),
            )
            if key not in self._seen:
                self._seen.add(key)
                return True
            return self._chance.random() < self._how.recheck

    # Around a call.

    def before(self, call: Call) -> _Before | None:
        reason = reference.unfit(call)
        if reason:
            self._skip(call, reason)
            return None
        graph = call.level != "aten"
        given = gradients.arguments(call) if graph else None
        if given is not None and not given.wanted:
            given = None
        versions = reference.versions(call)
        if names.last(call.name) in names.VIEWS:
            # it writes nothing, so that what is needed can be taken after it
            return _Before(call, frozenset(), versions, given, [], is_view=True)
        copies = host.Copies(host.host_copy)
        on_host = replace(call, args=copies.of(call.args), kwargs=copies.of(call.kwargs))
        requires = frozenset(id(copy) for own, copy in copies if own.requires_grad)
        return _Before(on_host, requires, versions, given, _guards(call))

    def after(self, call: Call, state: _Before | None, result: Any) -> None:
        if state is None:
            return
        reason = reference.kind(tensors(result))
        if reason:
            self._skip(call, reason)
            return
        wrote = reference.writes(call, state.versions)
        if state.is_view:
            if wrote or call.operator.endswith("_"):
                return  # it turns its argument into a view of itself
            state = _view(call, state, result)
        device = device_of(call.args, call.kwargs) or torch.device("cpu")
        autocast = reference.autocast_of(device)
        types = [tensor.dtype for tensor in tensors(result)]
        wants = state.given is not None and any(t.requires_grad for t in tensors(result))
        taken = Taken(
            reference.again(state.call, state.requires, wrote, autocast, types),
            None,
            [],
            wants,
            str(device),
        )
        if not wrote and _is_memory_of(result, call):  # nothing was computed
            with self._lock:
                self.compared += 1
        else:
            _synchronize(device, result)
            copies = host.Copies(host.host_copy)
            taken.result = copies.of(result)
            taken.after = [copies.of(t) for t in tensors(call.args, call.kwargs)]
            written = _overrun(state.guards)
            self._do(taken.call, self._forward, taken, written)
        if wants and state.given is not None:
            self._watch(call, state.given, result, taken)

    def _watch(self, call: Call, given: gradients.Arguments, result: Any, taken: Taken) -> None:
        guard = engine.guard(self, taken.call)  # holds no tensor of the device

        def done(found: gradients.Gradients) -> None:
            if found.complete:
                self._do(taken.call, self._backward, taken, found)

        gradients.watch(call, given, result, host.host_copy, guard(done), guard)

    def _do(self, call: Call, work: Callable[..., None], *args: Any) -> None:
        def plainly(*args: Any) -> None:
            with torch._C.DisableTorchFunction():  # the program's modes are not for our own calls
                work(*args)

        if self._background is None:
            plainly(*args)
        else:
            self._background.put(lambda: engine.guarded(self, call, plainly, *args))

    # Comparing; in the thread of the call, or in the background.

    def _forward(self, taken: Taken, overrun: str) -> None:
        try:
            items = comparison.forward(taken, self._how.standard)
        except NoReferenceError as error:
            self._skip(taken.call, str(error))
            return
        if overrun:
            items.append(Item("memory", comparison.beyond_memory(overrun)))
        with self._lock:
            self.compared += 1
        self._record(taken, "forward", items, None)
        if report.verbose():
            show_call(taken, items)

    def _backward(self, taken: Taken, found: gradients.Gradients) -> None:
        try:
            items = comparison.backward(taken, found.outputs, found.inputs, self._how.standard)
        except NoReferenceError as error:
            self._skip(taken.call, str(error))
            return
        self._record(taken, "backward", items, found)
        if report.verbose() and items:
            show_gradients(taken, found, items)

    def _record(
        self,
        taken: Taken,
        direction: str,
        items: list[Item],
        found: gradients.Gradients | None,
    ) -> None:
        call = taken.call
        # a result that is an argument written in place is one thing that is wrong, not two
        by_verdict = {id(item.verdict): item for item in items if not item.verdict.passed}
        wrong = list(by_verdict.values())
        with self._lock:
            saved = self._saver.save(taken, found) if wrong else ""
            self.items += len(items)
            self.failures.extend(Failure.of(call, direction, item, saved) for item in wrong)
            self._rows.add(call, items)

    def _skip(self, call: Call, reason: str) -> None:
        with self._lock:
            self.skipped[reason, call.name] += 1

    def finish(self, started: Started) -> None:
        if self._background is not None:
            self._background.close()
        self._rows.flush()
        show_summary(self, started, self.failures, self._rows.path)


def _how(options: Options) -> _How:
    known = {"mode", "standard", "background", "sample", "recheck"}
    unknown = sorted(set(options.more) - known)
    if unknown:
        raise SettingError(
            f"OpAutoCompare takes no {', '.join(unknown)}.", f"it takes {', '.join(sorted(known))}."
        )

    def option(name: str, setting: settings.Setting[Any] | None, default: Any = None) -> Any:
        value = options.more.get(name)
        return value if value is not None else setting.get() if setting is not None else default

    how = _How(
        option("mode", settings.OP_AUTOCOMPARE_MODE),
        option("standard", settings.OP_AUTOCOMPARE_STANDARD),
        bool(option("background", settings.OP_AUTOCOMPARE_BACKGROUND)),
        int(option("sample", None, SAMPLE)),
        float(option("recheck", None, 0.0)),
    )
    for what, value, allowed in (
        ("mode", how.mode, MODES),
        ("standard", how.standard, STANDARDS),
    ):
        if value not in allowed:
            raise SettingError(
                f"OpAutoCompare: {what} {value!r} is not allowed.", f"one of {', '.join(allowed)}."
            )
    return how


def _kind(value: object) -> Hashable:
    """What calls that do the same work have in common; a learning rate may change every step."""
    if isinstance(value, Tensor):
        if value.is_nested or value.layout != torch.strided:
            return str(value.layout), value.dtype
        return value.shape, value.dtype, value.stride(), value.requires_grad
    if isinstance(value, (list, tuple)):
        return tuple(map(_kind, value))
    if isinstance(value, dict):
        return tuple((key, _kind(item)) for key, item in value.items())
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return type(value).__name__ if isinstance(value, (float, complex)) else repr(value)[:80]


# Memory.


def _is_memory_of(result: Any, call: Call) -> bool:
    """Whether a call computed nothing: what it returned lies in the memory of its arguments."""
    if isinstance(call.func, OpOverload) and call.func._schema.is_mutable:
        return False
    found = [t for t in tensors(result) if t.numel()]
    if not found:
        return False
    given = {t.untyped_storage()._cdata for t in tensors(call.args, call.kwargs)}
    return all(t.untyped_storage()._cdata in given for t in found)


def _view(call: Call, state: _Before, result: Any) -> _Before:
    """Of a view, arguments with the values or, when nothing was copied, with the shape alone."""
    values = not _is_memory_of(result, call)
    copies = host.Copies(host.host_copy if values else reference.outline)
    on_host = replace(call, args=copies.of(call.args), kwargs=copies.of(call.kwargs))
    requires = frozenset(id(copy) for own, copy in copies if own.requires_grad)
    return replace(state, call=on_host, requires=requires)


def _synchronize(device: torch.device, result: Any) -> None:
    """A copy to the host may still be under way."""
    if device.type == "cpu" or all(t.device.type != "cpu" for t in tensors(result)):
        return
    module = getattr(torch, device.type, None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()


GUARD = 256  # bytes


def _guards(call: Call) -> list[tuple[Tensor, Tensor]]:
    """Memory behind arguments that the call may write and that are a part of something larger."""
    found = []
    for tensor in _may_write(call):
        memory = _behind(tensor)
        if memory is not None:
            found.append((memory, memory.cpu()))
    return found


def _may_write(call: Call) -> list[Tensor]:
    if isinstance(call.func, OpOverload):
        return reference.written_by_schema(call)
    written: list[Any] = [call.kwargs.get("out")]
    if names.last(call.name).endswith("_") and call.args:
        written.append(call.args[0])
    return list(tensors(written))


def _behind(tensor: Tensor) -> Tensor | None:
    """A few bytes of the same allocation behind a dense tensor, as they are on the device."""
    if not tensor.numel() or not tensor.is_contiguous():
        return None
    storage, size = tensor.untyped_storage(), tensor.element_size()
    end = (tensor.storage_offset() + tensor.numel()) * size
    length = min(GUARD, storage.nbytes() - end)
    if length <= 0:
        return None
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(storage, end, (length,), (1,))


def _overrun(guards: list[tuple[Tensor, Tensor]]) -> str:
    for memory, before in guards:
        changed = int((memory.cpu() != before).sum())
        if changed:
            return f"{changed} bytes behind the result were written"
    return ""
