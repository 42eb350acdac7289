# SPDX-License-Identifier: Apache-2.0
"""The interface of a chip: the Runtime protocol, and the C table (dipu_runtime.h) for it.

A vendor's `runtime` module defines `runtime()`, which returns either a loaded shared library that
exports `dipu_runtime`, or any Python object with the methods of `Runtime`; and it may define
`communicator(store, rank, size, timeout)`, which returns a c10d backend for host tensors, or None
for the communicator of the table.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_char, c_double, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Protocol, runtime_checkable

log = logging.getLogger("torch_dipu")

ABI = 3
OK, ERROR, OUT_OF_MEMORY, NOT_READY = range(4)
HOST = -1  # a "device" in a copy: host memory
# Reductions of a collective: the positions are the numbers of DipuReduction.
REDUCTIONS = ("sum", "product", "min", "max", "average", "bit_and", "bit_or", "bit_xor")
GROUP_ID = 128  # bytes


@dataclass(frozen=True)
class DeviceInfo:
    """The chip's description of one device."""

    name: str
    total_memory: int
    major: int = 1
    minor: int = 0
    multiprocessors: int = 1


@dataclass(frozen=True)
class Copy:
    """One copy; a device is HOST or an ordinal. `blocking`: return when the bytes have arrived."""

    dst: int
    src: int
    nbytes: int
    dst_device: int
    src_device: int
    stream_device: int
    stream: int
    blocking: bool


@dataclass(frozen=True)
class Collective:
    """One operation of a group; see DipuCollective in dipu_runtime.h."""

    communicator: int
    src: int
    dst: int
    count: int  # elements
    dtype: int  # a number of diopiDtype_t
    reduction: int  # index in REDUCTIONS
    peer: int
    stream: int


class HostCall:
    """A call of the host in a graph, see DipuHostCall: call it in each replay, in the order of the
    capture; the graph holds it until it is destroyed.
    """

    def __init__(self, call: _CHostCall) -> None:
        self._run, self._data = call.run, call.data
        self._release = weakref.finalize(self, call.release, call.data)
        self._release.atexit = False

    def __call__(self) -> None:
        """Run it; raises RuntimeError if it failed."""
        if self._run(self._data) != OK:
            raise RuntimeError("a call of the graph failed")


@runtime_checkable
class Runtime(Protocol):
    """A chip in Python: addresses, streams and events are integers, stream 0 is the default.

    A method raises MemoryError when memory is exhausted, and any other exception for another
    failure. Optional: entropy(device) -> int, and the communicator: comm_id() -> bytes,
    comm_create(device, rank, size, id) -> int, comm_destroy, comm_abort, comm_query, comm_begin and
    comm_end(communicator), comm_all_reduce and the other operations, which take a Collective, and
    comm_probe(communicator) -> int, the rank of a pending message, or None. Graphs:
    capture_begin(device, stream), capture_host(device, stream, call: HostCall),
    capture_end(device, stream) -> int, graph_replay(device, graph, stream) and
    graph_destroy(device, graph).
    """

    def device_count(self) -> int: ...
    def device_info(self, device: int) -> DeviceInfo: ...
    def device_synchronize(self, device: int) -> None: ...

    def memory_allocate(self, device: int, nbytes: int) -> int: ...
    def memory_free(self, device: int, address: int) -> None: ...
    def memory_info(self, device: int) -> tuple[int, int]: ...
    def memory_copy(self, copy: Copy) -> None: ...
    def host_allocate(self, nbytes: int) -> int: ...
    def host_free(self, address: int) -> None: ...

    def stream_create(self, device: int, priority: int) -> int: ...
    def stream_synchronize(self, device: int, stream: int) -> None: ...
    def stream_query(self, device: int, stream: int) -> bool: ...
    def stream_wait_event(self, device: int, stream: int, event: int) -> None: ...

    def event_create(self, device: int, timing: bool) -> int: ...
    def event_destroy(self, device: int, event: int) -> None: ...
    def event_record(self, device: int, event: int, stream: int) -> None: ...
    def event_query(self, event: int) -> bool: ...
    def event_synchronize(self, event: int) -> None: ...
    def event_elapsed(self, start: int, end: int) -> float: ...


class _CInfo(ctypes.Structure):
    _fields_ = (
        ("name", c_char * 64),
        ("total_memory", ctypes.c_uint64),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
    )


