"""A captured call made again, on any device, and held against what it gave then.

for case in load_cases("op_tools_results"):
    again = replay(case, "cpu")
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from deeplink import vendor
from deeplink.compare import Difference, compare
from deeplink.errors import DeeplinkError
from op_tools import engine, folders, names
from op_tools.call import tensors
from op_tools.host import mapped
from op_tools.packed import SUFFIX, Archive
from op_tools.snapshot import rebuild, values
from op_tools.store import Drawing, Opaque, Recorded

Against = Literal["captured", "cpu", "float64"]
SEED = 20
# Where torch keeps functions that are called by name; anything else could be any code at all.
SPACES = frozenset(
    """
    torch.nn.functional torch.nn.init torch.functional torch.special torch.linalg torch.fft
    torch.sparse torch.nested torch.signal.windows
    """.split()
)

NATIVE_SPACES = frozenset(
    f"torch._C._{word}" for word in "nn sparse linalg fft special nested".split()
)


class ReplayError(DeeplinkError):
    """A captured call that cannot be made again; the text says why."""


@dataclass(frozen=True)
class Case:
    """Where a captured call lies; `load()` reads it."""

    where: str  # of a folder its path, of an archive its path and the call's id
    name: str = field(default="", compare=False)
    archive: Archive | None = field(default=None, repr=False, compare=False)
    call: int = 0

    def load(self) -> Recorded:
        """The call with its tensors, on the CPU."""
        return self.archive.load(self.call) if self.archive else folders.read(Path(self.where))


@dataclass(frozen=True)
class Replayed:
    """What a call gave this time."""

    result: Any
    mutated: dict[int, Tensor]  # arguments that were captured as written, as they are now
    gradients: list[Tensor | None] | None  # of the arguments; None: no backward pass
    random: bool  # it drew random numbers
    device: torch.device


def load_cases(path: str | Path) -> list[Case]:
    """Every captured call under a path: a folder of folders and archives, or one of either."""
    root = Path(path)
    if not root.exists():
        raise ReplayError(f"there is nothing at {root}.")
    found = list(_archived(root)) if root.is_file() else []
    if root.is_dir():
        found = [Case(str(folder)) for folder in folders.find(root)]
        for file in sorted(root.rglob(f"*{SUFFIX}")):
            found += _archived(file)
    if not found:
        raise ReplayError(
            f"no captured call at {root}: neither a folder with input.pth nor a *{SUFFIX} file.",
            "give the folder that OpCapture wrote to, op_tools_results unless it was set.",
        )
    return found


def _archived(file: Path) -> Iterator[Case]:
    archive = Archive(file)
    for call in archive:
        yield Case(f"{file}#{call}", archive.header(call)["name"], archive, call)


def replay(
    case: Case | Recorded,
    device: str | torch.device | None = None,
    *,
    dtype: torch.dtype | None = None,
    backward: bool = True,
    trust: Sequence[str] = (),
) -> Replayed:
    """Makes the call again; a device of None is the one that it was captured on, when it is here.

    `dtype` is for the floating tensors; `trust` names packages other than torch whose functions
    may be called. The backward pass runs from the captured gradients of the results.
    """
    recorded = case.load() if isinstance(case, Case) else case
    target = torch.device(device) if device is not None else home(recorded)
    call = Prepared(recorded, target, dtype, trust, backward)
    return call.run()


class Prepared:
    """A call ready to be made: each `run` starts from the captured arguments."""

    def __init__(
        self,
        recorded: Recorded,
        device: torch.device,
        dtype: torch.dtype | None = None,
        trust: Sequence[str] = (),
        backward: bool = True,
    ) -> None:
        self.recorded = recorded
        self.device = device
        self.dtype = dtype
        self.func = function_of(recorded, device, trust)
        self.wants_backward = backward and bool(
            recorded.grad_outputs and any(g is not None for g in recorded.grad_outputs)
        )
        for leaf in _leaves((recorded.args, recorded.kwargs)):
            if isinstance(leaf, Opaque):
                raise ReplayError(f"an argument was not captured, only its text: {leaf}")
        self.fresh()

    def fresh(self) -> None:
        """The arguments as they were before the call."""
        self._places: list[Tensor] = []
        self._moved: dict[int, Tensor] = {}
        self._leaf_of: dict[int, Tensor] = {}
        self._devices = iter(self.recorded.devices)
        with torch.no_grad():
            pair = mapped((self.recorded.args, self.recorded.kwargs), self._value)
        self.args, self.kwargs = pair
        if "device" in self.kwargs and isinstance(self.kwargs["device"], (str, int)):
            self.kwargs["device"] = self.device

    def run(self) -> Replayed:
        """Forward, and backward where gradients were captured."""
        state = _random_state(self.device)
        with engine.unseen(), self.modes():
            result = self.forward()
        drawn = _random_state(self.device) != state
        gradients = self.backward(result) if self.wants_backward else None
        mutated = {at: self._places[at].detach() for at in self.recorded.mutated}
        return Replayed(result, mutated, gradients, drawn, self.device)

    def forward(self) -> Any:
        with torch.set_grad_enabled(self.wants_backward):
            args = mapped(self.args, self._given)
            kwargs = {key: mapped(value, self._given) for key, value in self.kwargs.items()}
            return self.func(*args, **kwargs)

    def modes(self) -> AbstractContextManager[Any]:
        """Autocast as it was."""
        cast = self.recorded.header.get("autocast")
        if not cast or self.dtype is not None:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, cast[1]))

    def backward(self, result: Any) -> list[Tensor | None]:
        """The gradients of the arguments, one for each tensor among them."""
        given = self.recorded.grad_outputs or []
        outputs, seeds = [], []
        for output, seed in zip(tensors(result), given, strict=False):
            if seed is not None and output.requires_grad:
                outputs.append(output)
                seeds.append(seed.detach().to(self.device).to(output.dtype))
        leaves = list(dict.fromkeys(self._leaf_of.values()))
        if not outputs or not leaves:
            return [None] * len(self._places)
        with engine.unseen():
            found = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
        by_leaf = {id(leaf): grad for leaf, grad in zip(leaves, found, strict=True)}
        gradients: list[Tensor | None] = []
        for place in self._places:
            leaf = self._leaf_of.get(id(place))
            # a tensor that was given twice has its gradient at its first place
            gradients.append(by_leaf.pop(id(leaf), None) if leaf is not None else None)
        return gradients

    def _value(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device):
            return value if value.type in ("cpu", "meta") else self.device
        if isinstance(value, torch.dtype) and self.dtype is not None and value.is_floating_point:
            return self.dtype
        if isinstance(value, Drawing):
            return self._generator(value)
        return value

    def _tensor(self, tensor: Tensor) -> Tensor:
        """On the device, with its strides; one that lay on the CPU beside others stays there."""
        was = next(self._devices, "")
        if id(tensor) not in self._moved:
            # a capture of the published tool does not say where its tensors were
            stays = was.startswith("cpu") and any(
                d and d[:3] != "cpu" for d in self.recorded.devices
            )
            moved = _copy(tensor, torch.device("cpu") if stays else self.device, self.dtype)
            wants = tensor.requires_grad or self._has_gradient(len(self._places))
            if self.wants_backward and wants and (moved.is_floating_point() or moved.is_complex()):
                self._leaf_of[id(moved)] = moved.requires_grad_()
            self._moved[id(tensor)] = moved
        self._places.append(self._moved[id(tensor)])
        return self._moved[id(tensor)]

    def _has_gradient(self, place: int) -> bool:
        found = self.recorded.grad_inputs or []
        return place < len(found) and found[place] is not None

    def _given(self, value: Any) -> Any:
        """What the call gets: not a leaf itself, which it may not write."""
        if isinstance(value, Tensor) and id(value) in self._leaf_of:
            at = next(i for i, place in enumerate(self._places) if place is value)
            if at in self.recorded.written or writes(self.recorded.name):
                through: Tensor = _Identity.apply(value)  # type: ignore[no-untyped-call]
                self._places = [through if place is value else place for place in self._places]
                self._leaf_of[id(through)] = value
                self._moved[-1 - at] = through  # kept alive
                return through
        return value

    def _generator(self, drawing: Drawing) -> torch.Generator:
        made = torch.Generator(self.device)
        if torch.device(drawing.device).type == self.device.type:
            made.set_state(drawing.state)
        return made


class _Identity(torch.autograd.Function):
    """A copy in memory of its own with the same strides, and a gradient that passes through."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return _copy(tensor, tensor.device, None)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _copy(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    tensor = tensor.detach()
    if dtype is not None and (tensor.is_floating_point() or tensor.is_complex()):
        tensor = tensor.to(_wide(tensor.dtype, dtype))
    if tensor.layout != torch.strided or tensor.is_nested:
        return tensor.to(device, copy=True)
    if tensor.is_contiguous():
        return tensor.to(device, copy=True)
    made = rebuild(values(tensor), tuple(tensor.shape), tensor.stride())
    if device.type == "cpu":
        return made
    span = 1 + sum((n - 1) * s for n, s in zip(made.shape, made.stride(), strict=True))
    if not made.numel():
        return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=device)
    return made.as_strided((span,), (1,)).to(device).as_strided(made.shape, made.stride())


