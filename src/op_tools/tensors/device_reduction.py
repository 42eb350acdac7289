# SPDX-License-Identifier: Apache-2.0
"""The vendor's kernel that reduces tensors on the device.

The module `Vendor.statistics` has a function `start(table, device)`: it reduces pieces of the
device's memory in the current stream and does not synchronize. A RuntimeError is the reason why it
cannot. The table is an int64 tensor on the host, with a row for each piece: address, size in
bytes, and kind of the values (the number in `statistics.NATIVE`; 16 more: the hash alone; 64 more:
the hash is not used and may be anything). A piece is at most a block of the hash. The function that
`start` returns synchronizes and returns int64 on the host, a row for each piece: the two sums of
the hash (a last part of a word is filled up with zeros) and the fields of statistics_reference.py,
of which the last is a count. Fields that are no counts are the bits of float64, but low and high of
integers are whole. Without a finite value they mean nothing.

The optional function `launcher(index)` is for the native part. It returns the addresses of two
functions with the parameters of cuLaunchKernel and cuStreamIsCapturing, and between them the kernel
and its threads. The kernel has three arguments: the table in page-locked memory of the host, the
results in the device's memory, and 66 numbers by value. They describe up to 16 contiguous tensors
instead of a table: how many there are (0: there is a table), 16 rows of address, bytes and kind,
and 17 numbers of results: of the first piece of each tensor, and of all. A tensor is divided into
pieces of 128 KiB and, last, the rest of less than a word.

A fifth result of `launcher` is whether the kernel reads non-contiguous values: 32 more in the kind,
and from its ninth bit on the number of the piece's first value. The address is then that of 18
numbers in the host's memory: the address of the first of all values, how many dimensions there are,
and size and stride of each, in values, the innermost first.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from deeplink import vendor
from op_tools.tensors.statistics_reference import FIELDS

log = logging.getLogger("op_tools")
Start = Callable[[Tensor, torch.device], Callable[[], Tensor]]
Launcher = tuple[int, int, int, int] | tuple[int, int, int, int, bool]


@cache
def starter(kind: str) -> Start | None:
    """The function `start` of a device's vendor; None: it has none, or it does not run."""
    module = vendor.module_for(kind, "statistics")
    if not module:
        return None
    try:
        start: Start = importlib.import_module(module).start
        one = torch.ones(1, device=kind)
        table = torch.tensor([[one.data_ptr(), one.nbytes, 0]])  # float32
        if start(table, one.device)().shape != (1, FIELDS):
            raise RuntimeError("its results are of another shape")
    except Exception as error:  # a vendor's module may raise anything
        log.warning("op_tools goes without %s: %s", module, error)
        return None
    return start


@cache
def launcher(kind: str, index: int) -> Launcher | None:
    """The result of the vendor's `launcher`; None: it has none."""
    if starter(kind) is None:
        return None
    module = importlib.import_module(vendor.module_for(kind, "statistics"))
    if not hasattr(module, "launcher"):
        return None
    launcher: Launcher = module.launcher(index)
    return launcher
