"""CUDA's fused kernels are right: on the device where there is one, and in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

import dlinfer
from dlinfer.conformance import conformance
from tests.dlinfer.decoder import caches, given, layers, step

pytest.importorskip("triton", reason="Triton is not installed")

if torch.cuda.is_available():
    test_the_cuda_kernels = conformance("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("experts", [False, True])
def test_a_recorded_step_gives_and_writes_what_the_plain_one_does(experts: bool) -> None:
    model = layers(2, experts, "cuda")
    plain, held = caches(2, 72, "cuda"), caches(2, 72, "cuda")
    recorded = dlinfer.capture(step, kept=("model", "held"))
    with torch.no_grad():
        for at, rows in enumerate((3, 1, 3, 8, 3, 1)):
            *tensors, _ = given(rows, at + 1, "cuda")
            expected = step(model, plain, *tensors, 32)
            torch.testing.assert_close(recorded(model, held, *tensors, 32), expected)
    assert len(recorded.recordings) == 3
    for ours, theirs in zip(held, plain, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "inductorgraph"])
def test_a_compiled_step_gives_and_writes_what_the_plain_one_does(backend: str) -> None:
    torch._dynamo.reset()
    model = layers(2, True, "cuda")
    plain, held = caches(2, 72, "cuda"), caches(2, 72, "cuda")
    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for at, rows in enumerate((3, 3, 5, 8, 3, 2)):
            *tensors, _ = given(rows, at + 1, "cuda")
            expected = step(model, plain, *tensors, 32)
            found = compiled(model, held, *tensors, 32)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(held, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


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
