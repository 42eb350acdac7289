# SPDX-License-Identifier: Apache-2.0
"""torch.compile with inductor: its C++ for the CPU, on the device's own memory.

The graph stays on the device: inductor allocates device tensors and calls the device's operators.
The C++ kernels that it writes get the host's addresses of the same bytes, which needs a chip whose
memory the host reaches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from deeplink.after_import import call_after_import
from deeplink.errors import DeeplinkError
from torch_dipu import _C, dipu

# What inductor does for C++ by itself, but only for a device that is named "cpu". It concerns no
# other device of this process: CUDA is hidden.
CONFIGURATION = {
    "cuda_backend": "cpp",  # the code of every device without a setting of its own
    "loop_ordering_after_fusion": False,
    "loop_reindexing_after_fusion": False,
    "loop_index_inversion_in_fusion": False,
}
LAUNCH = "dipu_launch"


def register() -> None:
    """Offer the classes by the names that torch reads from the device module."""
    dipu._inductor_backend_init = _register_backend  # torch 2.15
    for name in ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"):
        dipu.LAZY[name] = functools.partial(getattr, _Lazy(), name)
    call_after_import("torch._inductor.config", _configure)


class _Lazy:
    """The classes of this module, which exist once inductor is imported."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_classes(), name)


def _configure(config: ModuleType) -> None:
    for name, value in CONFIGURATION.items():
        if hasattr(config, name):
            setattr(config, name, value)


def _register_backend() -> None:
    from torch._inductor.codegen.common import register_backend_for_device

    made = _classes()
    register_backend_for_device(
        "dipu",
        made.Scheduling,
        made.PythonWrapperCodegen,
        made.CppWrapperCodegen,
        made.WrapperFxCodegen,
    )


def launch(kernel: Callable[..., Any], *arguments: Any) -> None:
    """Call a C++ kernel of inductor with the host's aliases of device tensors."""
    _C.launch_kernel(kernel, arguments)


def _refuse_unreachable_memory() -> None:
    if not _C.host_reachable(dipu.current_device()):
        raise DeeplinkError(
            "inductor compiles for the host, which cannot reach this chip's memory.",
            hint='torch.compile(backend="aot_eager") works on any chip.',
        )


@functools.cache
def _classes() -> SimpleNamespace:
    from torch._inductor.codegen import common, wrapper
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.codegen.cpu_device_op_overrides import CpuDeviceOpOverrides
    from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen
    from torch._inductor.virtualized import V

    Python: Any = wrapper.PythonWrapperCodegen
    Subgraph: Any = wrapper.SubgraphPythonWrapperCodegen
    Cpp: Any = CppScheduling

    class DeviceCalls(Python):  # type: ignore[misc]
        """What differs from the CPU in the Python that calls the kernels."""

        @staticmethod
        def create(
            is_subgraph: bool,
            subgraph_name: str | None,
            parent_wrapper: Any,
            partition_signatures: Any = None,
        ) -> Any:
            kind: Any = SubgraphWrapper if is_subgraph else Wrapper
            given = (subgraph_name, parent_wrapper, partition_signatures) if is_subgraph else ()
            return kind(*given)

        def make_allocation(self, name: str, device: torch.device, *args: Any, **kw: Any) -> Any:
            line = super().make_allocation(name, device, *args, **kw)
            if device.type == "dipu" and device.index is not None:
                line = line.replace("device='dipu'", f"device='{device}'")
            return line

        def _generate_kernel_call_helper(
            self, kernel_name: str, call_args: Any, *, device: Any = None, **kw: Any
        ) -> None:
            device = device or V.graph.get_current_device_or_throw()
            if device.type == "dipu":
                self.writeline(self.wrap_kernel_call(LAUNCH, [kernel_name, *call_args]))
            else:
                super()._generate_kernel_call_helper(kernel_name, call_args, device=device, **kw)

    class Wrapper(DeviceCalls):
        def write_header(self) -> None:
            super().write_header()
            self.imports.writeline(f"from {__name__} import launch as {LAUNCH}")

    class SubgraphWrapper(DeviceCalls, Subgraph):  # type: ignore[misc]
        """Has the imports of its parent."""

    class Scheduling(Cpp):  # type: ignore[misc]
        def __init__(self, scheduler: Any) -> None:
            _refuse_unreachable_memory()
            super().__init__(scheduler)

    class CppWrapperCodegen:
        @staticmethod
        def create(*args: Any, **kwargs: Any) -> Any:
            raise DeeplinkError(
                "inductor's C++ wrapper has no form for this device.",
                hint="torch._inductor.config.cpp_wrapper = False",
            )

    common.get_device_op_overrides("cpu")  # registers torch's own first
    common.register_device_op_overrides("dipu", CpuDeviceOpOverrides())
    return SimpleNamespace(
        Scheduling=Scheduling,
        PythonWrapperCodegen=DeviceCalls,
        CppWrapperCodegen=CppWrapperCodegen,
        WrapperFxCodegen=WrapperFxCodegen,
    )
