"""Programs as users write them, for CUDA: unmodified, with the numbers of plain CPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.program import assert_near, result_of

PROGRAMS = Path(__file__).parent / "programs"
PLAIN = str(Path(__file__).parent / "plain.py")
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

LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
LONG = ("actor_critic", "dcgan", "reinforce")  # nothing in them that the others do not use


def run(
    name: str, *launcher: str, arguments: Sequence[str] = (), **environment: str
) -> dict[str, Any]:
    command = [*launcher, "-m", "ditorch", "run", str(PROGRAMS / f"{name}.py"), *arguments]
    return result_of(*command, **environment)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NEAR],
)
def test_the_numbers_are_those_of_plain_cpu(name: str) -> None:
    with ThreadPoolExecutor() as both:  # each is a process of its own
        later = both.submit(run, name, DEEPLINK_VENDOR="cpu")
        here, cpu = run(name), later.result()
    assert here.pop("is_cuda") and cpu.pop("is_cuda")
    assert not here.pop("host_is_cuda", False)  # on plain CPU host and device are equal
    cpu.pop("host_is_cuda", None)
    for key in ("gpus", "type"):  # what the devices themselves differ in
        assert here.pop(key, 2) in (2, "torch.cuda.FloatTensor")
        cpu.pop(key, None)
    assert_near(here, cpu, NEAR[name])


# programs that take the CPU with an argument, or where they find no GPU
APART = {
    "image_classes": (("--cpu",), 1e-3),  # its two halves of a batch are summed in another order
    "actor_critic": (("--cpu",), FLOAT32),
    "graphed": (("--cpu",), FLOAT32),
    "dcgan": (("--amp",), HALF),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in APART]
)
def test_the_numbers_are_those_without_ditorch(name: str) -> None:
    arguments, near = APART[name]
    ours = [word for word in arguments if word != "--cpu"]
    with ThreadPoolExecutor() as both:
        later = both.submit(result_of, str(PROGRAMS / f"{name}.py"), *arguments)
        here, plain = run(name, arguments=ours), later.result()
    assert here.pop("is_cuda")
    assert not plain.pop("is_cuda")
    assert_near(here, plain, near)


# by torchrun the script joins a group; compiled it goes through inductor
GPT_RUNS = {
    "alone": ((), ()),
    "ddp": (LAUNCH, ()),
    "compiled": ((), ("--compile",)),
    "compiled ddp": (LAUNCH, ("--compile",)),
}


@pytest.mark.parametrize(
    "how",
    [pytest.param(how, marks=pytest.mark.slow if "compiled" in how else ()) for how in GPT_RUNS],
)
def test_a_gpt_trains_on_plain_cpu_as_without_ditorch(how: str) -> None:
    launcher, arguments = GPT_RUNS[how]
    with ThreadPoolExecutor() as both:
        later = both.submit(run, "gpt_ddp", *launcher, arguments=arguments, DEEPLINK_VENDOR="cpu")
        plain = result_of(*launcher, PLAIN, str(PROGRAMS / "gpt_ddp.py"), *arguments)
        ours = later.result()
    assert (ours.pop("device_type"), plain.pop("device_type")) == ("cuda", "cpu")
    assert (ours.pop("is_cuda"), plain.pop("is_cuda")) == (True, False)
    assert_near(ours.pop("parameters"), plain.pop("parameters"), 1e-9)  # Adam is fused on cuda
    assert ours == plain


@pytest.mark.slow
@pytest.mark.parametrize("how", GPT_RUNS)
def test_a_gpt_trains_on_the_device_as_on_plain_cpu(how: str) -> None:
    launcher, arguments = GPT_RUNS[how]
    here = run("gpt_ddp", *launcher, arguments=arguments)
    plain = result_of(*launcher, PLAIN, str(PROGRAMS / "gpt_ddp.py"), *arguments)
    assert here.pop("device_type") == "cuda"
    assert here.pop("is_cuda")
    assert_near(here, {key: plain[key] for key in here}, 1e-3)


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped() -> None:
    here = run("checkpoint")
    assert here["is_cuda"]
    assert here["resumed_equals_whole"]


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