def _wide(own: torch.dtype, wanted: torch.dtype) -> torch.dtype:
    if own.is_complex:
        return torch.complex128 if wanted == torch.float64 else torch.complex64
    return wanted


def writes(name: str) -> bool:
    """Whether an operator writes its first argument, by its name."""
    word = names.last(name)
    return (word.endswith("_") and not word.endswith("__")) or word.startswith("__i")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from _leaves(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _random_state(device: torch.device) -> tuple[bytes, ...]:
    states = [torch.get_rng_state()]
    module = getattr(torch, device.type, None)
    if device.type not in ("cpu", "meta") and hasattr(module, "get_rng_state"):
        states.append(module.get_rng_state(device))  # type: ignore[union-attr]
    return tuple(state.numpy().tobytes() for state in states)


# Which function, and where.


def function_of(recorded: Recorded, device: torch.device, trust: Sequence[str] = ()) -> Any:
    """The function that a capture names. Only operators are called: a file may name anything."""
    name = recorded.name
    if recorded.header.get("level") == "module":
        raise ReplayError(f"{name} is a module: its code is not in the capture.")
    word = names.last(name)
    if word in names.TRANSFERS and word not in ("to", "cpu", "numpy", "pin_memory"):
        return lambda tensor, *args, **kwargs: tensor.to(device)
    trusted = name.split(".")[0] in trust
    if not (trusted or name.startswith(("torch.", "aten.")) or "." in name):
        raise ReplayError(f"{name!r} is no function of torch's.")
    if not trusted and name.split(".")[0] not in ("torch", "aten"):
        raise ReplayError(
            f"{name} is not torch's, and a capture may name anything.",
            f"if you know it, say --trust {name.split('.')[0]}.",
        )
    try:
        func = names.resolve(names.ALIASES.get(name, name))
    except LookupError as error:
        raise ReplayError(str(error)) from None
    if not (trusted or _is_operator(name, func)):
        raise ReplayError(f"{name} is no operator.")
    return func


def _is_operator(name: str, func: Any) -> bool:
    if isinstance(func, (OpOverload, OpOverloadPacket)) or name in names.known():
        return True
    space, _, word = name.rpartition(".")
    home = str(getattr(func, "__module__", None) or "torch")
    if space in NATIVE_SPACES:
        return home.startswith("torch")
    if space in SPACES:
        return not word.startswith("_") and home.startswith("torch")
    # a method of a tensor, or a function of torch's own C++
    return space == "torch.Tensor" or (space == "torch" and func in _builtins())


@cache
def _builtins() -> frozenset[Any]:
    space = torch._C._VariableFunctions
    words = [word for word in dir(space) if word[:2] != "__" and word != "from_file"]
    return frozenset(getattr(space, word) for word in words)


def home(recorded: Recorded) -> torch.device:
    """The device of a capture when this machine has it, else the one that is chosen here."""
    was = str(recorded.header.get("device") or "")
    kind = was.partition(":")[0]
    if was and _usable(kind):
        return torch.device(was)
    return default_device(kind)


@cache
def default_device(kind: str = "") -> torch.device:
    """The device of the vendor that has this kind, else of the one that is chosen."""
    rows = [row.vendor for row in vendor.discover() if row.vendor and row.status == "available"]
    chosen = next((v for v in rows if v.device == kind), None) or vendor.choose().vendor
    if chosen.device_module and not _usable(chosen.device):
        importlib.import_module(chosen.device_module)
    return torch.device(chosen.device)


def _usable(kind: str) -> bool:
    if kind == "cpu":
        return True
    try:
        torch.empty(0, device=kind)
    except (RuntimeError, AssertionError, NotImplementedError):  # no such device in this process
        return False
    return True


# The verdict.


def differences(
    recorded: Recorded, again: Replayed, expected: Replayed | None = None
) -> list[Difference]:
    """What came out this time against the capture, or against another replay of it."""
    check = expected is None
    rows: list[Difference] = []
    if expected is not None or recorded.has_output:
        wanted = recorded.output if expected is None else expected.result
        rows += _named("output", compare(again.result, wanted, check_dtype=check))
    changed = recorded.mutated if expected is None else expected.mutated
    for at, after in changed.items():
        rows += _named(f"argument[{at}]", compare(again.mutated[at], after, check_dtype=check))
    if again.gradients is not None and (recorded.complete or expected is not None):
        side = recorded.grad_inputs if expected is None else expected.gradients
        for at, (got, want) in enumerate(zip(again.gradients, side or [], strict=False)):
            if want is not None or (expected is not None and got is not None):
                rows += _named(f"grad[{at}]", compare(got, want, check_dtype=check))
    return rows


def _named(label: str, rows: list[Difference]) -> list[Difference]:
    return [replace(row, path=label + row.path) for row in rows]


def reference(recorded: Recorded, against: Against, trust: Sequence[str] = ()) -> Replayed | None:
    """What a replay is held against: nothing but the capture, or a run on the CPU."""
    if against == "captured":
        return None
    dtype = torch.float64 if against == "float64" else None
    return Prepared(recorded, torch.device("cpu"), dtype, trust).run()
