# SPDX-License-Identifier: Apache-2.0
"""The functions that a SPEC names: of a file, a module, an object, a folder, a registration or a
library.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from deeplink.errors import DeeplinkError, VendorBrokenError
from diopi import cabi
from diopi.conformance.outside.spec import Spec

Kernel = Callable[..., Any]
IMPLEMENTATION = re.compile(r"(?P<op>.+?)_implementation(?:_v\d+)?\.py")
REFERENCE, CANDIDATE = "Model", "ModelNew"  # the classes of a KernelBench problem


@dataclass(frozen=True)
class Source:
    """The functions of a SPEC by name, and where each is from."""

    functions: Mapping[str, Kernel] = field(default_factory=dict)
    exact: Mapping[str, Kernel] = field(default_factory=dict)  # op -> kernel, arguments as the op
    problems: tuple[tuple[str, ModuleType, ModuleType], ...] = ()  # name, reference, candidate
    missing: tuple[tuple[str, str], ...] = ()  # files without a kernel, and the reason


def read(spec: Spec) -> Source:
    """Load the functions of a SPEC; DeeplinkError when there is none."""
    found = _read(spec.source)
    if not (found.functions or found.exact or found.problems):
        more = "".join(f"\n  {name}: {reason}" for name, reason in found.missing)
        raise DeeplinkError(
            f"{spec.source} has no function that could be a kernel.{more}",
            "a public function named like an operator (def softmax(x, dim): …), or "
            "module:function of one that registers kernels.",
        )
    return found


def _read(source: str) -> Source:
    path = Path(source)
    if path.suffix == ".so":
        return Source(exact=cabi.load(path).kernels)
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".py" or path.is_file():
        return _of_file(path)
    name, _, attribute = source.partition(":")
    if name.endswith(".py"):
        return _chosen(source, Path(name), attribute)
    return _chosen(source, None, attribute)


def _of_file(path: Path) -> Source:
    if not path.is_file():
        raise DeeplinkError(f"no file {path}.", "the path of a Python file, or a module's name.")
    with _registrations() as registered:
        module = load_file(path)
    if hasattr(module, CANDIDATE):
        reference = module if hasattr(module, REFERENCE) else _problem_beside(path)
        return Source(problems=((path.stem, reference, module),))
    return Source(registered | _defined(module))


def _problem_beside(path: Path) -> ModuleType:
    """Return the module with Model in the folder of a file that has ModelNew alone."""
    for other in sorted(path.parent.glob("*.py")):
        if other != path and re.search(r"^class Model\b", other.read_text("utf-8"), re.MULTILINE):
            return load_file(other)
    raise DeeplinkError(
        f"{path.name} has {CANDIDATE} and no {REFERENCE}, which it is compared with.",
        f"put the problem with {REFERENCE}, get_inputs and get_init_inputs into its folder.",
    )


def _chosen(source: str, path: Path | None, attribute: str) -> Source:
    """Return what `module:object` has: kernels, or what it registers when it is called."""
    name = source.partition(":")[0]
    with _registrations() as registered:
        module = load_file(path) if path else _imported(name)
        chosen: Any = module
        for part in attribute.split(".") if attribute else ():
            try:
                chosen = getattr(chosen, part)
            except AttributeError:
                raise DeeplinkError(
                    f"{name} has no {attribute!r}.", "module:object, of an object in the module."
                ) from None
        registers = attribute and inspect.isroutine(chosen) and _takes_nothing(chosen)
        if registers:
            chosen()
    if registered:
        return Source(registered)
    if registers:
        raise DeeplinkError(
            f"{source}() registered no kernel of torch.library.",
            "name the module alone if it has the kernels as functions.",
        )
    if isinstance(chosen, ModuleType):
        return Source(_defined(chosen))
    if callable(chosen) and not inspect.isclass(chosen):
        return Source({attribute.rpartition(".")[2]: chosen})
    return Source(_members(chosen() if inspect.isclass(chosen) else chosen))


def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
               for p in parameters)  # fmt: skip


def _members(source: Any) -> dict[str, Kernel]:
    if isinstance(source, Mapping):
        return dict(source)
    rows = inspect.getmembers(source, callable)
    return {name: value for name, value in rows if not name.startswith("_")}


def _defined(module: ModuleType) -> dict[str, Kernel]:
    """Return the public functions that a module or its package defines, without Triton's."""
    home = module.__name__.partition(".")[0]
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isroutine(value)
        and (getattr(value, "__module__", "") or "").partition(".")[0] == home
    }


