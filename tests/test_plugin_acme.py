"""An outside vendor with a chip of its own, installed by pip and used from another process."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from deeplink import scaffold

HERE = Path(__file__).parent
SRC = HERE.parent / "src"


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the plug-in into; built once, from a copy, offline."""
    place = tmp_path_factory.mktemp("acme")
    scaffold.create("acme", "python", place / "source")  # its runtime is this vendor's
    source = shutil.copytree(HERE / "plugin_acme", place / "source", dirs_exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--no-index", "--target"]
    done = subprocess.run(
        [*command, str(place / "site"), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return place / "site"


@pytest.fixture
def site(wheelhouse: Path, tmp_path: Path) -> Path:
    """A copy of the installed plug-in to change at will, its driver loaded."""
    copy = shutil.copytree(wheelhouse, tmp_path / "site")
    (copy / "deeplink_acme" / "driver").touch()
    return copy


def python(site: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs python where the plug-in is installed, with no variable of ours but those given."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DEEPLINK_", "DIPU_"))}
    kept["PYTHONPATH"] = os.pathsep.join([str(site), str(SRC)])
    kept["PYTHONWARNINGS"] = "error"
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=kept | environment,
        timeout=120,
    )


def extend_runtime(site: Path, source: str) -> None:
    """Adds source text to the installed plug-in's runtime."""
    with (site / "deeplink_acme" / "runtime.py").open("a", encoding="utf-8") as file:
        file.write(source)


