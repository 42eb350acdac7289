"""CUDA's fused kernels are right: on the device where there is one, and in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

from dlinfer.conformance import conformance

pytest.importorskip("triton", reason="Triton is not installed")

if torch.cuda.is_available():
    test_the_cuda_kernels = conformance("cuda")


@pytest.mark.slow
@pytest.mark.parametrize(
    "ops",
    [
        "rms_norm add_rms_norm rms_norm_w8a8 add_rms_norm_w8a8 dynamic_quant",
        "silu_and_mul gelu_and_mul rotary fill_kv_cache linear linear_w8a8 weight_quant_matmul",
        "prefill_attention dense_attention moe_gating fused_moe",
        "paged_decode_attention",
        "paged_prefill_attention",
    ],
)
def test_the_kernels_are_right_in_tritons_interpreter(ops: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.dlinfer.interpreted", *ops.split()]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
