# SPDX-License-Identifier: Apache-2.0
"""A call's arguments on the host, and its results back where they belong."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from op_tools.core.call import Call
from op_tools.tensors import mutation
from op_tools.tensors.overlap import Overlap, overlaps

_LEAVES = frozenset({Tensor, int, float, bool, str, type(None), torch.dtype, torch.device})


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every leaf of a structure; the types of containers stay."""
    if type(value) in _LEAVES or isinstance(value, Tensor):  # hot path
        return change(value)
    if isinstance(value, PackedSequence):  # whose sizes must be on the CPU
        rest = [mapped(item, change) for item in (value.data, *value[2:])]
        return PackedSequence(rest[0], value.batch_sizes, *rest[1:])
    if isinstance(value, tuple):
        items = [mapped(item, change) for item in value]
        if type(value) is tuple or isinstance(value, torch.Size):
            return tuple(items)
        if hasattr(value, "_fields"):  # a namedtuple
            return type(value)(*items)
        return type(value)(items)  # torch.return_types
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, dict):
        return _mapped_dict(value, change)
    if isinstance(value, slice):
        return slice(*(mapped(part, change) for part in (value.start, value.stop, value.step)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **{k: mapped(v, change) for k, v in parts.items()})
    return change(value)


def _mapped_dict(value: dict[Any, Any], change: Callable[[Any], Any]) -> Any:
    items = {key: mapped(item, change) for key, item in value.items()}
    if type(value) is dict:
        return items
    try:
        return type(value)(items)
    except TypeError:  # a subclass of dict with another constructor
        return items


@dataclass(eq=False, slots=True)
class Copy:
    """A tensor and its copy, as they were before the call."""

    original: Tensor
    copy: Tensor
    version: int | None  # autograd's count of writes; an inference tensor has none
    node: Any  # of the copy in the graph
    values: Tensor | None  # of the copy; None: not compared

    @property
    def is_counted(self) -> bool:
        """Whether autograd has counted a write of the copy."""
        return self.version is not None and self.copy._version != self.version

    @property
    def differs(self) -> bool:
        """Whether the compared values of the copy have changed."""
        before, after = self.values, self.copy
        if before is None:
            return False
        return before.shape != after.shape or not torch.equal(before, after.detach())

    def write_back(self) -> None:
        """Write the values into the original, counted and recorded by autograd as in the copy."""
        original, copy = self.original, self.copy
        if original.shape != copy.shape:  # `out=`
            with torch.no_grad():
                original.resize_(copy.shape)
                if _is_dense(copy):
                    original.as_strided_(copy.shape, copy.stride())
        if copy.grad_fn is not self.node:  # the write is part of the graph
            original.copy_(copy)
            return
        with torch.no_grad():
            # `data` has a count of its own
            target = original if self.is_counted or original.is_inference() else original.data
            target.copy_(copy)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor fill a block of memory, each once, in any order."""
    steps = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in steps:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class Copies:
    """Copies of tensors. A tensor that occurs twice is copied once.

    With the call that runs on the copies, `written()` returns the copies that it wrote. If the call
    may write one of several arguments that overlap in memory, their copies overlap, too.
    """

    def __init__(self, copy: Callable[[Tensor], Tensor], call: Call | None = None) -> None:
        self._copy = copy
        self._copies: dict[int, Copy] = {}
        self._declared = mutation.declared(call) if call is not None else frozenset()
        self._compares = call is not None and mutation.may_write_unseen(call)
        self._overlapping: list[list[Tensor]] = []  # copies
        if call is not None and (self._declared or mutation.may_write(call)):
            for overlap in overlaps(call.inputs):
                self._add_together([call.inputs[place] for place in overlap.places], overlap)

    def of(self, value: Any) -> Any:
        """`value` with its tensors replaced."""
        return mapped(value, self._one)

    def _one(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._copies:
            self._add(leaf, self._copy(leaf))
        return self._copies[id(leaf)].copy

    def _add_together(self, members: list[Tensor], overlap: Overlap) -> None:
        copies = [self._copy(member) for member in members]
        if any(copy is member for copy, member in zip(copies, members, strict=True)):
            return  # no copies: the arguments themselves overlap
        for copy, view in zip(copies, overlap.together(copies), strict=True):
            copy.data = view
        self._overlapping.append(copies)
        for member, copy in zip(members, copies, strict=True):
            self._add(member, copy)

    def counting(self, tensor: Tensor) -> list[Tensor]:
        """The tensors whose versions count the writes to the memory of a tensor.

        Each of several overlapping copies has a version.
        """
        if tensor.layout != torch.strided or tensor.is_nested:
            return [tensor]
        memory = tensor.untyped_storage().data_ptr()
        for copies in self._overlapping:
            if copies[0].untyped_storage().data_ptr() == memory:
                return [tensor, *copies]
        return [tensor]

    def _add(self, leaf: Tensor, copy: Tensor) -> None:
        version = None if copy.is_inference() else copy._version
        compares = self._compares and copy is not leaf
        values = copy.detach().clone() if compares else None
        self._copies[id(leaf)] = Copy(leaf, copy, version, copy.grad_fn, values)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of original and copy."""
        return ((each.original, each.copy) for each in self._copies.values())

    def written(self) -> list[Copy]:
        """The copies that the call of `__init__` has written."""
        copies = [each for each in self._copies.values() if each.copy is not each.original]
        declared = self._declared
        return [c for c in copies if c.is_counted or id(c.original) in declared or c.differs]

    def original_of(self, tensor: Tensor) -> Tensor | None:
        """The original of a copy; None for another tensor."""
        return next((original for original, copy in self if copy is tensor), None)

    def sharing(self, tensor: Tensor) -> Tensor | None:
        """The original whose copy shares memory with a tensor, for example with a view."""
        if tensor.layout != torch.strided or tensor.is_nested or not tensor.numel():
            return None
        memory = tensor.untyped_storage().data_ptr()
        for original, copy in self:
            if copy is original or copy.layout != torch.strided or copy.is_nested:
                continue
            if copy.untyped_storage().data_ptr() == memory:
                return original
        return None


class Saved:
    """Tensors that the graph of a call on copies saves for the backward pass.

    The program holds the originals and the results on the device. A write to one of them raises an
    error in the backward pass, as it does without copies.

    A call on copies may contain another one (OpFallback inside of OpDtypeCast). The tensors that
    the inner graph saves are passed on to the outer call, whose originals the program holds.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._saved: list[_Saved] = []

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Hooks on saved tensors, for a `with` statement around the call."""
        outer, _in_force.saved = _in_force.saved, self
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
                yield
        finally:
            _in_force.saved = outer

    def _pack(self, tensor: Tensor) -> _Saved:
        counting = self._copies.counting(tensor)
        saved = _Saved(tensor, counting, _version_of(counting))
        self._saved.append(saved)
        return saved

    def returned(self, results: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Call it after the call with pairs of a result and the tensor that replaces it."""
        if not self._saved:
            return
        replacements = {
            result.untyped_storage().data_ptr(): replacement
            for result, replacement in results
            if result.layout == torch.strided and not result.is_nested and result.numel()
        }
        for saved in self._saved:
            if not saved.is_current():
                continue  # written since then: the backward pass raises
            tensor = saved.tensor if saved.held is None else saved.held
            if tensor.layout != torch.strided or tensor.is_nested or not tensor.numel():
                continue
            memory = tensor.untyped_storage().data_ptr()
            held = self._copies.sharing(tensor)
            held = replacements.get(memory) if held is None else held
            if held is not None and held is not tensor and not held.is_inference():
                saved.held = held.detach()  # shares the count of writes, without the graph
                saved.version_of_held = saved.held._version
        if _in_force.saved is not None:
            _in_force.saved._saved += self._saved
        self._saved = []


class _InForce(threading.local):
    saved: Saved | None = None  # of the innermost call on copies that is running


_in_force = _InForce()


@dataclass(eq=False, slots=True)
class _Saved:
    tensor: Tensor
    counting: list[Tensor]  # their versions count the writes to the tensor
    version: int
    held: Tensor | None = None  # the tensor of the program with these values
    version_of_held: int = 0

    def is_current(self) -> bool:
        """Whether nothing has written the tensor, or the program's tensor, since the call."""
        if self.held is not None and self.held._version != self.version_of_held:
            return False
        return _version_of(self.counting) == self.version


def _version_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor._version for tensor in tensors)


def _unpack(saved: _Saved) -> Tensor:
    if not saved.is_current():
        held = saved.tensor if saved.held is None else saved.held
        version, expected = _version_of(saved.counting), saved.version
        if version == expected:
            version, expected = held._version, saved.version_of_held
        shape = list(held.shape)
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{held.type()} {shape}] is at version {version}; expected version "
            f"{expected} instead. Hint: enable anomaly detection to find the operation that failed "
            "to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
        )
    return saved.tensor


