"""Code from outside of torch that may write a tensor's memory, which nothing of ours would see.

While there is none, what was found of a tensor holds until a call is seen to write it, and tensors
may wait for others between two calls. Such code is either built with torch, so that it is handed
tensors, or it works by the address of their memory, which a program has to ask them for.
"""

from __future__ import annotations

import importlib.metadata
import mmap
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

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
SHARING = frozenset("cupy jax numba.cuda pycuda taichi tensorflow warp".split())

# Libraries by which Triton launches what it has compiled.
_LAUNCHERS = ("__triton_launcher", "cuda_utils", "hip_utils")

# Built with torch, and called by its dispatcher alone.
_OF_TORCH = frozenset("torch functorch torchaudio torchvision".split())

Told = Callable[[], None]
_told: list[Told] = []
_hearing = False

# by name; while there is one, what it does to tensors is not seen
groups: dict[Any, Any] = (
    torch.distributed.distributed_c10d._world.pg_map if torch.distributed.is_available() else {}
)


def begin(told: Told) -> bool:
    """Whether torch is alone; if it is, `told` is called when that ends, before `end(told)`."""
    global _hearing
    if not _hearing:
        sys.addaudithook(_heard)
        _hearing = True
    sharing = any(name in sys.modules for name in SHARING)
    if groups or sharing or _has_compiled() or any(map(_is_guest, _libraries())):
        return False
    _told.append(told)
    return True


def end(told: Told) -> None:
    """Nobody is to be told any more."""
    if told in _told:
        _told.remove(told)


def met(name: str) -> None:
    """A function of torch's is about to be called, for the first time since tools changed."""
    if not ADDRESSES.isdisjoint(name.split(".")):
        _tell()


def _tell() -> None:
    while _told:
        _told.pop()()


def _heard(event: str, args: tuple[Any, ...]) -> None:
    """What Python tells before it loads a module, the library of one, or code that was compiled."""
    if not _told or event not in ("import", "exec"):
        return
    try:
        if _is_import_of_other(*args[:2]) if event == "import" else _is_compilers():
            _tell()
    except Exception as error:  # a tool must not kill the program that it watches
        diagnostics.add("op_tools", "outsiders", error)


def _is_import_of_other(name: str, file: str | None) -> bool:
    return name in SHARING or (file is not None and _is_guest(str(file)))


def _is_compilers() -> bool:
    """Whether it is torch.compile that runs code, which launches kernels of its own."""
    return str(sys._getframe(2).f_globals.get("__name__")).startswith("torch._inductor.")


def _has_compiled() -> bool:
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    return cache is not None and bool(getattr(cache, "modules", True))


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
        with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as held:
            return held.find(b"N3c10") >= 0  # a name of C++'s in the namespace c10
    except (OSError, ValueError):  # it is gone, or empty
        return True


@cache
def _at_home() -> frozenset[str]:
    """Folders of packages that are part of torch, or a device's for it."""
    devices = importlib.metadata.entry_points(group="torch.backends")
    return _OF_TORCH | {point.value.partition(":")[0].partition(".")[0] for point in devices}