class _CCopy(ctypes.Structure):
    _fields_ = (
        ("dst", c_void_p),
        ("src", c_void_p),
        ("nbytes", c_size_t),
        ("dst_device", ctypes.c_int32),
        ("src_device", ctypes.c_int32),
        ("stream_device", ctypes.c_int32),
        ("blocking", ctypes.c_int32),
        ("stream", c_void_p),
    )


class _CGroupId(ctypes.Structure):
    _fields_ = (("bytes", c_char * GROUP_ID),)


class _CGivenId(_CGroupId):
    """DipuGroupId as an input."""


class _CCollective(ctypes.Structure):
    _fields_ = (
        ("communicator", c_void_p),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("count", c_size_t),
        ("dtype", ctypes.c_int32),
        ("reduction", ctypes.c_int32),
        ("peer", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("stream", c_void_p),
    )


class _CHostCall(ctypes.Structure):
    _fields_ = (
        ("run", CFUNCTYPE(c_int, c_void_p)),
        ("release", CFUNCTYPE(None, c_void_p)),
        ("data", c_void_p),
    )


# The functions of the table in its order: name -> C argument types. The outputs are last.
_OUT_POINTER = POINTER(c_void_p)
COLLECTIVES = "all_reduce broadcast reduce all_gather reduce_scatter send receive".split()
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "device_count": (POINTER(c_int),),
    "device_info": (c_int, POINTER(_CInfo)),
    "device_synchronize": (c_int,),
    "memory_allocate": (c_int, c_size_t, _OUT_POINTER),
    "memory_free": (c_int, c_void_p),
    "memory_info": (c_int, POINTER(c_size_t), POINTER(c_size_t)),
    "memory_window": (c_int, c_void_p),
    "memory_copy": (POINTER(_CCopy),),
    "memory_export": (c_int, c_void_p, POINTER(c_int), POINTER(ctypes.c_uint64)),
    "memory_import": (c_int, c_int, ctypes.c_uint64, c_size_t, _OUT_POINTER),
    "host_allocate": (c_size_t, _OUT_POINTER),
    "host_free": (c_void_p,),
    "stream_create": (c_int, c_int, _OUT_POINTER),
    "stream_synchronize": (c_int, c_void_p),
    "stream_query": (c_int, c_void_p),
    "stream_wait_event": (c_int, c_void_p, c_void_p),
    "event_create": (c_int, c_int, _OUT_POINTER),
    "event_destroy": (c_int, c_void_p),
    "event_record": (c_int, c_void_p, c_void_p),
    "event_query": (c_void_p,),
    "event_synchronize": (c_void_p,),
    "event_elapsed": (c_void_p, c_void_p, POINTER(c_double)),
    "entropy": (c_int, POINTER(ctypes.c_uint64)),
    "comm_id": (POINTER(_CGroupId),),
    "comm_create": (c_int, c_int, c_int, POINTER(_CGivenId), _OUT_POINTER),
    **{f"comm_{name}": (c_void_p,) for name in ("destroy", "abort", "query", "begin", "end")},
    **{f"comm_{name}": (POINTER(_CCollective),) for name in COLLECTIVES},
    "comm_probe": (c_void_p, POINTER(c_int)),
    "capture_begin": (c_int, c_void_p),
    "capture_host": (c_int, c_void_p, POINTER(_CHostCall)),
    "capture_end": (c_int, c_void_p, _OUT_POINTER),
    "graph_replay": (c_int, c_void_p, c_void_p),
    "graph_destroy": (c_int, c_void_p),
}
COMMUNICATOR = tuple(name for name in FUNCTIONS if name.startswith("comm_"))
GRAPH = tuple(name for name in FUNCTIONS if name.startswith(("capture_", "graph_")))
OPTIONAL = ("memory_window", "memory_export", "memory_import", "entropy", *COMMUNICATOR, *GRAPH)
QUERIES = ("stream_query", "event_query", "comm_probe")  # False or None is a result, no error
# implemented by libraries only: they concern the host's own address space
LIBRARY_ONLY = ("memory_window", "memory_export", "memory_import")


class _Table(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("last_error", CFUNCTYPE(c_void_p)),  # a text; ctypes would leak a c_char_p
        *((name, CFUNCTYPE(c_int, *arguments)) for name, arguments in FUNCTIONS.items()),
    )


