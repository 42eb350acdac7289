"""A vendor's kernels on a device of its own: their arguments, and calls that are not theirs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.utils import _pytree as pytree

import torch_dipu
from deeplink import vendor as vendors
from deeplink.errors import NoVendorError, VendorUnavailable
from deeplink.vendor import Vendor
from diopi.conformance.cases.case import Case, Group
from diopi.conformance.execution.running import run
from diopi.conformance.execution.subject import of_kernels, open_subject
from diopi.conformance.planning import plan, recipes
from diopi.conformance.suite import failures
from diopi.conformance.workers.attempt import attempt
from diopi.implementation import Implementation
from diopi.op import get
from tests import warm


# copies between device and host, and new tensors, are the device's own
@pytest.mark.parametrize(
    ("name", "places"),
    [("add", {"dipu"}), ("copy", {"dipu"}), ("to_copy", {"dipu"}), ("full", set())],
)
def test_kernels_see_the_tensors_of_their_device_alone(name: str, places: set[str]) -> None:
    op = get(name)
    given: set[str] = set()

    def kernel(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        given.update(t.device.type for t in leaves if isinstance(t, Tensor) and t.dim())
        return op.meaning(*args, **kwargs)

    subject = of_kernels("there", Implementation("there", {name: kernel}), "dipu")
    limits = plan.tier_of("smoke")
    for group in plan.groups(limits, [op]):
        samples = recipes.samples(group, limits.read)
        for case, checks in plan.cases(group, samples, limits):
            callee = recipes.callee(group, case.index)
            result = attempt(case, callee, samples[case.index], subject, checks)
            assert not result.bad, result
    assert given == places


def test_an_op_without_tensors_creates_its_result_on_the_device() -> None:
    group = Group("tril_indices", "int64", "own")
    callee, sample = recipes.callee(group), recipes.samples(group, 1)[0]
    assert run(callee, sample, "dipu").result.device.type == "dipu"


def test_scalars_that_the_host_reads_stay_there() -> None:
    group = Group("foreach_addcdiv_tensor", "float32", "own")
    callee, sample = recipes.callee(group), recipes.samples(group, 1)[0]
    given: list[Any] = []
    run(callee, sample, "dipu", function=lambda *args: given.extend(args))
    assert given[0][0].device.type == "dipu" and given[3].device.type == "cpu"


ACME = """
import torch
import torch_dipu

def exp(input):
    assert torch_dipu.VENDOR.name == "acme_chip"
    return torch.exp(input.cpu()).to(input.device)
"""
RECORD = """
from deeplink.vendor import Vendor

vendor = Vendor(
    "acme_chip", "dipu", lambda: True, device_module="torch_dipu", kernels="acme_chip.kernels",
    runtime="deeplink_vendors.reference.runtime", accelerator=False,
)
"""


def acme(folder: Path) -> str:
    """A vendor with a runtime of its own, installed in a folder; the PYTHONPATH that finds it."""
    package, entry = folder / "acme_chip", folder / "acme_chip-1.0.dist-info"
    package.mkdir()
    entry.mkdir()
    (package / "__init__.py").write_text(RECORD)
    (package / "kernels.py").write_text(ACME)
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_chip\nVersion: 1.0\n")
    (entry / "entry_points.txt").write_text("[deeplink.vendors]\nacme_chip = acme_chip:vendor\n")
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


def test_a_vendor_is_run_on_its_own_device(tmp_path: Path) -> None:
    """`--vendor` alone chooses the device too, also against a DEEPLINK_VENDOR of another."""
    acme(tmp_path)
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from diopi.conformance.execution.subject import open_subject
subject = open_subject("acme_chip")
subject.ready()
import torch_dipu
print(subject.device, torch_dipu.VENDOR.name)
"""
    env = dict(os.environ) | {"DEEPLINK_VENDOR": "reference"}
    done = warm.run(["-c", program], env, warn="default")
    assert done.stdout == "dipu acme_chip\n", done.stdout + done.stderr


@pytest.mark.slow  # a worker process of the suite imports torch and its database
def test_the_workers_of_a_run_have_the_vendors_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the two lines of pytest in a process whose device is the reference vendor's."""
    monkeypatch.setenv("PYTHONPATH", acme(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    assert torch_dipu.VENDOR.name == "reference"
    assert failures("acme_chip", "exp", "smoke") == []


def test_a_device_that_is_another_vendors_already_is_refused() -> None:
    chip = Vendor("acme", "dipu", lambda: True, device_module="torch_dipu", runtime="acme.runtime")
    with pytest.raises(VendorUnavailable, match="of this process is vendor 'reference'"):
        vendors.load_device(chip)


def test_a_module_of_kernels_needs_no_dot_in_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_relu_kernels.py").write_text("import torch\ndef relu(input): return input\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert open_subject("my_relu_kernels").kernels["relu"].route == "kernel"


def test_an_unknown_vendor_error_explains_names_of_modules() -> None:
    with pytest.raises(NoVendorError, match="named as `module` or `module:attribute`"):
        open_subject("no_such_vendor")


def test_float64_that_the_adaptor_runs_as_float32_is_judged_by_float32s_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A correct float32 kernel passes in float64, and the result states how it was judged."""
    package = tmp_path / "acme_floats"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import torch\ndef exp(input): return torch.exp(input)\n"
        "def sigmoid(input): return torch.sigmoid(input) * (1 + 1e-4)\n"
    )
    (package / "convert_config.yaml").write_text(
        "- common_config:\n    dtype: (float64) -> float32\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    subject = open_subject("acme_floats")
    made = {}
    for op in ("exp", "sigmoid"):
        group = Group(op, "float64", f"{op}+samples")
        callee, sample = recipes.callee(group), recipes.samples(group, 1)[0]
        made[op] = attempt(Case(op, "float64", group.source, 0), callee, sample, subject)
    assert (made["exp"].status, made["exp"].grade) == ("passed", "A"), made["exp"]
    assert made["exp"].reason.startswith("the adaptor runs float64 as float32; judged by")
    assert made["sigmoid"].status == "failed"


def test_where_an_index_stands_twice_nothing_is_judged() -> None:
    """The kept value is undefined there, so no larger and no repeated indices are used."""
    limits = plan.tier_of("quick")
    for group in plan.groups(limits, [get("scatter_value"), get("index_copy")]):
        if group.source.endswith("+samples"):
            samples = recipes.samples(group, limits.read)
            for case, _ in plan.cases(group, samples, limits):
                assert case.profile not in plan.GROWTHS and case.layout != "expanded", case