def doctor(site: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `deeplink doctor --json`."""
    done = python(site, "-m", "deeplink", "doctor", "--json", *arguments, **environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def acme(report: dict[str, Any]) -> dict[str, str]:
    """The row of the plug-in."""
    (row,) = [row for row in report["vendors"] if row["name"] == "acme"]
    return dict(row)


def test_it_is_discovered_beside_the_vendors_of_the_tree(site: Path) -> None:
    _, report = doctor(site, "--no-self-test", "--vendor", "acme")
    assert acme(report)["status"] == "available"
    assert acme(report)["distribution"] == "deeplink-acme"
    assert {"acme", "cpu", "cuda", "reference"} <= {row["name"] for row in report["vendors"]}


def test_it_is_chosen_by_the_environment(site: Path) -> None:
    script = "import deeplink; c = deeplink.choose(); print(c.vendor.name, c.vendor.device, c.why)"
    done = python(site, "-c", script, DEEPLINK_VENDOR="acme")
    assert done.stdout == "acme dipu DEEPLINK_VENDOR=acme\n", done.stderr


def test_it_is_not_chosen_without_request(site: Path) -> None:
    done = python(site, "-c", "import deeplink; print(deeplink.choose().vendor.name)")
    assert done.stdout != "acme\n", done.stderr


def test_an_accelerator_is_chosen_by_itself_and_is_behind_the_device(site: Path) -> None:
    record = site / "deeplink_acme" / "__init__.py"
    record.write_text(record.read_text().replace("accelerator=False", "accelerator=True"))
    script = """
        import deeplink, torch, torch_dipu
        choice = deeplink.choose()
        print(choice.vendor.name, "|", choice.why, "|", torch.dipu.get_device_name())
    """
    done = python(site, "-c", textwrap.dedent(script))
    assert done.stdout == "acme | the first available accelerator | ACME chip (made up)\n", (
        done.stderr
    )


@pytest.mark.parametrize("how", ["environment", "option"])
def test_the_doctor_shows_it_and_tests_it(site: Path, how: str) -> None:
    extend_runtime(site, SAYS_WHEN_IT_IS_OPENED)
    if how == "environment":
        done = python(site, "-m", "deeplink", "doctor", "--all", DEEPLINK_VENDOR="acme")
    else:
        done = python(site, "-m", "deeplink", "doctor", "--all", "--vendor", "acme")
    assert "Chosen: acme, device 'dipu', ACME chip (made up)" in done.stdout
    assert "All checks passed: ACME chip (made up)" in done.stdout
    assert "the vendor names no collective" in done.stdout
    assert "acme is open" in done.stdout  # it was this chip that was tested
    assert done.returncode == 0, done.stdout + done.stderr


SAYS_WHEN_IT_IS_OPENED = """

def start():
    print("acme is open")
"""


def test_it_is_reported_broken_with_its_own_error(site: Path) -> None:
    (site / "deeplink_acme" / "__init__.py").write_text("raise OSError('libacme.so.1: not found')")
    code, report = doctor(site, "--no-self-test", "--vendor", "cpu")
    assert code == 1  # it is installed and does not work: the doctor reports an error
    assert acme(report)["status"] == "broken"
    assert acme(report)["reason"] == "OSError: libacme.so.1: not found"
    assert report["chosen"]["name"] == "cpu"  # and it hides no other vendor


def test_asking_for_a_broken_vendor_raises(site: Path) -> None:
    (site / "deeplink_acme" / "__init__.py").write_text("raise OSError('libacme.so.1: not found')")
    done = python(site, "-c", "import deeplink; deeplink.choose()", DEEPLINK_VENDOR="acme")
    assert done.returncode == 1
    assert (
        "VendorBrokenError: vendor 'acme' (of deeplink-acme) is broken: "
        "OSError: libacme.so.1: not found; available: "
    ) in done.stderr
    assert "Hint: repair or uninstall deeplink-acme" in done.stderr


def test_it_is_reported_unavailable_with_its_reason(site: Path) -> None:
    (site / "deeplink_acme" / "driver").unlink()
    _, report = doctor(site, "--no-self-test", "--vendor", "cpu")
    assert acme(report)["status"] == "unavailable"
    assert acme(report)["reason"] == "the ACME driver is not loaded; create driver"
    done = python(site, "-c", "import deeplink; deeplink.choose('acme')")
    assert "vendor 'acme' is not available: the ACME driver is not loaded" in done.stderr


# The chip at work: programs that check themselves, in one process per group.

COMMON = """
import copy
import torch
import torch_dipu
from torch.testing import assert_close

torch.manual_seed(0)
host = torch.randn(4, 6)
there = host.to("dipu")


def same(result, expected):
    assert result.device.type == "dipu"
    assert_close(result.cpu(), expected)
"""


def run(site: Path, script: str) -> str:
    """Return a program's output on ACME's chip; it must exit with 0 and without a warning."""
    done = python(site, "-c", COMMON + textwrap.dedent(script), DEEPLINK_VENDOR="acme")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_device_is_acmes(site: Path) -> None:
    script = """
        print(torch.dipu.get_device_name())
        print(torch.dipu.device_count(), torch.dipu.mem_get_info()[1] >> 20, there.device)
        print(there.data_ptr() >= 1 << 48)  # no address of the host
    """
    assert run(site, script).splitlines() == ["ACME chip (made up)", "1 256 dipu:0", "True"]


def test_operators_give_the_values_of_the_cpu(site: Path) -> None:
    script = """
        # factories and copies
        same(torch.arange(5, device="dipu"), torch.arange(5))
        same(torch.eye(3, device="dipu", dtype=torch.bfloat16), torch.eye(3, dtype=torch.bfloat16))
        for sample in (host.t(), host[::2, 1::3], host[:0], host[1, 2], host.half(), host > 0):
            same(sample.to("dipu"), sample)
        same(host.pin_memory().to("dipu", non_blocking=True), host)
        same(torch.zeros(6, 4, device="dipu").copy_(there.t()), host.t())

        # arithmetic, with promotion, broadcasting and nothing at all
        same(there + there, host + host)
        same(there @ there.t(), host @ host.t())
        same(there.long() * 2.5, host.long() * 2.5)
        same((there * there[0]).sum(1, keepdim=True), (host * host[0]).sum(1, keepdim=True))
        same(there[:0].sum(), host[:0].sum())
        same(there.sort(dim=1).indices, host.sort(dim=1).indices)

        # in place, through views, and into a tensor that is given
        for t in (there, host):
            t.t()[1:].mul_(3)
            t[t > 1] = 0
            t[0, ::2] += 1
            t.unsqueeze_(0).squeeze_(0)
        same(there, host)
        out = torch.empty(0, device="dipu")
        torch.mul(there, 2, out=out)
        same(out, host * 2)
        base = torch.zeros(8, device="dipu")
        torch.add(there[0, :3], 1, out=base[2:5])
        same(base, torch.nn.functional.pad(host[0, :3] + 1, (2, 3)))

        # indexing
        rows = torch.tensor([2, 0, 2])
        same(there[rows.to("dipu")], host[rows])
        same(there[rows, :2], host[rows, :2])
        same(there.index_add(0, rows.to("dipu"), there[:3]), host.index_add(0, rows, host[:3]))
        same(there.gather(1, (there > 0).long()), host.gather(1, (host > 0).long()))
        assert there[1, 1].item() == host[1, 1].item()

        # complex numbers with lazy bits
        z = torch.view_as_complex(host.view(4, 3, 2))
        same(z.to("dipu").conj() * 2, z.conj() * 2)
        same(z.to("dipu").conj().imag, z.conj().imag)
    """
    run(site, script)


def test_random_numbers_are_those_of_the_seed(site: Path) -> None:
    script = """
        def draw(device):
            torch.manual_seed(7)
            x = torch.rand(50, device=device)
            dropped = torch.nn.functional.dropout(x)
            return x, dropped, torch.randperm(9, device=device), torch.randn_like(x)

        for one, other in zip(draw("dipu"), draw("dipu"), strict=True):
            assert torch.equal(one, other)
        same(draw("dipu")[0], draw("cpu")[0])  # the first call after a seed
        state = torch.dipu.get_rng_state()
        first = torch.rand(3, device="dipu")
        torch.dipu.set_rng_state(state)
        assert torch.equal(torch.rand(3, device="dipu"), first)
    """
    run(site, script)


def test_a_small_network_trains_with_the_losses_of_the_cpu(site: Path) -> None:
    script = """
        from torch import nn
        model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))

        def losses(device):
            net, x = copy.deepcopy(model).to(device), host.to(device)
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
            found = []
            for _ in range(10):
                optimizer.zero_grad()
                loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            return found

        ours, cpus = losses("dipu"), losses("cpu")
        assert ours[-1] < ours[0] / 2, ours
        assert_close(torch.tensor(ours), torch.tensor(cpus))

        weight = there.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((weight.sin() * there).sum(), weight)
        same(gradient, host.cos() * host)
    """
    run(site, script)


def test_streams_and_events_order_and_time(site: Path) -> None:
    script = """
        side = torch.dipu.Stream()
        start, end = (torch.dipu.Event(enable_timing=True) for _ in range(2))
        with torch.dipu.stream(side):
            start.record()
            product = there * 2
            end.record()
        product.record_stream(torch.dipu.current_stream())
        torch.dipu.current_stream().wait_event(end)
        torch.dipu.synchronize()
        assert end.query() and start.elapsed_time(end) >= 0
        same(product, host * 2)
    """
    run(site, script)


def test_out_of_memory_is_an_error_that_a_program_survives(site: Path) -> None:
    script = """
        try:
            torch.empty(1 << 30, device="dipu")
        except torch.OutOfMemoryError as error:
            print(error)
        big = torch.empty(200 << 20, dtype=torch.uint8, device="dipu")
        try:
            torch.empty(100 << 20, dtype=torch.uint8, device="dipu")
        except torch.OutOfMemoryError:
            del big
        torch.empty(200 << 20, dtype=torch.uint8, device="dipu")
        same(there + 1, host + 1)
    """
    said = run(site, script)
    assert said.startswith(
        "DIPU out of memory. Tried to allocate 4.00 GiB. "
        "Device 0 has a total capacity of 256.00 MiB of which "
    )


def test_an_exception_of_the_chip_becomes_an_error_with_its_text(site: Path) -> None:
    broken = """