def _folder(path: Path) -> Source:
    """Read a folder of BackendBench, of problems of KernelBench, or of Python files."""
    if (path / "__init__.py").is_file():
        return _of_file(path / "__init__.py")
    functions: dict[str, Kernel] = {}
    problems: list[tuple[str, ModuleType, ModuleType]] = []
    missing: list[tuple[str, str]] = []
    for folder in sorted(one for one in path.iterdir() if one.is_dir()):
        files = [one for one in folder.glob("*.py") if IMPLEMENTATION.fullmatch(one.name)]
        if not files:
            continue
        file = sorted(files)[0]  # BackendBench runs the first version as well
        wanted = f"{folder.name}_kernel_impl"
        with _registrations():
            module = load_file(file)
        mine = _defined(module)
        chosen = mine.get(wanted) or next(
            (mine[name] for name in mine if name.endswith("kernel_impl")), None
        )
        if chosen is None:
            missing.append((str(file.relative_to(path)), f"it has no function {wanted}"))
        else:
            functions[folder.name] = chosen
    if functions or missing:
        return Source(functions, missing=tuple(missing))
    for file in sorted(path.glob("*.py")):
        text = file.read_text("utf-8")
        if re.search(rf"^class {CANDIDATE}\b", text, re.MULTILINE):
            problems += _of_file(file).problems
        elif not re.search(rf"^class {REFERENCE}\b", text, re.MULTILINE):
            functions |= _of_file(file).functions
    return Source(functions, problems=tuple(problems))


def load_file(path: Path) -> ModuleType:
    """Import a file as a module of its own; its folder is importable while it loads."""
    name = f"_kernels_of_{re.sub(r'[^0-9A-Za-z_]', '_', str(path.resolve()))}"
    made = importlib.util.spec_from_file_location(name, path)
    assert made is not None and made.loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules[name] = module  # dataclasses and Triton find the module there
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        made.loader.exec_module(module)
    except Exception as error:  # another author's file: whatever it raises is reported
        raise _broken(str(path), error) from error
    finally:
        sys.path.remove(folder)
    return module


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # another author's module
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> VendorBrokenError:
    hint = "import it by hand to see where."
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "triton":
        hint = "pip install --no-deps triton; --interpret then runs its kernels without a GPU."
    elif isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        hint = "SPEC is a file (kernels.py), a folder, a module, or module:object."
    text = f"the kernels in {name} do not load: {type(error).__name__}: {error}."
    return VendorBrokenError(text, hint)


def checksum(kernel: Any) -> str:
    """Return a checksum of the Python files in the folder of a kernel, which it may import, and of
    torch's version; "" where the kernel has no file.
    """
    try:
        file = Path(inspect.getfile(inspect.unwrap(kernel)))
        files = {file, *file.parent.glob("*.py")}
    except (TypeError, OSError):
        return ""
    digest = hashlib.sha256(torch.__version__.encode())
    for one in sorted(files):
        digest.update(one.read_bytes())
    return digest.hexdigest()[:32]


@contextmanager
def _registrations() -> Iterator[dict[str, Kernel]]:
    """Record what the block registers on ATen operators, and register nothing of it.

    The suite calls the functions itself. So the kernels of a package for a GPU run on the CPU, too,
    and what a kernel calls of torch is torch's.
    """
    found: dict[str, Kernel] = {}
    genuine = torch.library.Library.impl

    def impl(self: Any, op_name: Any, fn: Kernel, *args: Any, **kwargs: Any) -> Any:
        key = str((args[0] if args else kwargs.get("dispatch_key", "")) or self.dispatch_key)
        torchs = (getattr(fn, "__module__", None) or "").partition(".")[0] == "torch"
        if self.ns != "aten" or key == "Meta" or torchs or not callable(fn):
            return genuine(self, op_name, fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        name = op_name if isinstance(op_name, str) else str(op_name)
        found[name.removeprefix("aten::").removeprefix("aten.").removesuffix(".default")] = fn
        return None

    torch.library.Library.impl = impl  # type: ignore[method-assign]
    try:
        yield found
    finally:
        torch.library.Library.impl = genuine  # type: ignore[method-assign]
