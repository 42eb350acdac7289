# SPDX-License-Identifier: Apache-2.0
"""A vendor's shared library over the C ABI: loaded with dlopen, its functions as kernels of ops.

The library may define any subset of the functions of diopi.h. A function that fails returns a
status, which becomes an exception with the library's error text.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deeplink.errors import KernelError, LibraryError, NoKernelError
from deeplink.i18n import _
from diopi import handles, inference, observing, symbols
from diopi.cfunction import Bound, functions, is_number
from diopi.handles import Context
from diopi.inference import Described
from diopi.observing import Observer
from diopi.op import Op, all_ops
from diopi.resolve import device_of

STATUS = {
    handles.ERROR: "diopiErrorOccurred",
    handles.NO_IMPLEMENT: "diopiNoImplement",
    handles.NO_DTYPE: "diopiDtypeNotSupported",
    handles.INVALID: "diopiInvalidArgument",
    handles.OUT_OF_MEMORY: "diopiOutOfMemory",
    handles.TO_CPU: "diopiForceFallbackToCPU",
}
ERRORS: dict[int, type[Exception]] = {
    handles.NO_IMPLEMENT: NoKernelError,
    handles.NO_DTYPE: NoKernelError,
    handles.TO_CPU: NoKernelError,
    handles.OUT_OF_MEMORY: torch.OutOfMemoryError,
}


@dataclass(frozen=True)
class Library:
    """A loaded library: its functions, and the kernels built from them."""

    path: Path
    vendor: str
    version: str
    functions: tuple[str, ...]
    kernels: Mapping[str, Kernel]
    unknown: Mapping[str, str]  # exported names that are no functions -> the nearest function


def load(path: Path, vendor: str = "") -> Library:
    """Load the kernels of a library, by op; LibraryError when it cannot be loaded or called."""
    library = _open(path)
    _handshake(library, path)
    found = [f for f in functions() if hasattr(library, f.name)]
    unknown = symbols.unknown_functions(path, [f.name for f in functions()])
    others = ""
    if unknown:
        others = _(" It exports {names}.").format(names=symbols.format_unknown(unknown))
    if not found:
        raise LibraryError(
            _("{name} has none of the {count} functions of diopi.h.{others}").format(
                name=path.name, count=len(functions()), others=others
            ),
            _(
                'declare them by including diopi.h: a function of C++ needs its extern "C", '
                "and one that is hidden its DIOPI_API."
            ),
        )
    if unknown:
        listed = symbols.format_unknown(unknown)
        message = f"{path.name} exports what is no function of diopi.h: {listed}."
        warnings.warn(message, stacklevel=2)
    name = vendor or _text(library, "diopiGetVendorName") or path.stem
    by_op: dict[str, list[Bound]] = {}
    for function in found:
        bound = Bound(function, all_ops()[function.op], getattr(library, function.name))
        by_op.setdefault(function.op, []).append(bound)
    kernels = {
        op: Kernel(all_ops()[op], tuple(bounds), name, library) for op, bounds in by_op.items()
    }
    return Library(
        path,
        name,
        _text(library, "diopiGetImplVersion"),
        tuple(f.name for f in found),
        kernels,
        unknown,
    )


def include() -> Path:
    """Return the folder of diopi.h and diopi_runtime.h, for a compiler."""
    return Path(__file__).with_name("include")


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        hint = "build it first, or correct the path."
        if path.exists():
            hint = "`ldd` lists the libraries that it needs."
        if "undefined symbol: diopi" in str(error):
            hint = (
                "one unit of the library has to say `#define DIOPI_IMPLEMENTATION` before it "
                "includes diopi_runtime.h."
            )
        raise LibraryError(
            _("{name} does not load: {error}.").format(name=path.name, error=error), hint
        ) from error


def _handshake(library: ctypes.CDLL, path: Path) -> None:
    if not hasattr(library, "diopiAbiVersion") or not hasattr(library, "diopiSetRuntime"):
        raise LibraryError(
            _(
                "{name} is no library of the operator interface: it exports no diopiAbiVersion."
            ).format(name=path.name),
            _(
                "one unit of it has to say `#define DIOPI_IMPLEMENTATION` before it "
                "includes diopi_runtime.h."
            ),
        )
    library.diopiAbiVersion.restype = ctypes.c_uint32
    version = int(library.diopiAbiVersion())
    if version != handles.ABI:
        raise LibraryError(
            _("{name} speaks ABI {version}; this diopi speaks ABI {abi}.").format(
                name=path.name, version=version, abi=handles.ABI
            ),
            _("build it against the diopi_runtime.h of this version."),
        )
    library.diopiSetRuntime.argtypes = [c_void_p]
    status = library.diopiSetRuntime(ctypes.addressof(handles.RUNTIME))
    if status != handles.OK:
        raise LibraryError(f"{path.name} refuses the runtime: {STATUS.get(status, status)}.")


def _text(library: ctypes.CDLL, name: str) -> str:
    if not hasattr(library, name):
        return ""
    function = getattr(library, name)
    function.restype = c_char_p
    return (function() or b"").decode(errors="replace")


class Kernel:
    """The functions of a library that implement one op, as one kernel with the op's arguments.

    It raises NoKernelError for arguments that none of the functions accepts.
    """

    def __init__(
        self, op: Op, functions: tuple[Bound, ...], vendor: str, library: ctypes.CDLL
    ) -> None:
        self.op = op
        self.__name__ = op.name
        self.may_refuse = True  # a refused call makes the op use its next route
        self.functions = functions
        self.vendor = vendor
        self._library = library

    @property
    def last_error(self) -> int:
        """Return the address of the function that returns the library's last error text."""
        entry = ctypes.cast(self._library.diopiGetLastErrorString, c_void_p)
        return entry.value or 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self._bound(args, kwargs)
        return self._run(given, inference.results(self.op.meaning, *self._ordered(given)), None)

    def into(self, results: Sequence[Any] | None, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel into results of the caller;
        None for a result that the library allocates.
        """
        return self._run(self._bound(args, kwargs), None, results)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        arguments = self.op.arguments
        if len(args) > len(arguments):
            raise TypeError(f"{self.op.name} takes {len(arguments)} arguments, not {len(args)}")
        given = dict(zip((a.name for a in arguments), args, strict=False)) | dict(kwargs)
        for argument in arguments:
            if argument.name not in given:
                if argument.required:
                    raise TypeError(f"{self.op.name} lacks its argument {argument.name!r}")
                given[argument.name] = argument.default
        unknown = given.keys() - {a.name for a in arguments}
        if unknown:
            raise TypeError(f"{self.op.name} has no argument {', '.join(sorted(unknown))}")
        return given

    def _ordered(self, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Order the arguments: positional where the op takes them so."""
        arguments = self.op.arguments
        return (
            tuple(given[a.name] for a in arguments if not a.kwarg_only),
            {a.name: given[a.name] for a in arguments if a.kwarg_only},
        )

    def _run(
        self,
        given: dict[str, Any],
        expected: inference.Results | None,
        results: Sequence[Any] | None,
    ) -> Any:
        function, taken = self._fitting(given)
        device = device_of((), given)
        observer = observing.current()
        if results is None and expected is not None:
            results = [_made(kind, device, observer) for kind in expected]
        if results is None:
            if not function.allocates:
                inference.explain(self.op.meaning, *self._ordered(given))
                raise KernelError(
                    f"{self.op.name}: the sizes of its results are unknown before the call."
                )
            results = [None] * len(self.op.returns)
        with Context(device) as call:
            arguments = function.arguments(call, taken, results)
            observer.before(self.op, function.name, taken)
            self._check(function, function.entry(call.address, *arguments), call)
            observer.after(self.op, function.name, results)
            found = function.results(call, arguments, results)
        return found[0] if len(found) == 1 else tuple(found)

    def _fitting(self, given: dict[str, Any]) -> tuple[Bound, dict[str, Any]]:
        """Select the function that accepts these arguments;
        convert a number to a tensor if none does.
        """
        for function in self.functions:
            if function.fits(given):
                return function, given
        tensors = {a.name for a in self.op.arguments if a.type == "Tensor"}
        wrapped = {
            name: _wrapped(value, given) if name in tensors and is_number(value) else value
            for name, value in given.items()
        }
        for function in self.functions:
            if function.fits(wrapped):
                return function, wrapped
        names = ", ".join(function.name for function in self.functions)
        raise NoKernelError(
            _("{vendor}'s {names} cannot take these arguments of {name}: {names2}.").format(
                vendor=self.vendor,
                names=names,
                name=self.op.name,
                names2="; ".join(filter(None, (f.refusal(given) for f in self.functions))),
            ),
            _("give {name} a kernel in Python, which sees every argument.").format(
                name=self.op.name
            ),
        )

    def _check(self, function: Bound, status: int, call: Context) -> None:
        if status == handles.OK:
            return
        said = call.error or _text(self._library, "diopiGetLastErrorString")
        kind = ERRORS.get(status, KernelError)
        text = (
            f"{self.vendor}'s {function.name} failed with "
            f"{STATUS.get(status, f'status {status}')}: {said or 'it gave no reason'}."
        )
        raise kind(text)


def _made(kind: Any, device: torch.device, observer: Observer) -> Any:
    if isinstance(kind, Described):
        return observer.result(kind, device)
    return [_made(one, device, observer) for one in kind] if isinstance(kind, tuple) else None


def _wrapped(value: Any, given: Mapping[str, Any]) -> Tensor:
    """Convert a number to a tensor without dimensions, of the type that promotion gives it."""
    others = [v for v in given.values() if isinstance(v, Tensor)]
    dtype = torch.result_type(others[0], value) if others else torch.tensor(value).dtype
    # the number itself is not rounded to a half type: kernels compute in float32
    wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
    return torch.tensor(value, dtype=wide.get(dtype, dtype), device=device_of((), given))