class _Converted(torch.autograd.Function):
    """`tensor.to(device, dtype)` for gradients that may be sparse, as that of an embedding."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        ctx.own, ctx.other = (tensor.device, tensor.dtype), (device, dtype)
        ctx.set_materialize_grads(False)
        return tensor.to(device, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Any:
        return None if gradient is None else gradient.to(*ctx.own), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return tangent.to(*ctx.other)


def converted(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Convert a tensor to a device and a type, recorded by autograd."""
    dtype = tensor.dtype if dtype is None else dtype
    if tensor.device == device and tensor.dtype == dtype:
        return tensor
    if tensor.requires_grad and torch.is_grad_enabled():
        result: Tensor = _Converted.apply(tensor, device, dtype)  # type: ignore[no-untyped-call]
        return result
    return tensor.to(device, dtype)


def placed(result: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Convert a result; a leaf, as `torch.ones(…, requires_grad=True)`, becomes a leaf."""
    if result.requires_grad and result.is_leaf:
        return converted(result.detach(), device, dtype).requires_grad_()
    return converted(result, device, dtype)


def kind_of(tensor: Tensor) -> str:
    """The name of a tensor's device type, also where ditorch shows another one to the program."""
    if torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.PrivateUse1):
        return torch._C._get_privateuse1_backend_name()
    return tensor.device.type


