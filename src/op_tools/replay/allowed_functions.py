# SPDX-License-Identifier: Apache-2.0
"""The functions that a captured call may name: operators, and no other code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from op_tools.capture.encoding import Recorded
from op_tools.core import op_names

# The namespaces whose functions a capture may name.
SPACES = frozenset(
    """
    torch.nn.functional torch.nn.init torch.functional torch.special torch.linalg torch.fft
    torch.sparse torch.nested torch.signal.windows
    """.split()
)

NATIVE_SPACES = frozenset(
    f"torch._C._{word}" for word in "nn sparse linalg fft special nested".split()
)


class ReplayError(DeeplinkError):
    """A captured call that cannot be replayed; the text is the reason."""


def function_of(recorded: Recorded, device: torch.device, trust: Sequence[str] = ()) -> Any:
    """Resolve the function of a captured call. ReplayError unless it is an operator."""
    name = recorded.name
    if recorded.header.get("level") == "module":
        raise ReplayError(
            _("{name} is a module: its code is not in the capture.").format(name=name)
        )
    word = op_names.last(name)
    if word in op_names.UPLOADS:
        return lambda tensor, *args, **kwargs: tensor.to(device)
    trusted = name.split(".")[0] in trust
    if not (trusted or name.startswith(("torch.", "aten.")) or "." in name):
        raise ReplayError(_("{name!r} is no function of torch's.").format(name=name))
    if not trusted and name.split(".")[0] not in ("torch", "aten"):
        raise ReplayError(
            _("{name} is not torch's, and a capture may name anything.").format(name=name),
            _("--trust {package} allows the functions of this package.").format(
                package=name.split(".")[0]
            ),
        )
    try:
        func = op_names.resolve(name)
    except LookupError as error:
        raise ReplayError(str(error)) from None
    if not (trusted or _is_operator(name, func)):
        raise ReplayError(_("{name} is no operator.").format(name=name))
    return func


def _is_operator(name: str, func: Any) -> bool:
    if isinstance(func, (OpOverload, OpOverloadPacket)) or name in op_names.known():
        return True
    space, _, word = name.rpartition(".")
    home = str(getattr(func, "__module__", None) or "torch")
    if space in NATIVE_SPACES:
        return home.startswith("torch")
    if space in SPACES:
        return not word.startswith("_") and home.startswith("torch")
    # a method of a tensor, or a function of torch's own C++
    return space == "torch.Tensor" or (space == "torch" and func in _builtins())


@cache
def _builtins() -> frozenset[Any]:
    space = torch._C._VariableFunctions
    words = [word for word in dir(space) if word[:2] != "__" and word != "from_file"]
    return frozenset(getattr(space, word) for word in words)
