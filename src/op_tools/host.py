"""A call's arguments on the host, and its results back where they belong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from op_tools.call import Call, tensors

_LEAVES = frozenset({Tensor, int, float, bool, str, type(None), torch.dtype, torch.device})


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with `change` applied to every leaf; types of containers are kept."""
    if type(value) in _LEAVES or isinstance(value, Tensor):  # hot path
        return change(value)
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
    except TypeError:  # a kind of dict that is made in another way
        return items


class Copies:
    """Stand-ins of tensors, one for each: a tensor that is given twice is copied once.

    After the call `mutated()` tells which stand-ins were written, by autograd's own count.
    """

    def __init__(
        self, copy: Callable[[Tensor], Tensor], made: Iterable[tuple[Tensor, Tensor]] = ()
    ) -> None:
        self._copy = copy
        self._made: dict[int, tuple[Tensor, Tensor, int]] = {}
        for leaf, stand_in in made:  # already
            self._made[id(leaf)] = (leaf, stand_in, stand_in._version)

    def of(self, value: Any) -> Any:
        """`value` with its tensors replaced."""
        return mapped(value, self._one)

    def _one(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._made:
            copy = self._copy(leaf)
            self._made[id(leaf)] = (leaf, copy, copy._version)
        return self._made[id(leaf)][1]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of original and stand-in."""
        return ((original, copy) for original, copy, _ in self._made.values())

    def mutated(self, call: Call) -> list[tuple[Tensor, Tensor]]:
        """The pairs whose stand-in the call has written: a kernel says so in its schema."""
        written = {id(tensor) for tensor in written_by_schema(call)}
        return [
            (original, copy)
            for original, copy, version in self._made.values()
            if copy is not original and (copy._version != version or id(original) in written)
        ]

    def original_of(self, tensor: Tensor) -> Tensor | None:
        """The tensor that this stand-in stands for."""
        for original, copy, _ in self._made.values():
            if copy is tensor:
                return original
        return None

    def shares(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in the memory of a stand-in, as a view of an argument does."""
        if tensor.layout != torch.strided or tensor.is_nested or not tensor.numel():
            return False
        memory = tensor.untyped_storage().data_ptr()
        return any(
            copy is not original
            and copy.layout == torch.strided
            and not copy.is_nested
            and copy.untyped_storage().data_ptr() == memory
            for original, copy, _ in self._made.values()
        )


def written_by_schema(call: Call) -> Iterator[Tensor]:
    """The arguments that a kernel writes. Below autograd nobody counts a tensor's versions."""
    if not isinstance(call.func, OpOverload):
        return
    schema = call.func._schema
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        if place < len(call.args) and not argument.kwarg_only:
            yield from tensors(call.args[place])
        else:
            yield from tensors(call.kwargs.get(argument.name))


def kind_of(tensor: Tensor) -> str:
    """The true name of its kind of device: a program may be shown another one."""
    if torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.PrivateUse1):
        return torch._C._get_privateuse1_backend_name()
    return tensor.device.type


def host_copy(tensor: Tensor) -> Tensor:
    """The values now, on the CPU, in memory of its own, outside of the graph."""
    flat = tensor.detach()
    return flat.clone() if flat.device.type == "cpu" else flat.cpu()


def dense(tensor: Any) -> Any:
    """A sparse tensor, as the gradient of an embedding may be, with all its zeros."""
    if isinstance(tensor, Tensor) and (tensor.is_sparse or tensor.is_sparse_csr):
        return tensor.to_dense()
    return tensor


def is_undisturbed(device: torch.device) -> bool:
    """Whether neither autocast nor hooks of the program on saved tensors are in force."""
    is_on = torch.is_autocast_enabled
    if is_on("cpu") or (device.type not in ("cpu", "meta") and is_on(device.type)):
        return False
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def own_graph() -> AbstractContextManager[None]:
    """Graphs made inside the block keep their tensors themselves.

    The hooks of the program (a checkpoint's, which counts what is saved) must not hear of them.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return nullcontext()  # hot path: there are none
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda kept: kept)


@contextmanager
def random_state_kept(device: torch.device | None = None) -> Iterator[None]:
    """Random numbers drawn inside the block are not missed outside it, on the CPU and a device."""
    cpu = torch.get_rng_state()
    module = None
    if device is not None and device.type not in ("cpu", "meta"):
        module = getattr(torch, device.type, None)
    if not hasattr(module, "get_rng_state"):
        module = None
    kept = module.get_rng_state(device) if module is not None else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if kept is not None and module is not None:
            module.set_rng_state(kept, device)


@contextmanager
def random_numbers_of(device: torch.device) -> Iterator[None]:
    """The CPU draws what the device would draw next; outside the block neither notices.

    A device whose generator is of another kind keeps its state, and the CPU draws from a stream
    of its own that goes on from block to block.
    """
    outside = torch.get_rng_state()
    module = getattr(torch, device.type, None)
    if not hasattr(module, "get_rng_state"):
        module = None
    theirs = module.get_rng_state(device) if module is not None else None
    same_kind = theirs is not None and theirs.shape == outside.shape
    inside = theirs if same_kind else _streams.get(device)
    if inside is None:
        # of the CPU alone: torch.manual_seed would seed the device, too
        torch.default_generator.manual_seed(torch.initial_seed() ^ 0x5DEECE66D)
    else:
        torch.set_rng_state(inside)
    try:
        yield
    finally:
        after = torch.get_rng_state()
        torch.set_rng_state(outside)
        _streams[device] = after
        if same_kind and module is not None:
            module.set_rng_state(after, device)


def draws_as_cpu(device: torch.device) -> bool:
    """Whether a device's generator is of the CPU's kind: both draw the same numbers."""
    module = getattr(torch, device.type, None)
    if not hasattr(module, "get_rng_state"):
        return False
    theirs: Tensor = module.get_rng_state(device)  # type: ignore[union-attr]
    return theirs.shape == torch.get_rng_state().shape


def stream_of(device: torch.device) -> Tensor | None:
    """The state of the stream that the CPU draws from in the place of a device; None: not yet."""
    return _streams.get(device)


_streams: dict[torch.device, Tensor] = {}


@contextmanager
def no_autocast(device: torch.device) -> Iterator[None]:
    """Autocast off, for the CPU and for the device."""
    is_on = torch.is_autocast_enabled
    if not is_on("cpu") and (device.type in ("cpu", "meta") or not is_on(device.type)):
        yield  # hot path: to switch it off takes long
        return
    with torch.autocast("cpu", enabled=False):
        if device.type in ("cpu", "meta"):
            yield
            return
        with torch.autocast(device.type, enabled=False):
            yield
