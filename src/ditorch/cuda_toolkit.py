# SPDX-License-Identifier: Apache-2.0
"""CUDA's compiler and libraries: a program that asks for them gets one clear error.

A call that would work on this machine (a CUDA toolkit or driver is installed) is not changed.
"""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from deeplink.after_import import call_after_import
from ditorch import calls
from ditorch.patches import Patches, twin

COMPILER = (
    "it compiles CUDA C++, for which this machine has no compiler (CUDA_HOME), and the device does "
    "not run it. Compile C++ for the host (CppExtension; load_inline without cuda_sources), use "
    "torch operators, or the vendor's own builder of extensions"
)
LIBRARY = "use the functions of torch.cuda, and torch.distributed in place of NCCL."
_LIBRARIES = re.compile(
    r"(^|/)(lib(cuda|cudart|nvrtc|cublas|cublasLt|cudnn\w*|cufft|curand|cusolver|cusparse|nccl|"
    r"nvToolsExt|nvidia-ml)\.so[.\d]*|nvcuda\.dll)$"
)


class NoCudaLibrary(calls.Unsupported, OSError):
    """A library of CUDA could not be loaded; an OSError, which programs catch to do without it."""


def _always(given: Mapping[str, Any]) -> bool:
    return True


def _from_text(given: Mapping[str, Any]) -> bool:
    return bool(given.get("cuda_sources") or given.get("with_cuda"))


def _from_files(given: Mapping[str, Any]) -> bool:
    sources = given.get("sources") or ()
    files = [sources] if isinstance(sources, str) else sources
    return bool(given.get("with_cuda")) or any(str(f).endswith((".cu", ".cuh")) for f in files)


# functions of torch.utils.cpp_extension, with the arguments that ask for CUDA's compiler
BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = MappingProxyType(
    {"CUDAExtension": _always, "load_inline": _from_text, "load": _from_files}
)


def apply(patches: Patches) -> None:
    """Patch the functions that build CUDA C++, and the class that loads libraries."""
    module = "torch.utils.cpp_extension"
    patches.later(call_after_import(module, lambda loaded: _check_builders(patches, loaded)))
    load = twin(ctypes.CDLL.__init__)

    def checked(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        try:
            load(self, name, *args, **kwargs)
        except OSError as error:
            if isinstance(name, str) and _LIBRARIES.search(name):
                message = f"cannot load {name}: it is a library of CUDA, which is not here."
                raise NoCudaLibrary(message, LIBRARY) from error
            raise

    patches.replace(ctypes.CDLL, "__init__", checked)


def _check_builders(patches: Patches, module: ModuleType) -> None:
    for name, asks in BUILDERS.items():
        _check(patches, module, name, asks)


def _check(
    patches: Patches, module: ModuleType, name: str, asks: Callable[[Mapping[str, Any]], bool]
) -> None:
    build = twin(getattr(module, name))
    signature = inspect.signature(build)

    def checked(*args: Any, **kwargs: Any) -> Any:
        if module.CUDA_HOME is None and asks(signature.bind(*args, **kwargs).arguments):
            full_name = f"torch.utils.cpp_extension.{name}"
            asked = full_name if asks is _always else f"{full_name} with CUDA sources"
            calls.missed(asked, COMPILER, fatal=True)
        return build(*args, **kwargs)

    patches.replace(module, name, checked)
