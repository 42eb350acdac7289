"""Code from outside of torch that may write a tensor's memory, which nothing of ours would see.

While there is none, what was found of a tensor holds until a call is seen to write it, and tensors
may wait for others between two calls. Such code is either built with torch, so that it is handed
tensors, or it works by the address of their memory, which a program has to ask them for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import mmap
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from deeplink import settings
from op_tools import diagnostics

# What tells where a tensor's memory is, or gives all of it.
ADDRESSES = frozenset(
    """
    data_ptr __dlpack__ __cuda_array_interface__ untyped_storage storage _typed_storage
    """.split()
)

# Others that share memory with torch by ways that are not seen.
SHARING = frozenset("cupy jax jaxlib numba.cuda pycuda taichi tensorflow warp".split())

# Libraries by which Triton launches what it has compiled.
_LAUNCHERS = ("__triton_launcher", "cuda_utils", "hip_utils")

# Built with torch, and called by its dispatcher alone.
_OF_TORCH = frozenset("torch functorch torchaudio torchvision".split())

Told = Callable[[], None]
_told: list[Told] = []
_undo: list[tuple[Any, str, Any, Any]] = []

# by name; while there is one, what it does to tensors is not seen
groups: dict[Any, Any] = (
    torch.distributed.distributed_c10d._world.pg_map if torch.distributed.is_available() else {}
)


def begin(told: Told) -> bool:
    """Whether torch is alone; if it is, `told` is called when that ends, before `end(told)`."""
    sharing = any(name in sys.modules for name in SHARING)
    if groups or sharing or _has_compiled() or any(map(_is_guest, _libraries())):
        return False
    if not _told:
        _listen()
    _told.append(told)
    return True


def end(told: Told) -> None:
    """Nobody is to be told any more."""
    if told in _told:
        _told.remove(told)
    if not _told:
        _listen_no_more()


def forget() -> None:
    """In a forked child: nothing of its parent's is to be touched there."""
    _told.clear()
    _listen_no_more()


def met(name: str) -> None:
    """A function of torch's is about to be called, for the first time since tools changed."""
    if not ADDRESSES.isdisjoint(name.split(".")):
        _tell()


def _tell() -> None:
    while _told:
        try:
            _told.pop()()
        except Exception as error:  # a tool must not kill the program that it watches
            diagnostics.add("op_tools", "outsiders", error)
    _listen_no_more()


# What comes later: Python loads every library of a module by one method, and one function of
# torch's is the way to its compiler. (An audit hook of Python's would be told of both, but also of
# each frame that a tool looks at, thousands of times in a step.)


def _listen() -> None:
    for owner, name, wrapped in (
        (ExtensionFileLoader, "create_module", _before_library),
        (torch, "compile", _before_compiler),
    ):
        plain = vars(owner)[name]
        ours = wrapped(plain)
        _undo.append((owner, name, plain, ours))
        setattr(owner, name, ours)


def _listen_no_more() -> None:
    while _undo:
        owner, name, plain, ours = _undo.pop()
        if vars(owner)[name] is ours:
            setattr(owner, name, plain)


def _before_library(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def create_module(loader: ExtensionFileLoader, spec: ModuleSpec) -> Any:
        names = {spec.name.rsplit(".", count)[0] for count in range(spec.name.count(".") + 1)}
        if not SHARING.isdisjoint(names) or _is_guest(str(spec.origin)):
            _tell()
        return plain(loader, spec)

    return create_module


def _before_compiler(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def compile(*args: Any, **kwargs: Any) -> Any:
        _tell()
        return plain(*args, **kwargs)

    return compile


def _has_compiled() -> bool:
    """Whether torch.compile was asked for anything: what it makes launches kernels of its own."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", {})
    return any(backend is not None for backend in backends.values())


def _libraries() -> Iterator[str]:
    """The libraries of modules that this process has loaded, by whatever way."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:  # not Linux
        yield from (str(getattr(module, "__file__", "")) for module in [*sys.modules.values()])
        return
    yield from {line.split(maxsplit=5)[5] for line in lines if line.endswith(".so")}


@cache
def _is_guest(file: str) -> bool:
    """Whether a library is one of a module that calls torch or launches kernels, and not torch's
    own or ours.
    """
    path = Path(file)
    if path.suffix not in (".so", ".pyd") or path.name.startswith("lib"):
        return False
    if path.name.startswith(_LAUNCHERS):
        return True
    if not _at_home().isdisjoint(path.parts) or settings.DIPU_BUILD_DIR.get() in path.parents:
        return False
    try:
        with (
            path.open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as held,
        ):
            return held.find(b"N3c10") >= 0  # a name of C++'s in the namespace c10
    except (OSError, ValueError):  # it is gone, or empty
        return True


@cache
def _at_home() -> frozenset[str]:
    """Folders of packages that are part of torch, or a device's for it."""
    devices = importlib.metadata.entry_points(group="torch.backends")
    return _OF_TORCH | {point.value.partition(":")[0].partition(".")[0] for point in devices}
