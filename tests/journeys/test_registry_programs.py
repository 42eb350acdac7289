"""Programs from the package registry that name cuda themselves: unmodified, with CPU's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.journeys import program
from tests.journeys.program import assert_near, output_of, result_of

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parent / "registry"
HALF = 2e-2  # float16 and bfloat16 round at other places where the two devices sum differently
DITORCH = ("-m", "ditorch", "run")


def need(*packages: str, before: str = "sys") -> None:
    program.need(*packages, folder=SCRIPTS, before=before)


def run(name: str, *arguments: str, **environment: str) -> dict[str, Any]:
    return result_of(*DITORCH, str(SCRIPTS / f"{name}.py"), *arguments, **environment)


def run_cpu(name: str, *arguments: str) -> dict[str, Any]:
    """Run a program without ditorch, on the CPU."""
    return result_of(str(SCRIPTS / f"{name}.py"), *arguments, "--cpu")


@pytest.mark.parametrize(("devices", "batch"), [("1", "8"), ("2", "16")])
def test_transformers_trainer_in_bfloat16(devices: str, batch: str) -> None:
    need("transformers", "accelerate")
    here = run("hf_trainer", "8", DIPU_DEVICE_COUNT=devices)  # two: the Trainer's DataParallel
    cpu = run_cpu("hf_trainer", batch)
    for model in ("gpt2", "llama"):
        assert here[model].pop("is_cuda")
        assert not cpu[model].pop("is_cuda")
        assert_near(here[model], cpu[model], HALF)


@pytest.mark.parametrize(
    "launcher", [(), ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")]
)
def test_accelerates_own_test_script(launcher: tuple[str, ...]) -> None:
    need("accelerate")
    text = output_of(*launcher, *DITORCH, "-m", "accelerate.test_utils.scripts.test_script")
    assert "Training yielded the same results on one CPU or distributed setup" in text
    assert "Test reinstantiated state" in text


@pytest.mark.parametrize("precision", ["fp16", "bf16", "no"])
def test_accelerate_with_mixed_precision(precision: str) -> None:
    need("accelerate")
    here = run("accelerate_mixed", precision)
    cpu = run_cpu("accelerate_mixed", "bf16" if precision == "fp16" else precision)
    assert here.pop("is_cuda")
    assert here["restored"]
    assert_near(here["losses"], cpu["losses"], 1e-4 if precision == "no" else 5 * HALF)


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "32-true"])
def test_lightning_on_accelerator_cuda(precision: str) -> None:
    need("lightning")
    here, cpu = run("lightning_mixed", precision), run_cpu("lightning_mixed", "32-true")
    assert here.pop("is_cuda")
    assert here["n"] == 64
    assert_near(here["losses"], cpu["losses"], 1e-4 if precision == "32-true" else HALF)


@pytest.mark.parametrize("model", ["resnet10t", "vit_tiny_patch16_224"])
def test_timm_with_its_scaler(model: str) -> None:
    need("timm", before="torchvision_python")
    here, cpu = run("timm_amp", model, "amp"), run_cpu("timm_amp", model, "amp")
    assert here.pop("is_cuda")
    assert_near(here["losses"], cpu["losses"], HALF)


@pytest.mark.parametrize("wrapper", ["AmpOptimWrapper", "OptimWrapper"])
def test_mmengine_runner(wrapper: str) -> None:
    need("mmengine")
    here = run("mmengine_amp", wrapper)
    cpu = result_of(str(SCRIPTS / "mmengine_amp.py"), "OptimWrapper")  # it finds the CPU itself
    assert here["is_cuda"]
    assert not cpu["is_cuda"]
    amp = wrapper == "AmpOptimWrapper"
    assert_near(here["losses"], cpu["losses"], HALF if amp else 1e-4)


def test_stable_baselines3() -> None:
    need("stable_baselines3", "gymnasium")
    here, cpu = run("sb3_ppo"), run_cpu("sb3_ppo")
    assert here["ppo"]["is_cuda"] and here["dqn"]["is_cuda"]
    assert_near(here["dqn"]["norm"], cpu["dqn"]["norm"], 1e-4)
    assert here["ppo"]["reward"] == pytest.approx(cpu["ppo"]["reward"], abs=0.5)  # it samples
