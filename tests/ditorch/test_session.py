"""Activating, undoing, and what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from deeplink.errors import DeeplinkError, NoVendorError
from tests import warm
from tests.torch_dipu.interpreter import output_of, run_python

WATCHED = (torch, torch.Tensor, torch.nn.Module, torch.cuda, torch.serialization, torch.random)


def snapshot() -> dict[tuple[str, str], Any]:
    found = {}
    for owner in WATCHED:
        for name, value in vars(owner).items():
            found[owner.__name__, name] = (id(value), getattr(value, "__code__", None))
    return found


def test_undo_restores_every_attribute_and_every_code() -> None:
    import ditorch

    ditorch.undo()
    ditorch.activate("reference")
    ditorch.undo()  # lazy imports of a first activation are done
    before = snapshot()
    ditorch.activate("reference")
    assert snapshot() != before
    ditorch.undo()
    after = snapshot()
    assert {key: after.get(key) for key in before} == before
    assert set(after) == set(before)


def test_after_undo_cuda_is_as_it_was(active: ModuleType) -> None:
    tensor = torch.ones(2, device="cuda")
    active.undo()
    assert str(tensor.device) == "dipu:0"
    assert not tensor.is_cuda
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA driver"):
        torch.ones(2, device="cuda")


def test_activating_twice_is_once(active: ModuleType) -> None:
    assert active.activate() is active.current()


def test_names_taken_beforehand_see_it() -> None:
    text = output_of(
        """
import torch
from torch import load, ones
from torch.cuda import is_available, current_device
from torch.nn import Module
import ditorch
print(is_available(), current_device(), ones(1, device="cuda").is_cuda, load is torch.load)
""",
        DITORCH_QUIET="1",
    )
    assert text.split() == ["True", "0", "True", "True"]


def test_it_says_one_line() -> None:
    done = run_python("import torch, ditorch", DITORCH_QUIET="0")
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("ditorch: cuda -> dipu (reference device (CPU)), torch ")


def test_zero_lines_by_the_environment() -> None:
    source = 'import torch; print(torch.ones(1, device="cuda").is_cuda)'
    assert output_of(source, DITORCH="1", DITORCH_QUIET="1").strip() == "True"


def test_a_wrong_vendor_does_not_break_import_torch() -> None:
    done = run_python("import torch; print('alive')", DITORCH="1", DEEPLINK_VENDOR="acne")
    assert done.stdout.strip() == "alive"
    assert "no vendor 'acne'" in done.stderr


def test_an_unknown_vendor_is_reported(active: ModuleType) -> None:
    active.undo()
    with pytest.raises(NoVendorError, match="no vendor 'nvdia'"):
        active.activate("nvdia")
    assert active.current() is None


def test_a_second_migration_tool_is_refused_by_name(
    active: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    active.undo()
    monkeypatch.setitem(sys.modules, "torchada", ModuleType("torchada"))
    with pytest.raises(DeeplinkError, match="torchada is loaded already"):
        active.activate("reference")


def test_on_the_cpu_vendor_cuda_code_runs_on_plain_cpu() -> None:
    text = output_of(
        """
import torch, ditorch
model = torch.nn.Linear(4, 2).cuda()
loss = model(torch.ones(3, 4, device="cuda:1")).sum()
loss.backward()
print(loss.device, model.weight.grad.device, "torch_dipu" in __import__("sys").modules)
""",
        DEEPLINK_VENDOR="cpu",
        DITORCH_QUIET="1",
    )
    assert text.split() == ["cpu", "cpu", "False"]


def test_run_gives_a_script_its_arguments_and_its_folder(tmp_path: Any) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, beside\n"
        "print(sys.argv[1:], beside.WORD, torch.ones(1, device='cuda').is_cuda, __name__)\n"
    )
    source = f"""
import subprocess, sys
command = [sys.executable, "-m", "ditorch", "run", {str(script)!r}, "--epochs", "3"]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
"""
    assert output_of(source).strip() == "['--epochs', '3'] beside True __main__"


def test_without_the_native_hook_wrappers_serve() -> None:
    text = output_of(
        """
