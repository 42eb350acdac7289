# SPDX-License-Identifier: Apache-2.0
"""Triton kernels: a launch on a device without Triton raises a documented error, or is interpreted.

DITORCH_TRITON=interpret makes Triton's own interpreter run the kernels on the CPU. Triton decides
when a kernel is defined, and defines kernels itself on import, so ditorch must be active before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from torch.utils._triton import has_triton_package

from deeplink import settings
from deeplink.after_import import call_after_import
from deeplink.errors import DeeplinkError
from ditorch import calls, triton_interpreter
from ditorch.patches import Patches, twin

INTERPRET = "interpret"
REASON = (
    "no Triton compiles kernels for this device. Write the kernel with torch operators, or run "
    "Triton's interpreter on the CPU: deeplink run --triton interpret, or DITORCH_TRITON=interpret"
)


def apply(patches: Patches) -> None:
    """Patch Triton once the program imports it."""
    if settings.DITORCH_TRITON.get() == INTERPRET:
        _refuse_late()
        patches.later(settings.interpret_triton())
        triton_interpreter.apply(patches)
    else:
        for name, kind in (("jit", "JITFunction"), ("autotuner", "Autotuner")):
            _after_import(patches, f"triton.runtime.{name}", kind)


def runs() -> str:
    """Return what runs the kernels of a program: "interpret", "device", or "" for nothing."""
    if settings.DITORCH_TRITON.get() == INTERPRET:
        return INTERPRET
    if not has_triton_package():  # imports it
        return ""
    return "" if _problem() else "device"


def _refuse_late() -> None:
    runtime = sys.modules.get("triton.runtime.jit")
    if runtime is not None and not runtime.knobs.runtime.interpret:
        raise DeeplinkError(
            f"{settings.DITORCH_TRITON.name}={INTERPRET} was requested, but triton is imported "
            "already, and its kernels are defined for a GPU.",
            "import ditorch before triton, or start the program by `deeplink run --triton "
            "interpret`.",
        )


def _after_import(patches: Patches, module: str, kind: str) -> None:
    def check_launches(loaded: ModuleType) -> None:
        calls.belongs_inside(sys.modules["triton"])
        launcher = getattr(loaded, kind)
        run = twin(launcher.run)

        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _problem():
                function = self.fn
                while hasattr(function, "fn"):  # tuned, with heuristics
                    function = function.fn
                calls.missed(f"the Triton kernel {function.__name__}", REASON, fatal=True)
            return run(self, *args, **kwargs)

        patches.replace(launcher, "run", checked)

    patches.later(call_after_import(module, check_launches))


def _problem() -> str:
    """Return why Triton has no device; "" where a vendor's Triton is active."""
    try:
        sys.modules["triton.runtime.driver"].driver.active  # noqa: B018
    except Exception as error:
        return str(error)
    return ""
