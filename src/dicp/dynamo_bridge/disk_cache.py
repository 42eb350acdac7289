# SPDX-License-Identifier: Apache-2.0
"""Compiled partitions on disk: keyed by their content, written atomically."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from deeplink import settings
from deeplink.native import folder_of
from deeplink.tensors import bytes_of
from dicp import torch_internals
from dicp.backend import GraphCompiler

log = logging.getLogger("dicp")


def key(gm: fx.GraphModule, backend: GraphCompiler, constants: Mapping[str, Tensor]) -> str:
    """Return a key that is equal for equal graphs, shapes, strides, constants, compilers and torch
    versions, in any process.
    """
    digest = hashlib.sha256()
    digest.update(repr(head(backend)).encode())
    names: dict[fx.Node, str] = {}
    for node in gm.graph.nodes:
        names[node] = f"%{len(names)}"
        args, kwargs = tree_map(_written(names), (node.args, node.kwargs), is_leaf=_is_node)
        # constants are identified by their names
        name = node.name if node.op == "placeholder" else ""
        row = (node.op, name, _name(node.target), args, kwargs, known(node.meta.get("val")))
        digest.update(repr(row).encode())
    for name, tensor in sorted(constants.items()):
        digest.update(repr((name, known(tensor))).encode())
        if backend.embeds:
            digest.update(bytes_of(tensor))
    return digest.hexdigest()


def head(backend: GraphCompiler) -> tuple[str, ...]:
    """Return the start of every key of a backend: the compiler, torch, the code of the emitter,
    and the backend's options.
    """
    taken = [_name(target) for target in (*backend.conversions, *backend.keep)]
    fused = backend.patterns and sorted(backend.patterns), sorted(backend.activations)
    form = backend.layout, backend.dynamic, backend.devices, backend.through_host
    about = repr((sorted(taken), fused, form))
    return (
        backend.name,
        backend.version(),
        torch_internals.torch_version(),
        _code(backend),
        hashlib.sha256(about.encode()).hexdigest(),
    )


@lru_cache
def _code(backend: GraphCompiler) -> str:
    """Hash the code of dicp and of the folders with a backend's functions,
    so that edits invalidate.
    """
    own = [backend.emitter, backend.load, backend.compile, *backend.conversions.functions()]
    own += [backend.whole] if backend.whole else []
    modules = {sys.modules.get(getattr(f, "__module__", "")) for f in own}
    files = {str(getattr(module, "__file__", None) or __file__) for module in modules}
    digest = hashlib.sha256()
    for folder in sorted({folder_of("dicp"), *(Path(file).parent for file in files)}):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _name(target: Any) -> str:
    """Return a name that is equal in any process: the repr of a Python function has its address."""
    plain = isinstance(target, (str, torch._ops.OpOverload))
    return str(target) if plain else f"{target.__module__}.{target.__qualname__}"


def _is_node(value: Any) -> bool:
    return isinstance(value, fx.Node)


def _written(names: Mapping[fx.Node, str]) -> Callable[[Any], Any]:
    return lambda value: names[value] if isinstance(value, fx.Node) else str(value)


def known(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [known(one) for one in value]
    if not isinstance(value, Tensor):
        return str(value)
    sizes, strides = [str(n) for n in value.shape], [str(n) for n in value.stride()]
    return str(value.dtype), sizes, strides, str(value.device)


def find(key: str, backend: GraphCompiler, kind: str = "blob") -> bytes | None:
    """Return the blob of a key; None where there is none."""
    return _read(_path(key, backend, kind))


def load(key: str, backend: GraphCompiler, kind: str) -> Any:
    """Return the object of a key; None where there is none, or none that can be read here."""
    path = _path(key, backend, kind)
    blob = _read(path)
    try:
        return None if blob is None else pickle.loads(blob)
    except Exception as error:  # a foreign file may contain anything
        log.warning("%s cannot be read, recompiling: %s", path, error)
        path.unlink(missing_ok=True)
        return None


def _path(key: str, backend: GraphCompiler, kind: str) -> Path:
    return settings.DICP_CACHE_DIR.get() / backend.name / f"{key}.{kind}"


def get(
    key: str, backend: GraphCompiler, make: Callable[[], bytes], kind: str = "blob"
) -> tuple[bytes, bool]:
    """Return the blob of a key, cached or created, and whether it was cached.

    Of several processes with one key, one creates the blob and the others wait. A folder that
    cannot be written is no error: the blob is created.
    """
    path = _path(key, backend, kind)
    found = _read(path)
    if found is not None:
        return found, True
    try:
        with _locked(path):
            found = _read(path)  # another process was first
            if found is not None:
                return found, True
            blob = make()
            _write(path, blob)
            return blob, False
    except OSError:
        return make(), False


def _read(path: Path) -> bytes | None:
    """Return a blob whose hash is correct; a torn or foreign file counts as missing."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    blob = data[32:]
    if hashlib.sha256(blob).digest() == data[:32]:
        return blob
    log.warning("%s is damaged, or not a file of dicp: recompiling", path)
    return None


def _write(path: Path, blob: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.part")
    temporary.write_bytes(hashlib.sha256(blob).digest() + blob)
    temporary.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the end of the process, too
        yield