import torch, ditorch
x = torch.zeros(2, device="cuda:1")
y = torch.nn.Linear(2, 2).to("cuda")(torch.randn(1, 2, device=torch.device("cuda")))
g = torch.Generator("cuda").manual_seed(3)
print(x.is_cuda, x.device.index, x.new_ones(1, device="cuda").device.index, y.is_cuda)
print(g.device, isinstance(g, torch.Generator), torch.Stream(device="cuda:1").device)
""",
        DITORCH_NATIVE_HOOK="0",
        DITORCH_QUIET="1",
    )
    assert text.split() == ["True", "1", "0", "True", "dipu:0", "True", "dipu:1"]


def test_without_the_native_hook_nested_tensors_and_data_parallel_are_served() -> None:
    text = output_of(
        """
import torch, ditorch
nested = torch.nested.nested_tensor([torch.ones(2)], device="cuda", layout=torch.jagged)
model = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda())
print(nested.is_cuda, model(torch.ones(4, 2).cuda()).is_cuda, model.src_device_obj)
""",
        DITORCH_NATIVE_HOOK="0",
        DITORCH_QUIET="1",
    )
    assert text.split() == ["True", "True", "dipu:0"]


def test_the_report_tells_what_was_used_and_missed() -> None:
    text = output_of(
        """
import torch, ditorch, warnings
warnings.simplefilter("ignore")
torch.cuda.manual_seed_all(1)
torch.cuda.synchronize()
torch.cuda.utilization()
print(ditorch.report().render())
""",
        DITORCH_QUIET="1",
    )
    assert "torch.cuda.manual_seed_all" in text
    assert "1 call sites without an equivalent" in text
    assert "<string>:6: torch.cuda.utilization" in text


def test_strict_raises_with_the_call_the_place_and_what_to_do() -> None:
    done = run_python(
        "import torch, ditorch\ntorch.cuda.utilization()\n", DITORCH_STRICT="1", DITORCH_QUIET="1"
    )
    assert done.returncode == 1
    assert "torch.cuda.utilization has no equivalent here; called at <string>:2." in done.stderr
    assert "Hint:" in done.stderr


@pytest.mark.parametrize("command", [("-m", "ditorch"), ("-m", "deeplink")])
def test_an_error_of_a_program_shows_its_own_frames(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "bad.py"
    script.write_text("import torch\n\ndef f():\n    torch.ones(2, device='cuda') @ 3\n\nf()\n")
    done = warm.run([*command, "run", str(script)], os.environ, warn="ignore")
    lines = [line.strip() for line in done.stderr.splitlines() if line.startswith("  File")]
    assert lines == [
        f'File "{script}", line 6, in <module>',
        f'File "{script}", line 4, in f',
    ]
    assert done.stderr.splitlines()[-1].startswith("TypeError: ")
    assert done.returncode == 1


def test_what_a_program_starts_has_it_too(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    child = "import torch; print(torch.ones(1, device='cuda').is_cuda)"
    script.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    source = f"""
import subprocess, sys
command = [sys.executable, "-m", "ditorch", "run", {str(script)!r}]
print(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
"""
    assert output_of(source, DITORCH_QUIET="1").strip() == "True"


def test_the_vendors_own_migration_tool_is_refused_too(
    active: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from deeplink.vendor import Choice, choose
    from ditorch import session

    active.undo()
    tooled = replace(choose("reference").vendor, transfer_tools=("acme.transfer",))
    monkeypatch.setattr(session, "choose", lambda name: Choice(tooled, "asked for"))
    monkeypatch.setitem(sys.modules, "acme.transfer", ModuleType("acme.transfer"))
    with pytest.raises(DeeplinkError, match=r"acme\.transfer is loaded already"):
        active.activate("reference")


def test_on_a_device_that_is_cuda_already_nothing_is_changed() -> None:
    source = """
import torch
from deeplink import vendor as vendors

made = vendors.Vendor(name="nvidia", device="cuda", is_available=lambda: True)
vendors.choose = lambda name=None: vendors.Choice(made, "asked for")
owners = (torch, torch.cuda, torch.Tensor, torch.nn.Module, torch.amp, torch._C, torch.autograd)

def state():
    return {
        (i, name): (id(value), id(getattr(value, "__code__", None)))
        for i, owner in enumerate(owners)
        for name, value in vars(owner).items()
    }

before = state()
import ditorch
print(state() == before, torch.cuda.is_initialized())
"""
    assert output_of(source) == "True False"
    other = source.replace("vendors.choose =", "unused =")  # the reference device: much changes
    assert output_of(other).startswith("False")
