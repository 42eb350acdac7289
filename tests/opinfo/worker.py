"""A worker of the pool: it checks the ops that it is given, one by one."""

from __future__ import annotations

import importlib

import torch

import torch_dipu  # noqa: F401
from deeplink.testing import workers
from tests.opinfo.core import check, load_ops, supports
from tests.opinfo.outcome import Outcome
from tests.opinfo.workers import READY


def main() -> None:
    line, _ = workers.connect()
    torch.set_num_threads(1)
    ops = load_ops()
    line.send(READY)
    while (given := line.receive()) is not workers.CLOSED:
        task, limit = given
        if task.op in ops and supports(ops[task.op], task.dtype):
            if task.device.startswith("cuda"):
                importlib.import_module("ditorch")  # "cuda" means the device from here on
            line.send(check(ops[task.op], task.dtype, task.device, limit, task.bound))
        else:
            line.send(Outcome(task.op, task.dtype, unknown=True))


if __name__ == "__main__":
    main()
