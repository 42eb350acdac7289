# SPDX-License-Identifier: Apache-2.0
"""One activation: choose the vendor, patch by table, and undo the patches."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import torch

from deeplink import settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.vendor import Vendor, choose, set_active
from ditorch import (
    calls,
    cuda_namespace,
    cuda_toolkit,
    distributed,
    greeting,
    library_keys,
    native,
    private_names,
    redirect,
    reductions,
    surface,
    torchscript,
    triton_kernels,
)
from ditorch.patches import Patches
from ditorch.target import Target, load

# migration tools without a vendor here; those of a vendor are in its record
OTHER_TOOLS = ("torchada", "habana_frameworks.torch.gpu_migration")


@dataclass
class Session:
    """The active patches; `target` is None where nothing had to change."""

    vendor: Vendor
    why: str
    target: Target | None = None
    hook_problem: str = ""
    patches: Patches = field(default_factory=Patches)


_session: Session | None = None


def current() -> Session | None:
    """Return the active session, if there is one."""
    return _session


def activate(vendor: str | None = None) -> Session:
    """Make CUDA code run on the vendor's device; a second call changes nothing."""
    global _session
    if _session is not None:
        _refuse_another(vendor, _session.vendor)
        return _session
    choice = choose(vendor)
    session = Session(choice.vendor, choice.why)
    if choice.vendor.device == "cuda":
        greeting.print_line(
            f"ditorch: {choice.vendor.label} is CUDA to torch already, nothing is changed"
        )
    else:
        _refuse_conflicts(choice.vendor)
        session.target = load(choice.vendor)
        try:
            _apply(session, session.target)
        except BaseException:
            session.patches.undo()  # all or nothing
            raise
        greeting.print_line(greeting.line_for(session.target, session.hook_problem))
    _session = session
    set_active(session.vendor)
    return session


def undo() -> None:
    """Remove all patches of ditorch; a vendor's device stays registered with torch."""
    global _session
    if _session is not None:
        _session.patches.undo()
        _session = None
        set_active(None)


def _apply(session: Session, target: Target) -> None:
    patches = session.patches
    calls.strict = settings.DITORCH_STRICT.get
    session.hook_problem = native.install(patches, target)
    if session.hook_problem:
        redirect.apply(patches, target)
    cuda_namespace.apply(patches, target)
    private_names.apply(patches, target)
    surface.apply(patches, target)
    library_keys.apply(patches, target)
    torchscript.apply(patches, target)
    distributed.apply(patches, target)
    reductions.apply(patches, target)
    triton_kernels.apply(patches)
    cuda_toolkit.apply(patches)


def _refuse_another(wanted: str | None, active: Vendor) -> None:
    if wanted and wanted != active.name:
        raise DeeplinkError(
            _("vendor {wanted!r} was requested, but ditorch is active on {name!r} already.").format(
                wanted=wanted, name=active.name
            ),
            _(
                "choose before the first `import ditorch`: {name}={wanted}, or "
                "ditorch.undo() first."
            ).format(name=settings.DEEPLINK_VENDOR.name, wanted=wanted),
        )


def _refuse_conflicts(vendor: Vendor) -> None:
    # two active tools would patch each other's patches
    tools = (*vendor.transfer_tools, *OTHER_TOOLS)
    loaded = [name for name in tools if name in sys.modules]
    if loaded:
        raise DeeplinkError(
            f"ditorch and {loaded[0]} both redirect CUDA; {loaded[0]} is loaded already.",
            hint="use one of the two: remove its import, or do not import ditorch.",
        )
    if torch.cuda.is_initialized():
        raise DeeplinkError(
            f"CUDA is initialised already; its work cannot move to {vendor.device} any more.",
            hint="import ditorch before the first use of CUDA.",
        )