def _unplugged(self, *arguments):
    raise OSError("the cable is unplugged")


Chip.event_record = Chip.device_synchronize = _unplugged
"""
    extend_runtime(site, broken)
    script = """
        for method in (torch.dipu.synchronize, torch.dipu.Event().record):
            try:
                method()
            except RuntimeError as error:
                print(error)
        same(there + 1, host + 1)
    """
    assert run(site, script).splitlines() == [
        f"DIPU error: {name} failed with code 1: OSError: the cable is unplugged"
        for name in ("device_synchronize", "event_record")
    ]


def test_a_runtime_that_lacks_methods_is_refused_by_their_names(site: Path) -> None:
    extend_runtime(site, "\n\ndel Chip.memory_copy, Chip.event_elapsed\n")
    done = python(site, "-c", "import torch_dipu", DEEPLINK_VENDOR="acme")
    assert done.returncode == 1
    assert (
        "TypeError: Chip is not a torch_dipu Runtime: it lacks memory_copy, event_elapsed."
    ) in done.stderr


def test_what_the_host_would_have_to_reach_is_refused_with_a_reason(site: Path) -> None:
    script = """
        from multiprocessing.reduction import ForkingPickler
        try:
            ForkingPickler.dumps(there)
        except RuntimeError as error:
            print(error)
        try:
            torch.dipu.quirk("nan")
        except Exception as error:
            print(str(error).splitlines()[0])
    """
    assert run(site, script).splitlines() == [
        "this DIPU vendor cannot share memory between processes",
        "vendor 'acme' has no quirks.",
    ]


def test_its_graph_compiler_is_a_backend_of_torch_compile(site: Path, tmp_path: Path) -> None:
    program = """
        import torch
        from dicp.dynamo_bridge import report

        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        x = torch.randn(3, 4)
        options = {"measure": False, "verify": True}
        with torch.no_grad():
            result = torch.compile(model, backend="acmegraph", options=options)(x)
            torch.testing.assert_close(result, model(x))
        (record,) = report.RECORDS
        print(record.backend, record.taken, record.parts, [row["op"] for row in record.eager])
    """
    done = python(site, "-c", textwrap.dedent(program), DICP_CACHE_DIR=str(tmp_path))
    assert done.stdout == "acmegraph 2 2 ['aten.tanh.default']\n", done.stderr