def table_address(runtime: ctypes.CDLL | Runtime) -> int:
    """Return the address of the C table of a library or of a Python runtime; it is never freed."""
    if isinstance(runtime, ctypes.CDLL):
        getter = runtime.dipu_runtime
        getter.restype = c_void_p
        return int(getter() or 0)
    missing = [n for n in FUNCTIONS if n not in OPTIONAL and not hasattr(runtime, n)]
    if missing:
        raise TypeError(
            f"{type(runtime).__name__} is not a torch_dipu Runtime: it lacks "
            f"{', '.join(missing)}.\nHint: torch_dipu.runtime.Runtime lists the methods."
        )
    table = _python_table(runtime)
    _kept.append(table)
    return ctypes.addressof(table)


_kept: list[_Table] = []  # C holds their addresses


def _python_table(runtime: Runtime) -> _Table:
    errors = _Errors()
    table = _Table(abi=ABI, size=ctypes.sizeof(_Table))
    table.last_error = CFUNCTYPE(c_void_p)(errors.address)
    for name, arguments in FUNCTIONS.items():
        method = getattr(runtime, name, None)
        if method is not None and name not in LIBRARY_ONLY:
            setattr(table, name, CFUNCTYPE(c_int, *arguments)(_callback(method, name, errors)))
    return table


class _Errors:
    """The text of the last error of each thread, readable from C.

    Keyed by thread number: a thread that Python did not start loses its threading.local between
    calls.
    """

    def __init__(self) -> None:
        self._texts: dict[int, ctypes.Array[c_char]] = {}

    def put(self, text: str) -> None:
        self._texts[get_ident()] = ctypes.create_string_buffer(text.encode())

    def address(self) -> int:
        text = self._texts.get(get_ident())
        return 0 if text is None else ctypes.addressof(text)


def _callback(method: Callable[..., Any], name: str, errors: _Errors) -> Callable[..., int]:
    """Create a C callback for a method: outputs go through pointers, exceptions become codes."""

    def call(*arguments: Any) -> int:
        values, outputs = _split(arguments)
        try:
            result = method(*values)
            if name in QUERIES and (result is None or result is False):
                return NOT_READY
            _write(result, outputs)
        except MemoryError as error:
            errors.put(str(error))
            return OUT_OF_MEMORY
        except Exception as error:  # an exception must not cross into C: its text is stored
            errors.put(f"{type(error).__name__}: {error}")
            log.debug("%s failed", name, exc_info=True)
            return ERROR
        return OK

    return call


_RECORDS: dict[type, Any] = {_CCopy: Copy, _CCollective: Collective}


def _split(arguments: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    """Split into inputs as Python values (null is 0,
    a record is a dataclass) and output pointers.
    """
    values: list[Any] = []
    outputs: list[Any] = []
    for argument in arguments:
        if argument is None:
            values.append(0)
        elif isinstance(argument, int):
            values.append(argument)
        elif isinstance(argument.contents, _CGivenId):
            values.append(ctypes.string_at(argument, GROUP_ID))
        elif isinstance(argument.contents, _CHostCall):
            values.append(HostCall(argument.contents))
        elif type(argument.contents) in _RECORDS:
            record = _RECORDS[type(argument.contents)]
            names = record.__annotations__
            values.append(record(*(getattr(argument.contents, name) or 0 for name in names)))
        else:
            outputs.append(argument)
    return values, outputs


def _write(result: Any, outputs: list[Any]) -> None:
    if outputs and result is None:
        raise TypeError("it returned None")
    if len(outputs) == 1 and isinstance(result, DeviceInfo):
        info = outputs[0].contents
        info.name = result.name.encode()[:63]
        info.total_memory, info.major, info.minor = result.total_memory, result.major, result.minor
        info.multiprocessors = result.multiprocessors
    elif len(outputs) == 1 and isinstance(outputs[0].contents, _CGroupId):
        ctypes.memmove(outputs[0], bytes(result).ljust(GROUP_ID, b"\0"), GROUP_ID)
    elif len(outputs) == 1:
        outputs[0][0] = result
    elif outputs:
        for pointer, value in zip(outputs, result, strict=True):
            pointer[0] = value
