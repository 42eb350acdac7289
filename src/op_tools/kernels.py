"""Kernels seen by torch's own observers: in every thread, and with nothing put in their way.

Where only this thread, autograd's and those it starts can call them, a layer of torch's dispatcher
sees the same for half the price: see `can_layer`; what is called most comes to it unboxed, by
csrc/typed.h. A dispatch mode does, too, but torch takes other formulas for some gradients while one
is on, and each call costs more. It serves where the native part cannot be built, and for tools that
do a call in another way.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch

from deeplink import native, settings
from deeplink.errors import BuildError
from op_tools import interception, steps

log = logging.getLogger("op_tools")
_watching = _layer = False
_IDLE = {"op_tools", "torch_dipu", "deeplink", "tqdm"}


@cache
def helper() -> ModuleType | None:
    """The native part; None where it cannot be built or is not wanted."""
    if not settings.OP_TOOLS_NATIVE.get():
        return None
    try:
        return _with_counts(native.load_extension("op_tools", say=log.warning))
    except (BuildError, ImportError) as error:  # no compiler, or one that cannot build it
        log.warning("op_tools goes without its native part: %s", str(error).splitlines()[0])
        return None


def _with_counts(module: ModuleType) -> ModuleType:
    """Calls and steps are counted there from now on, for Python too: it asks without the GIL."""
    if isinstance(interception.ids, itertools.count):
        interception.ids = module.ids(next(interception.ids))
    steps.keep(module.set_step)
    return module


def loaded() -> ModuleType | None:
    """The same where it is in use already: nothing is built for this."""
    return helper() if "op_tools._C" in sys.modules else None


def watch(
    on: bool,
    layer: bool,
    host: bool,
    decide: Callable[[str], Any],
    before: Callable[..., Any],
    after: Callable[..., None],
) -> bool:
    """Watches kernels from now on, or no longer; whether it can. `host`: those of the CPU too;
    `layer`: in the threads that `set_layer` is called in and in autograd's.
    """
    global _watching, _layer
    if not on and not _watching:
        return True
    module = helper()
    if module is None:
        return False
    _layer = on and layer
    module.watch_kernels(on, _layer, host, decide, before, after)
    _watching = on
    return True


def is_layered() -> bool:
    """Whether the layer sees them: then autograd has made the node of a call."""
    return _layer


def set_layer() -> None:
    """This thread has the layer, or has it not, as `watch` said."""
    if (module := loaded()) is not None:
        module.layer_thread(_layer)


def forget_all() -> None:
    """Natively, what waits is reduced, and no values are known: any may be written unseen."""
    if (module := loaded()) is not None:
        module.forget_all()


def can_layer() -> bool:
    """Whether a layer may see kernels: no other thread of the program is there, which it would not
    see, and torch.compile has made nothing, which it would make again.
    """
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and getattr(frames, "FRAME_COUNTER", True):
        return False
    own = threading.current_thread()
    return all(thread is own or _computes_nothing(thread) for thread in threading.enumerate())


def _computes_nothing(thread: threading.Thread) -> bool:
    """A thread of our own, or one that moves a progress bar."""
    made_by = getattr(getattr(thread, "_target", None), "__module__", None) or ""
    return {type(thread).__module__.split(".")[0], made_by.split(".")[0]} & _IDLE != set()


def function_of(name: str) -> Any:
    """torch.ops.aten.add.Tensor of "aten::add.Tensor"."""
    space, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), operator), overload or "default")
