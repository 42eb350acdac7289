# SPDX-License-Identifier: Apache-2.0
"""An iteration on the device under test: it starts from the record, and each layer is compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deeplink import identity
from deeplink.i18n import _
from deeplink.identity import Identity
from deeplink.judge import Verdict, judge
from deeplink.precision import Precision
from op_tools.capture import Recorded
from op_tools.compare import eligibility, precision
from op_tools.compare.host_verdicts import Item
from op_tools.core import gradients
from op_tools.core.call import Call, device_of
from op_tools.core.gradients import Gradients
from op_tools.one_iter import optimizer_step, verdicts
from op_tools.one_iter.call_tree import WRAPPERS, Seen
from op_tools.one_iter.layer_function import Child, Given, OtherPath, Unit, run_on_device
from op_tools.one_iter.optimizer_step import Update
from op_tools.one_iter.record_store import Book, Entry, OneIterError
from op_tools.one_iter.result import Finding, drift
from op_tools.one_iter.rng import HostRandom
from op_tools.one_iter.tree_template import emptied, flat
from op_tools.one_iter.verdicts import Case
from op_tools.replay import copy_to

Guard = Callable[[Call], Callable[..., Callable[..., None]]]


@dataclass
class _State:
    """The state of a call: its record, and the structures of its inputs and results."""

    entry: Entry
    recorded: Recorded
    arguments: Any
    finding: Finding
    input_drift: float | None = None
    devices: list[torch.device] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    result: Any = None
    returned: tuple[tuple[int, int, bool], ...] = ()
    result_devices: list[torch.device] = field(default_factory=list)


class Comparing:
    """Loads the record into the run, and compares each call with it."""

    def __init__(self, book: Book, random: HostRandom, guard: Guard) -> None:
        self._book, self._random, self._guard = book, random, guard
        self.findings: dict[int, Finding] = {}  # by the id of the call
        self._begun = False
        self.identity: Identity | None = None  # of the device, from the first call on
        self._names: dict[int, str] = {}  # of parameters

    # Before and after a call.

    def begin(self, seen: Seen, call: Call) -> None:
        if not self._begun:
            self._begun = True
            torch.set_rng_state(self._book.about["random"])
            device = call.device.type if call.device is not None else "cpu"
            self.identity = identity.current(device)
        if call.direction == "backward" and self._find(seen) is None:
            return  # a checkpoint reruns a layer, and stops early
        entry = self._entry(seen)
        recorded = self._book.load(entry)
        _check(seen, recorded)
        if seen.kind == "module":
            self._random.restart(seen.path)
        if seen.parent is None:
            if seen.kind == "module":
                _load_model(seen, call, recorded)
                self._names.update({id(p): name for name, p in call.args[0].items()})
            _load_inputs(seen, recorded)
        finding = Finding(entry)
        self.findings[entry.id] = finding
        seen.state = _State(entry, recorded, None, finding)
        seen.state.input_drift = drift(seen.inputs, recorded.kwargs["inputs"])
        seen.state.devices = [tensor.device for tensor in seen.inputs]
        seen.state.versions = [_version(tensor) for tensor in seen.inputs]
        if seen.name.startswith(WRAPPERS):
            finding.skipped = _("it carries the model elsewhere; what it calls is judged")
            return
        try:
            seen.state.arguments = emptied(seen.args)
        except TypeError as error:
            finding.skipped = str(error)

    def end(self, seen: Seen, call: Call, result: Any) -> None:
        state: _State = seen.state
        outputs = flat(result)
        state.finding.drift = drift(outputs, state.recorded.output["outputs"])
        self._watch(seen, call, outputs)
        state.result_devices = [tensor.device for tensor in outputs]
        places = {id(tensor): at for at, tensor in enumerate(seen.inputs)}
        state.returned = tuple(
            (place, at, _version(tensor) != state.versions[at])
            for place, tensor in enumerate(outputs)
            if (at := places.get(id(tensor), -1)) >= 0
        )
        try:
            state.result = emptied(result)
            if not state.finding.skipped:
                self._judge(seen, call, outputs)
        except TypeError as error:
            state.finding.skipped = str(error)
        seen.inputs, seen.args = [], None
        for child in seen.children:  # their results are not needed any more
            child.state = None

    def _find(self, seen: Seen) -> Entry | None:
        return self._book.by_key.get((seen.kind, seen.path, seen.number))

    def _entry(self, seen: Seen) -> Entry:
        found = self._find(seen)
        if found is None:
            known = sorted({e.path for e in self._book.entries.values() if e.kind == seen.kind})
            have = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
            raise OneIterError(
                _(
                    "the program calls {kind} {path} ({name}, call {number}), which the record has "
                    "not; it has: {have}."
                ).format(
                    kind=seen.kind,
                    path=seen.path,
                    name=seen.name,
                    number=seen.number + 1,
                    have=have or "none",
                ),
                _("record the same program, with the same options, anew."),
            )
        if found.name != seen.name:
            raise OneIterError(
                _("{path} is a {name} here and was a {recorded} in the record.").format(
                    path=seen.path, name=seen.name, recorded=found.name
                ),
                _("record the same program, with the same options, anew."),
            )
        return found

    # A layer alone, on the recorded inputs.

    def _judge(self, seen: Seen, call: Call, outputs: list[Tensor]) -> None:
        state: _State = seen.state
        lost = next((c for c in seen.children if c.state is None or c.state.result is None), None)
        if lost is not None:
            state.finding.skipped = _("the result of {path} cannot be given again").format(
                path=lost.path
            )
            return
        try:
            case, given = self._case(seen, call)
            made = run_on_device(case.unit, given, case.seeds)
            state.finding.forward, state.finding.backward = verdicts.judged(case, made)
            alone = made.results[-len(outputs) - len(given.buffers) :]
            state.finding.forward += _in_the_run(seen, outputs, alone)
        except OtherPath as error:
            verdict = Verdict(False, "structure", str(error), ratio=float("inf"))
            state.finding.forward = [Item(_("what it calls"), verdict)]
        except Exception as error:  # of a layer that does not run as a function
            text = f"{type(error).__name__}: {error}".split("\n")[0]
            state.finding.skipped = _("it cannot run alone: {text}").format(text=text[:200])

    def _case(self, seen: Seen, call: Call) -> tuple[Case, Given]:
        state: _State = seen.state
        recorded, children = state.recorded, [child.state for child in seen.children]
        parameters, buffers = seen.parameters, seen.buffers
        before = {n: v for n, v in recorded.kwargs["buffers"].items() if n in buffers}
        own = {**parameters, **buffers}
        unit = Unit(
            seen.func,
            state.arguments,
            seen.module,
            seen.owners,
            own,
            tuple(Child(c.entry.path, c.result, c.returned) for c in children),
            lambda: self._random.restart(seen.path) if seen.module is not None else None,
        )
        on_host = Given(
            {n: _leaf(v.detach().cpu(), v.requires_grad) for n, v in parameters.items()},
            before,
            recorded.kwargs["inputs"],
            [child.recorded.output["outputs"] for child in children],
        )
        on_device = Given(
            {n: _leaf(v.detach(), v.requires_grad) for n, v in parameters.items()},
            {n: copy_to(v, buffers[n].device) for n, v in before.items()},
            _moved(on_host.inputs, state.devices),
            [
                _moved(made, child.result_devices)
                for made, child in zip(on_host.children, children, strict=True)
            ],
        )
        case = _case_of(unit, seen, on_host, _autocast(call), precision.now(call))
        return case, on_device

    # In the running program.

    def _watch(self, seen: Seen, call: Call, outputs: list[Tensor]) -> None:
        finding, recorded = seen.state.finding, seen.state.recorded

        def take(gradient: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
                return gradient.detach().cpu().clone()

        def done(found: Gradients) -> None:
            mine = [*found.outputs, *found.inputs]
            theirs = [*(recorded.grad_outputs or []), *(recorded.grad_inputs or [])]
            finding.gradient_drift = drift(mine, theirs)

        guard = self._guard(call)
        gradients.watch(call, seen.arguments(seen.parameters), outputs, take, guard(done), guard)

    # The optimizer.

    def before_step(self, update: Update) -> None:
        entry = self._book.by_key.get(("optimizer", update.path, update.number))
        if entry is None:
            raise OneIterError(_("the record has no step of {path}.").format(path=update.path))
        recorded = self._book.load(entry)
        optimizer_step.load(update, recorded)
        update.state = entry, recorded

    def after_step(self, update: Update) -> None:
        entry, recorded = update.state
        finding = Finding(entry)
        finding.forward = optimizer_step.judged(update, recorded, self._names)
        self.findings[entry.id] = finding


def _case_of(
    unit: Unit, seen: Seen, given: Given, autocast: torch.dtype | None, precision: Precision
) -> Case:
    """The record of a call, in the order of the results and the leaves of the unit."""
    recorded: Recorded = seen.state.recorded
    children = [child.state for child in seen.children]
    buffers = list(given.buffers)
    outputs = recorded.output["outputs"]
    handed: list[tuple[str, Tensor, Tensor | None]] = [
        (_("what it gives to {path}").format(path=c.entry.path), value, gradient)
        for c in children
        for value, gradient in _paired(c.recorded.kwargs["inputs"], c.recorded.grad_inputs)
    ]
    results = [
        *handed,
        *(
            (_numbered("output", at, len(outputs)), value, gradient)
            for at, (value, gradient) in enumerate(_paired(outputs, recorded.grad_outputs))
        ),
        *((f"buffer {name}", recorded.output["buffers"][name], None) for name in buffers),
    ]
    inputs = given.inputs
    found = recorded.grad_inputs or []
    by_name = dict(zip(seen.state.entry.parameters, found[len(inputs) :], strict=False))
    leaves = [
        *(
            (_("gradient of {name}").format(name=name), by_name.get(name))
            for name in given.parameters
        ),
        *((_("gradient of {name}").format(name=name), None) for name in buffers),
        *(
            (_numbered(_("gradient of the input"), at, len(inputs)), gradient)
            for at, (_leaf, gradient) in enumerate(_paired(inputs, recorded.grad_inputs))
        ),
        *(
            (_("gradient of the output of {path}").format(path=c.entry.path), gradient)
            for c in children
            for _leaf, gradient in _paired(c.recorded.output["outputs"], c.recorded.grad_outputs)
        ),
    ]
    return Case(
        unit,
        f"{seen.name} alone",
        given,
        [gradient for _, _, gradient in results],
        [value for _, value, _ in results],
        [gradient for _, gradient in leaves],
        [label for label, _, _ in results],
        [label for label, _ in leaves],
        autocast,
        precision,
    )


def _in_the_run(seen: Seen, outputs: list[Tensor], alone: list[Tensor]) -> list[Item]:
    """The difference between a run of the layer alone and in the program, on equal inputs."""
    state: _State = seen.state
    before = [state.input_drift, *(child.state.finding.drift for child in seen.children)]
    if not state.finding.drift or state.finding.wrong("forward") is not None:
        return []
    same = all(not value for value in before)
    if not same and (state.finding.drift < math.inf or math.inf in before):
        return []
    items = [
        Item(
            _("{output} in the run (alone it is right)").format(
                output=_numbered("output", at, len(outputs))
            ),
            judge(mine.detach().cpu(), other),
        )
        for at, (mine, other) in enumerate(zip(outputs, alone, strict=False))
    ]
    return [item for item in items if not item.verdict.passed]


def _paired(
    values: list[Tensor], found: list[Tensor | None] | None
) -> list[tuple[Tensor, Tensor | None]]:
    gradients = found or []
    return [(v, gradients[at] if at < len(gradients) else None) for at, v in enumerate(values)]


def _numbered(word: str, place: int, count: int) -> str:
    return word if count == 1 else f"{word} {place}"


def _autocast(call: Call) -> torch.dtype | None:
    return eligibility.autocast_of(device_of(call.args, call.kwargs) or torch.device("cpu"))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _leaf(tensor: Tensor, wanted: bool) -> Tensor:
    return tensor.requires_grad_() if wanted else tensor


def _moved(tensors: list[Tensor], devices: list[torch.device]) -> list[Tensor]:
    """Copy tensors to the program's devices; a tensor that occurs twice is copied once."""
    made: dict[int, Tensor] = {}
    for tensor, device in zip(tensors, devices, strict=True):
        if id(tensor) not in made:
            made[id(tensor)] = _leaf(copy_to(tensor, device), tensor.requires_grad)
    return [made[id(tensor)] for tensor in tensors]


