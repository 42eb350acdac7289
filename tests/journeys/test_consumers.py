"""Training libraries that name cuda themselves, unmodified: losses and parameters of plain CPU.

They are in an environment of their own: `scripts/frameworks consumers`, then
`.venv-consumers/bin/python -m pytest -m slow tests/journeys/test_consumers.py`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.program import assert_near, need, output_of, result_of

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parent / "consumers"
INSTALL = "scripts/frameworks consumers"
DITORCH = ("-m", "ditorch", "run")
# the reference device runs the CPU's kernels: results differ where the order of additions does
SAME_ORDER = 1e-6
OTHER_ORDER = 1e-4  # sums in another order: divided among ranks, or in another kernel
HALF = 2e-2  # the same, rounded to bfloat16


def torchrun(ranks: int) -> tuple[str, ...]:
    return ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}")


def program(name: str) -> str:
    return str(PROGRAMS / f"{name}.py")


def assert_cpus_numbers(
    here: dict[str, Any], cpu: dict[str, Any], tolerance: float = SAME_ORDER
) -> None:
    """Check that the program ran on cuda, and every number is that of the CPU."""
    assert here.pop("is_cuda")
    cpu.pop("is_cuda")
    assert here["parameters"]
    assert_near(here, cpu, tolerance)


@pytest.mark.parametrize(
    ("name", "package", "arguments", "tolerance"),
    [
        ("peft_lora", "peft", (), SAME_ORDER),
        # a Triton kernel here, operators of torch there
        ("trl_sft", "trl", ("no",), OTHER_ORDER),
        ("trl_sft", "trl", ("bf16",), HALF),
        ("diffusers_unet", "diffusers", (), SAME_ORDER),
        ("torchao_int8", "torchao", (), SAME_ORDER),
    ],
    ids=["peft", "trl float32", "trl bfloat16", "diffusers", "torchao"],
)
def test_one_device(name: str, package: str, arguments: Sequence[str], tolerance: float) -> None:
    need(package, folder=PROGRAMS, install=INSTALL)
    one = {"DIPU_DEVICE_COUNT": "1", "TRITON_INTERPRET": "1"}
    here = result_of(*DITORCH, program(name), *arguments, **one)
    cpu = result_of(program(name), *arguments, **one)  # without ditorch
    assert_cpus_numbers(here, cpu, tolerance)


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate_test(processes: int, tmp_path: Path) -> None:
    need("accelerate", folder=PROGRAMS, install=INSTALL)
    kind = "MULTI_GPU" if processes > 1 else "'NO'"
    config = tmp_path / "config.yaml"
    config.write_text(
        f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nmixed_precision: 'no'\n"
        f"num_machines: 1\nnum_processes: {processes}\nuse_cpu: false\n"
    )
    # it starts `accelerate-launch`
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    cli = ("-m", "accelerate.commands.accelerate_cli", "test", "--config_file", str(config))
    text = output_of(*DITORCH, *cli, PATH=path)
    assert "Device: cuda" in text
    assert f"Num processes: {processes}" in text
    assert "Training yielded the same results on one CPU or distributed setup" in text
    assert "Test is a success" in text


@pytest.fixture(scope="module")
def titan_seed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The initial weights of every run of torchtitan, in a checkpoint that one rank wrote."""
    need("torchtitan", folder=PROGRAMS, install=INSTALL)
    folder = tmp_path_factory.mktemp("seed")
    script = (program("titan_llama"), str(folder), "--create-seed-checkpoint")
    output_of(*DITORCH, *torchrun(1), *script, DEEPLINK_VENDOR="cpu")
    return str(folder / "checkpoint" / "step-0")


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        (2, ()),
        (4, ("--tensor-parallel", "2")),
        (4, ("--tensor-parallel", "2", "--dtype", "bfloat16")),
    ],
)
def test_torchtitan(ranks: int, arguments: Sequence[str], titan_seed: str, tmp_path: Path) -> None:
    def run(vendor: str) -> dict[str, Any]:
        script = (program("titan_llama"), str(tmp_path / vendor), "--seed-checkpoint", titan_seed)
        return result_of(
            *DITORCH,
            *torchrun(ranks),
            *script,
            *arguments,
            DEEPLINK_VENDOR=vendor,
            DIPU_DEVICE_COUNT=str(ranks),
        )

    assert_cpus_numbers(run("reference"), run("cpu"))


@pytest.mark.parametrize(("ranks", "tolerance"), [(1, SAME_ORDER), (2, OTHER_ORDER)])
def test_megatron_core(ranks: int, tolerance: float) -> None:
    need("megatron.core", folder=PROGRAMS, install=INSTALL)
    script = (program("megatron_gpt"), str(ranks))
    here = result_of(*DITORCH, *torchrun(ranks), *script)
    # tensor parallel over the ranks here, one rank there
    cpu = result_of(*DITORCH, *torchrun(1), script[0], "1", DEEPLINK_VENDOR="cpu")
    assert_cpus_numbers(here, cpu, tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [1, 2])
def test_deepspeed(stage: int, dtype: str) -> None:
    need("deepspeed", folder=PROGRAMS, install=INSTALL)
    script = (program("deepspeed_zero"), str(stage), dtype)
    here = result_of(*DITORCH, *torchrun(2), *script)
    cpu = result_of(*torchrun(2), *script)  # without ditorch: DeepSpeed's own support of the CPU
    assert here["restored"]
    assert_cpus_numbers(here, cpu)
