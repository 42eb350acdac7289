# SPDX-License-Identifier: Apache-2.0
"""The objects that a library over the C ABI uses: tensors, contexts, generators, as C structs.

The layouts are those of include/diopi_runtime.h, which its ABI number identifies.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, POINTER, c_double, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar

import torch
from torch import Tensor

from deeplink.errors import KernelError
from deeplink.i18n import _

ABI = 1
OK, ERROR, NO_IMPLEMENT, NO_DTYPE, INVALID, OUT_OF_MEMORY, TO_CPU = range(7)
HOST, DEVICE = 0, 1

# indexed by diopiDtype_t
DTYPES: tuple[torch.dtype | None, ...] = (
    torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
    torch.uint64, torch.float16, torch.float32, torch.float64, torch.bool, torch.bfloat16,
    None,  # tfloat32: a mode of computation, no type of torch
    torch.complex32, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES) if dtype is not None}
UNSUPPORTED = 255


class CSize(ctypes.Structure):
    """diopiSize_t"""

    _fields_ = (("data", POINTER(c_int64)), ("len", c_int64))


class _Number(ctypes.Union):
    _fields_ = (("fval", c_double), ("ival", c_int64), ("cval", c_double * 2))


class CScalar(ctypes.Structure):
    """diopiScalar_t"""

    _fields_ = (("stype", c_int32), ("value", _Number))


class CTensor(ctypes.Structure):
    """struct diopiTensor"""

    _fields_ = (
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("stride", POINTER(c_int64)),
        ("rank", c_int64),
        ("numel", c_int64),
        ("itemsize", c_int64),
        ("storage", c_void_p),
        ("storage_offset", c_int64),
        ("storage_nbytes", c_uint64),
        ("dtype", c_int32),
        ("device", c_int32),
        ("device_index", c_int32),
        ("reserved", c_int32),
    )


class CContext(ctypes.Structure):
    """struct diopiContext"""

    _fields_ = (("id", c_uint64), ("device_index", c_int32), ("reserved", c_int32))


def size(values: Sequence[int]) -> CSize:
    """Create a diopiSize_t, which keeps its array alive."""
    return CSize((c_int64 * len(values))(*values), len(values))


def scalar(value: complex) -> CScalar:
    """Create a diopiScalar_t of a plain number."""
    made = CScalar()
    if isinstance(value, (bool, int)):
        made.stype = CODES[torch.bool if isinstance(value, bool) else torch.int64]
        made.value.ival = int(value)
    elif isinstance(value, float):
        made.stype, made.value.fval = CODES[torch.float64], value
    else:
        made.stype = CODES[torch.complex128]
        made.value.cval[0], made.value.cval[1] = value.real, value.imag
    return made


class Context:
    """One call: the handles that it created, and the memory that the library requested.

    All of it is freed with the context; a tensor that became a result lives on.
    """

    _ids = itertools.count(1)
    _open: ClassVar[dict[int, Context]] = {}  # by id: C only carries the number

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.id = next(self._ids)
        self.struct = CContext(self.id, device.index or 0, 0)
        self._tensors: dict[int, tuple[CTensor, Tensor]] = {}  # by address
        self._generators: dict[int, torch.Generator | None] = {}
        self._kept: list[Any] = []
        self.error = ""  # the runtime's own error: why memory was refused

    def __enter__(self) -> Context:
        self._open[self.id] = self
        return self

    def __exit__(self, *exc: object) -> None:
        del self._open[self.id]
        self._tensors.clear()

    @classmethod
    def of(cls, address: int | None) -> Context:
        """Return the open context that a handle points to."""
        struct = CContext.from_address(address) if address else None
        found = cls._open.get(struct.id) if struct else None
        if found is None:
            raise ValueError("the context is not of a call that is running")
        return found

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    def handle(self, tensor: Tensor) -> int:
        """Create a struct for a tensor and return its address; both live until the call ends."""
        if tensor.layout != torch.strided or (tensor.numel() and not tensor.data_ptr()):
            raise KernelError(
                _("a {kind} ({layout}, {device}) has no memory to hand to a library.").format(
                    kind=type(tensor).__name__, layout=tensor.layout, device=tensor.device
                ),
                _("a kernel over the C ABI takes dense tensors with data: no meta or fake ones."),
            )
        if tensor.is_conj() or tensor.is_neg():  # bits that C cannot represent
            tensor = tensor.resolve_conj().resolve_neg()
        struct = _struct(tensor)
        address = ctypes.addressof(struct)
        self._tensors[address] = (struct, tensor)
        return address

    def tensor(self, address: int) -> Tensor:
        """Return the tensor of a handle that was created in this call."""
        try:
            return self._tensors[address][1]
        except KeyError:
            raise ValueError(f"no tensor handle of this call: {address:#x}") from None

    def generator(self, generator: torch.Generator | None) -> int:
        """Create a handle of a generator; None: the default one of the device."""
        struct = self.keep(c_uint64(0))
        self._generators[ctypes.addressof(struct)] = generator
        return ctypes.addressof(struct)

    def generator_of(self, address: int | None) -> torch.Generator:
        found = self._generators.get(address or 0)
        return found if found is not None else _default_generator(self.device)

    def keep(self, value: Any) -> Any:
        """Keep a value alive until the call ends, and return it."""
        self._kept.append(value)
        return value


def _struct(tensor: Tensor) -> CTensor:
    rank = tensor.dim()
    array = c_int64 * max(rank, 1)
    storage = tensor.untyped_storage()
    struct = CTensor(
        tensor.data_ptr() or None,
        array(*tensor.shape),
        array(*tensor.stride()),
        rank,
        tensor.numel(),
        tensor.itemsize,
        storage.data_ptr() or None,
        tensor.storage_offset(),
        storage.nbytes(),
        CODES.get(tensor.dtype, UNSUPPORTED),
        HOST if tensor.device.type == "cpu" else DEVICE,
        tensor.device.index or 0,
        0,
    )
    return struct


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    module = torch.get_device_module(device)
    generator: torch.Generator = module.default_generators[device.index or 0]
    return generator


# --- functions that the library calls back -----------------------------------------------------

_Handle = POINTER(c_void_p)
_Size = POINTER(CSize)


def _require_tensor(ctx: int, out: Any, sizes: Any, strides: Any, dtype: int, device: int) -> None:
    call = Context.of(ctx)
    kind = DTYPES[dtype] if 0 <= dtype < len(DTYPES) else None
    if kind is None:
        raise ValueError(f"diopiRequireTensor: {dtype} is no dtype of torch")
    shape = sizes.contents.data[: sizes.contents.len]
    place = call.device if device == DEVICE else torch.device("cpu")
    if strides:
        made = torch.empty_strided(
            shape, strides.contents.data[: strides.contents.len], dtype=kind, device=place
        )
    else:
        made = torch.empty(shape, dtype=kind, device=place)
    out[0] = call.handle(made)


def _require_buffer(ctx: int, out: Any, nbytes: int, device: int) -> None:
    call = Context.of(ctx)
    place = call.device if device == DEVICE else torch.device("cpu")
    out[0] = call.handle(torch.empty(nbytes, dtype=torch.uint8, device=place))


def _get_stream(ctx: int, out: Any) -> None:
    call = Context.of(ctx)
    if call.device.type == "cpu":
        out[0] = None
        return
    stream = torch.get_device_module(call.device).current_stream(call.device)
    name = f"{call.device.type}_stream"  # cuda_stream, npu_stream, …
    out[0] = getattr(stream, name, None) or getattr(stream, "stream_id", 0)


def _get_state(ctx: int, generator: int, out: Any) -> None:
    call = Context.of(ctx)
    out[0] = call.handle(call.generator_of(generator).get_state())


def _set_state(ctx: int, generator: int, state: int) -> None:
    call = Context.of(ctx)
    call.generator_of(generator).set_state(call.tensor(state).cpu())


def _get_seed(ctx: int, generator: int, seed: Any, offset: Any) -> None:
    """Return a new seed for each call, to be counted from 0: a kernel need not report its usage."""
    found = Context.of(ctx).generator_of(generator)
    seed[0] = int(torch.randint(0, 2**62, (), generator=found, device=found.device))
    offset[0] = 0


def _set_seed(ctx: int, generator: int, seed: int, offset: int) -> None:
    """Ignore the seed: the next call gets a new one."""


# name in diopiRuntime_t -> (implementation, types of its arguments), in the struct's order
CALLBACKS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "require_tensor": (_require_tensor, (c_void_p, _Handle, _Size, _Size, c_int32, c_int32)),
    "require_buffer": (_require_buffer, (c_void_p, _Handle, c_int64, c_int32)),
    "get_stream": (_get_stream, (c_void_p, _Handle)),
    "generator_get_state": (_get_state, (c_void_p, c_void_p, _Handle)),
    "generator_set_state": (_set_state, (c_void_p, c_void_p, c_void_p)),
    "generator_get_seed": (
        _get_seed,
        (c_void_p, c_void_p, POINTER(c_uint64), POINTER(c_uint64)),
    ),
    "generator_set_seed": (_set_seed, (c_void_p, c_void_p, c_uint64, c_uint64)),
}


class CRuntime(ctypes.Structure):
    """diopiRuntime_t"""

    _fields_ = (
        ("abi", c_uint32),
        ("size", c_uint32),
        *((name, CFUNCTYPE(c_int32, *types)) for name, (_, types) in CALLBACKS.items()),
    )


def _runtime() -> CRuntime:
    table = CRuntime(abi=ABI, size=ctypes.sizeof(CRuntime))
    for name, (function, types) in CALLBACKS.items():
        setattr(table, name, CFUNCTYPE(c_int32, *types)(_guarded(function)))
    return table


def _guarded(function: Callable[..., None]) -> Callable[..., int]:
    """Wrap a callback: an exception must not cross into C, so its text is stored with the call."""

    def call(ctx: int, *arguments: Any) -> int:
        try:
            function(ctx, *arguments)
        except Exception as error:
            running = Context._open.get(CContext.from_address(ctx).id) if ctx else None
            if running is not None:
                running.error = f"{type(error).__name__}: {error}"
            memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
            return OUT_OF_MEMORY if memory else INVALID
        return OK

    return call


RUNTIME = _runtime()  # the libraries hold its address: it is never freed