def host_copy(tensor: Tensor) -> Tensor:
    """Copy the current values to the CPU, outside of the graph."""
    flat = tensor.detach()
    return flat.clone() if flat.device.type == "cpu" else flat.cpu()


def dense(tensor: Any) -> Any:
    """Convert a sparse tensor, for example the gradient of an embedding, to a dense one."""
    if isinstance(tensor, Tensor) and (tensor.is_sparse or tensor.is_sparse_csr):
        return tensor.to_dense()
    return tensor


def _autocast_kinds(device: torch.device) -> list[str]:
    """The kinds of devices with autocast on, of the CPU and a device."""
    kinds = ("cpu",) if device.type in ("cpu", "meta") else ("cpu", device.type)
    return [kind for kind in kinds if torch.is_autocast_enabled(kind)]


@contextmanager
def random_state_kept(
    device: torch.device | None = None, generators: Iterable[torch.Generator] = ()
) -> Iterator[None]:
    """Restore the random states of the CPU, a device and generators after the block."""
    cpu = torch.get_rng_state()
    module: Any = None
    if device is not None and device.type not in ("cpu", "meta"):
        module = getattr(torch, device.type, None)
    own = module.get_rng_state(device) if hasattr(module, "get_rng_state") else None
    states = [(generator, generator.get_state()) for generator in generators]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if own is not None:
            module.set_rng_state(own, device)
        for generator, state in states:
            generator.set_state(state)


