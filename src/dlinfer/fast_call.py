# SPDX-License-Identifier: Apache-2.0
"""Calls of ops from Python as partial functions, which torch.compile traces through.

torch's overload is called through a Python function. Here the type of each partial has the function
that the overload calls as its `__call__` and, once native kernels are loaded, one in C++ that
passes plain tensors and numbers to the dispatcher directly. A graph contains the overload, which is
the partial's `func`, so Dynamo needs no registration and is not imported.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from deeplink import native
from deeplink.errors import BuildError
from dlinfer.registry import OPS, FusedOp

log = logging.getLogger("dlinfer")


def callable_of(op: FusedOp) -> Any:
    """Return the callable of an op."""
    own = {"__call__": op.overload._op, "__doc__": op.doc, "__slots__": ()}
    return type(op.name, (functools.partial,), own)(op.overload)


@functools.cache
def callables() -> dict[str, Any]:
    """Return the callables of all ops, by name."""
    return {name: callable_of(op) for name, op in OPS.items()}


def in_cpp() -> None:
    """Replace the calls of every op by C++; log a message where it cannot be built."""
    try:
        module: Any = native.load_extension("dlinfer", say=log.warning)
    except BuildError as error:
        log.warning("calls of dlinfer's ops stay in Python: %s", error.message.splitlines()[0])
        return
    for name, called in callables().items():
        type(called).__call__ = module.caller(f"dlinfer::{name}", OPS[name].overload._op)
