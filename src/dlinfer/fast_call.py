# SPDX-License-Identifier: Apache-2.0
"""How ops are called from Python: as partial functions, which torch.compile sees through.

torch's overload is called by way of a Python function. Here the type of each partial has what the
overload calls as its own `__call__` and, once native kernels are there, one in C++ that takes plain
tensors and numbers to the dispatcher itself. A graph holds the overload, which is the partial's
`func`; nothing is told to Dynamo, so it need not be imported.
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
    """The op as a function."""
    own = {"__call__": op.overload._op, "__doc__": op.doc, "__slots__": ()}
    return type(op.name, (functools.partial,), own)(op.overload)


@functools.cache
def callables() -> dict[str, Any]:
    """Every op's, by its name."""
    return {name: callable_of(op) for name, op in OPS.items()}


def in_cpp() -> None:
    """Gives every op its way in C++; told where that cannot be built."""
    try:
        module: Any = native.load_extension("dlinfer", say=log.warning)
    except BuildError as error:
        log.warning("calls of dlinfer's ops stay in Python: %s", error.message.splitlines()[0])
        return
    for name, called in callables().items():
        type(called).__call__ = module.caller(f"dlinfer::{name}", OPS[name].overload._op)