class Draws:
    """Random numbers that a call on the CPU generates instead of a device."""

    advances = True  # False: the generators of the device are restored

    def __init__(self) -> None:
        # the device's generator and its state, the CPU's generator for it and its first state
        self._generators: dict[int, tuple[torch.Generator, Tensor, torch.Generator, Tensor]] = {}

    def on_host(self, generator: torch.Generator) -> torch.Generator:
        """A CPU generator with the numbers of a device's generator, or seeded by one of them."""
        if generator.device.type == "cpu":
            return generator
        if id(generator) not in self._generators:
            host, state = torch.Generator("cpu"), generator.get_state()
            start = _host_state(generator.device, generator)
            if start is not None:
                host.set_state(start)
            else:
                seed = torch.randint(2**62, (1,), generator=generator, device=generator.device)
                host.manual_seed(int(seed.item()))
            self._generators[id(generator)] = generator, state, host, host.get_state()
        return self._generators[id(generator)][2]

    def restart(self) -> None:
        """Reset the generators: the call is rerun."""
        for _, _, host, start in self._generators.values():
            host.set_state(start)

    def finish(self) -> None:
        """Advance the generators of the device, or restore them."""
        for generator, state, host, start in self._generators.values():
            if not self.advances:
                generator.set_state(state)
                continue
            used = not torch.equal(host.get_state(), start)
            if used and torch.equal(generator.get_state(), state):
                _advance(generator)  # unless the number for a seed has advanced it
        self._generators.clear()


@contextmanager
def random_numbers_of(device: torch.device) -> Iterator[Draws]:
    """Let the CPU generate the random numbers of a device's next operator, and advance the device's
    generator as that operator would. The state of the CPU's generator is restored.

    If the CPU cannot generate the numbers of the device, it uses a separate stream, which continues
    from block to block, and the device's state does not change. An error restores all states.
    """
    outside = torch.get_rng_state()
    own = _host_state(device)
    inside = own if own is not None else _streams.get(device)
    if inside is None:
        # of the CPU alone: torch.manual_seed would seed the device, too
        torch.default_generator.manual_seed(torch.initial_seed() ^ 0x5DEECE66D)
    else:
        torch.set_rng_state(inside)
    draws = Draws()
    try:
        yield draws
    except BaseException:
        draws.advances = False
        raise
    finally:
        after = torch.get_rng_state()
        torch.set_rng_state(outside)
        draws.finish()
        if draws.advances:
            _streams[device] = after
            if own is not None and not torch.equal(after, own):
                module = torch.get_device_module(device)
                _advance(module.default_generators[device.index or 0])


def draws_as_cpu(device: torch.device) -> bool:
    """Whether the CPU can generate the random numbers of a device."""
    return _host_state(device) is not None


OFFSET_OF_CALL = 4  # the offset by which an operator advances the generator of CUDA


def _advance(generator: torch.Generator) -> None:
    generator.set_offset(generator.get_offset() + OFFSET_OF_CALL)


def _host_state(device: torch.device, generator: torch.Generator | None = None) -> Tensor | None:
    """The state of a CPU generator with the next numbers of a generator of the device (by default
    its default one); None: the CPU cannot generate them.
    """
    module = getattr(torch, device.type, None)
    if not hasattr(module, "host_rng_state"):
        return None
    state: Tensor = module.host_rng_state(device if generator is None else generator)  # type: ignore[union-attr]
    return state


def stream_of(device: torch.device) -> Tensor | None:
    """The state of the separate stream of `random_numbers_of`; None: it was not used."""
    return _streams.get(device)


_streams: dict[torch.device, Tensor] = {}


@contextmanager
def no_autocast(device: torch.device) -> Iterator[None]:
    """Switch autocast off, for the CPU and the device."""
    with ExitStack() as stack:
        for kind in _autocast_kinds(device):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
