"""Programs as users write them, for CUDA: unmodified, with the numbers of plain CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.program import assert_near, result_of

PROGRAMS = Path(__file__).parent / "programs"
FLOAT32 = 1e-4
HALF = 2e-2  # float16 and bfloat16 round at other places where the two devices sum differently

# each program, and how near its numbers come to plain CPU's
NEAR = {
    "data_parallel": 1e-3,  # two halves of a batch are summed in another order than one
    "dcgan": FLOAT32,
    "gpt": HALF,
    "gpt_scaler": HALF,
    "legacy": FLOAT32,
    "prefetch": FLOAT32,
    "reinforce": FLOAT32,
}

LONG = ("dcgan", "reinforce")  # nothing in them that the others do not use


def run(name: str, *launcher: str, **environment: str) -> dict[str, Any]:
    command = [*launcher, "-m", "ditorch", "run", str(PROGRAMS / f"{name}.py")]
    return result_of(*command, **environment)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NEAR],
)
def test_the_numbers_are_those_of_plain_cpu(name: str) -> None:
    with ThreadPoolExecutor() as both:  # each is a process of its own
        later = both.submit(run, name, DEEPLINK_VENDOR="cpu")
        here, cpu = run(name), later.result()
    assert here.pop("is_cuda")
    assert not cpu.pop("is_cuda")
    for key in ("gpus", "type"):  # what the devices themselves differ in
        assert here.pop(key, 2) in (2, "torch.cuda.FloatTensor")
        cpu.pop(key, None)
    assert_near(here, cpu, NEAR[name])


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped() -> None:
    here = run("checkpoint")
    assert here["is_cuda"]
    assert here["resumed_equals_whole"]


LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def test_ddp_by_torchrun_says_nccl_and_resumes() -> None:
    here = run("ddp", *LAUNCH)
    assert here["where"] == [["nccl", 0], ["nccl", 1]]
    assert here["ranks_equal"]
    assert len(here["losses"]) == 16


@pytest.mark.slow
def test_ddp_has_the_numbers_of_gloo_on_plain_cpu() -> None:
    here, cpu = run("ddp", *LAUNCH), run("ddp", *LAUNCH, DEEPLINK_VENDOR="cpu")
    assert_near(here["losses"], cpu["losses"], FLOAT32)


@pytest.mark.slow
def test_torchrun_started_by_ditorch_gives_it_to_its_workers() -> None:
    launcher = ("-m", "ditorch", "run", *LAUNCH, str(PROGRAMS / "ddp.py"))
    assert result_of(*launcher)["where"] == [["nccl", 0], ["nccl", 1]]


def test_spawned_processes_have_it_too() -> None:
    here = run("spawn")
    assert here["is_cuda"]
    assert here["total"] == 28.0
    assert here["losses"][-1] < here["losses"][0]