# The record into the run.


def _check(seen: Seen, recorded: Recorded) -> None:
    found = [(tuple(t.shape), t.dtype) for t in seen.inputs]
    wanted = [(tuple(t.shape), t.dtype) for t in recorded.kwargs["inputs"]]
    if found != wanted:
        raise OneIterError(
            _(
                "{path} (call {number}) is given {given} and was given {recorded} in the record."
            ).format(
                path=seen.path, number=seen.number + 1, given=_text(found), recorded=_text(wanted)
            ),
            _("record the same program, with the same options, anew."),
        )


def _text(inputs: list[tuple[tuple[int, ...], torch.dtype]]) -> str:
    words = [f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in inputs]
    return ", ".join(words) or _("no tensor")


def _load_model(seen: Seen, call: Call, recorded: Recorded) -> None:
    for word, own in (("parameters", call.args[0]), ("buffers", call.args[1])):
        values = recorded.kwargs[word]
        if list(own) != list(values):
            lost = [name for name in values if name not in own] or ["none"]
            more = [name for name in own if name not in values] or ["none"]
            raise OneIterError(
                _(
                    "{path} is another model than the recorded one: of its {word}, missing: "
                    "{missing}; not recorded: {more}."
                ).format(
                    path=seen.path, word=word, missing=", ".join(lost[:5]), more=", ".join(more[:5])
                )
            )
        for name, tensor in own.items():
            if tensor.shape != values[name].shape:
                raise OneIterError(
                    _(
                        "{name} of {path} has the shape {shape} and had {recorded} in the record."
                    ).format(
                        name=name,
                        path=seen.path,
                        shape=list(tensor.shape),
                        recorded=list(values[name].shape),
                    )
                )
            with torch.no_grad():
                tensor.copy_(values[name])


def _load_inputs(seen: Seen, recorded: Recorded) -> None:
    """Replace the inputs that come from the program's data, not those from the model."""
    for tensor, value in zip(seen.inputs, recorded.kwargs["inputs"], strict=True):
        if not tensor.requires_grad and not torch.equal(tensor.cpu(), value):
            tensor.copy_(value)
