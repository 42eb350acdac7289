"""Runs cases of some ops by CUDA's kernels in Triton's interpreter; prints what is wrong.

    TRITON_INTERPRET=1 python -m tests.dlinfer.interpreted rms_norm rotary

In float32 and float16: the interpreter cuts bfloat16 off where the device rounds.
"""

import sys

import torch

import dlinfer
from deeplink import vendor as vendors
from deeplink.vendor import Found, Vendor
from dlinfer.conformance.check import failures

RECORD = Vendor("interpreted", "cpu", lambda: True, fused="deeplink_vendors.cuda.fused")


def main(ops: list[str]) -> int:
    """Return the number of wrong cases."""
    row = Found(RECORD.name, RECORD, "available", "", "")
    vendors.discover = lambda: [row]
    vendors.find = lambda name: row
    wrong = 0
    with dlinfer.using(RECORD.name):
        assert set(ops) <= dlinfer.kernels.served("cpu").kernels.keys()
        for op in ops:
            for dtype in (torch.float32, torch.float16):
                for case, what in failures(op, dtype, "cpu"):
                    print(f"{case}: {what}")
                    wrong += 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(dlinfer.OPS)))
