# SPDX-License-Identifier: Apache-2.0
"""The record of a call: operator, arguments, and the line of the program that made it."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn.parameter import Buffer, Parameter

from op_tools.core.op_names import UPLOADS

# "function": a function of another library, patched by apply_feature.
Level = Literal["api", "aten", "module", "function"]
Direction = Literal["forward", "backward"]

PLAIN = frozenset({Tensor, Parameter, Buffer})  # the types of tensors that tools inspect


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line} {self.function}: {text}"

    @property
    def short(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


@dataclass(slots=True, eq=False)  # not frozen: the constructor is on the hot path
class Call:
    """One call of an operator. `id`: the forward_id of the classic tools, unique in the process."""

    id: int
    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    level: Level = "api"
    direction: Direction = "forward"
    step: int = 0
    module: str = ""
    site: Site | None = None
    sequence: int = field(default=0, repr=False)  # autograd's count before the call
    device: torch.device | None = None
    _inputs: list[Tensor] | None = field(default=None, init=False, repr=False)
    # Makes the call on other arguments, through the tools inside of the one that substitutes it.
    _inside: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = field(
        default=None, init=False, repr=False
    )

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among the arguments, in order; a cached list, which must not be changed."""
        if self._inputs is None:
            self._inputs = tensor_list(self.args, self.kwargs)
        return self._inputs

    def with_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A copy of the record with other arguments."""
        return replace(self, args=args, kwargs=kwargs)

    def through(self, inside: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> Call:
        """A copy of the record whose `run` and `run_on` call `inside` instead of the operator."""
        copy = replace(self)
        copy._inputs, copy._inside = self._inputs, inside
        return copy

    def run(self) -> Any:
        """Call the operator on the recorded arguments."""
        return self.run_on(self.args, self.kwargs)

    def run_on(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the operator on other arguments, in a tool that substitutes the call through the
        tools inside of it.
        """
        return self.func(*args, **kwargs) if self._inside is None else self._inside(args, kwargs)

    @property
    def operator(self) -> str:
        """The last part of the name, as in `LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16`."""
        return _operator(self.name, self.level == "aten" or isinstance(self.func, OpOverload))

    @property
    def where(self) -> str:
        return str(self.site) if self.site is not None else "(unknown line)"


@cache
def _operator(name: str, is_kernel: bool) -> str:
    parts = name.split(".")
    return parts[1] if is_kernel and len(parts) > 1 else parts[-1]


def tensors(*values: Any) -> Iterator[Tensor]:
    """Every tensor among the values and inside their containers, in order."""
    return iter(tensor_list(*values))


def tensor_list(*values: Any) -> list[Tensor]:
    """The tensors of `tensors` as a list."""
    result: list[Tensor] = []
    _collect(values, result)
    return result


def _collect(values: Any, result: list[Tensor]) -> None:
    for value in values:
        if isinstance(value, Tensor):
            result.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, result)
        elif isinstance(value, dict):
            _collect(value.values(), result)


def signature(value: object) -> Hashable:
    """A key for values: equal for calls of equal shapes, types, strides, integers and texts.

    Floating-point numbers do not count: a learning rate may change in every step.
    """
    if isinstance(value, Tensor):
        if value.is_nested or value.layout != torch.strided:
            return str(value.layout), value.dtype
        return value.shape, value.dtype, value.stride(), value.requires_grad
    if isinstance(value, (list, tuple)):
        return tuple(map(signature, value))
    if isinstance(value, dict):
        return tuple((key, signature(item)) for key, item in value.items())
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    return type(value).__name__ if isinstance(value, (float, complex)) else repr(value)[:80]


def held_bytes(tensor: Tensor) -> int:
    """The bytes of a tensor's values."""
    try:
        return tensor.nbytes
    except RuntimeError:  # torch 2.11 has no `nbytes` of a sparse tensor
        return tensor._nnz() * tensor.element_size()


def scan(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.device | None, Tensor | None]:
    """The device of a call, and a tensor of an unusual type; None: there is none. Hot path."""
    device: torch.device | None = None
    unusual: Tensor | None = None
    for tensor in tensor_list(args, kwargs):
        if type(tensor) not in PLAIN:
            unusual = tensor
        if device is None or device.type == "cpu":
            device = tensor.device
    if device is None:
        device = next((v for v in (*args, *kwargs.values()) if type(v) is torch.device), None)
    if device is None and isinstance(kwargs.get("device"), (str, int)):
        device = torch.device(kwargs["device"])
    return device, unusual


def named_device(word: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that a call of `op_names.PLACING` names: `x.to("cuda")`, `x.cuda()`."""
    named = kwargs.get("device")
    second = args[1] if len(args) > 1 else None
    if word in UPLOADS:
        named = second if named is None else named
        named = torch.device(word, named) if type(named) is int else named or word
    elif word == "to" and type(second) in (str, int, torch.device):
        named = second
    if named is None:
        return None
    try:
        return torch.device(named)
    except (RuntimeError, TypeError):  # the call itself raises an error
        return None


def device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device of a call: of its tensors (an accelerator goes before the CPU), else an argument
    that is a device; None: there is none.
    """
    return scan(args, kwargs)[0]


def call_site() -> Site | None:
    """The innermost line of the stack that belongs to the program."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if is_programs(code.co_filename):
            return site_of(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


@cache
def is_programs(file: str) -> bool:
    """Whether a source file is the program's, not torch's, Python's or of this distribution."""
    return not file.startswith(("<frozen", *_INTERNAL))


site_of = cache(Site)  # one object for each line


def _folders() -> tuple[str, ...]:
    here = Path(__file__)
    sources = {here.parents[2], here.resolve().parents[2]}
    packages = ("op_tools", "deeplink", "ditorch", "torch_dipu", "deeplink_vendors")
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    python = tuple(
        str(Path(folder) / part)
        for folder in libraries
        for part in ("threading.py", "contextlib.py", "functools.py", "concurrent", "runpy.py")
    )
    torch_file = Path(torch.__file__)  # an environment may be reached through a symbolic link
    torch_folders = {f"{file.parent}/" for file in (torch_file, torch_file.resolve())}
    own = (f"{folder / package}/" for folder in sources for package in packages)
    return (*torch_folders, *own, *python)


_INTERNAL = _folders()
