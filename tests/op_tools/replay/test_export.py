"""A captured call as a script of its own: it runs with torch alone, and reports differences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from op_tools import OpCapture
from op_tools.capture.encoding import Drawing, Recorded
from op_tools.replay import ReplayError, load_cases
from op_tools.replay.export_script import export


def run(script: Path, *words: str) -> tuple[int, str]:
    """The script in a Python that knows torch and not us."""
    alone = (
        "import sys; sys.path = [p for p in sys.path if '/src' not in p and 'snap' not in p]; "
        "sys.meta_path.insert(0, type('No', (), {'find_spec': staticmethod(lambda name, *rest: "
        "(_ for _ in ()).throw(ImportError(name)) if name.split('.')[0] in "
        "('op_tools', 'deeplink', 'ditorch', 'torch_dipu') else None)})); "
        "import runpy; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-I", "-c", alone, str(script), *words]
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def captured(name: str) -> Recorded:
    found = [case.load() for case in load_cases("op_tools_results")]
    return next(call for call in found if call.name == name)


@pytest.mark.parametrize("name", ["to", "cuda"])
def test_a_device_by_name_is_that_of_the_script(name: str, tmp_path: Path) -> None:
    args = (torch.ones(2), "npu:0") if name == "to" else (torch.ones(2), 0)
    header = {"id": 1, "name": f"torch.Tensor.{name}", "device": "npu:0"}
    export(Recorded(header, args, {}, ["cpu"], torch.ones(2), True), tmp_path / "repro.py")
    said = run(tmp_path / "repro.py", "cpu")
    assert said == (0, f"torch.Tensor.{name}: as it was captured\n")


def test_forward_and_backward(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, device="dipu", requires_grad=True)
    weight = torch.randn(4, 5, device="dipu", requires_grad=True)
    with OpCapture():
        torch.nn.functional.linear(x, weight.t()).square().sum().backward()
    data = export(captured("torch.nn.functional.linear"), tmp_path / "repro.py")
    assert data == tmp_path / "repro.pt"
    text = (tmp_path / "repro.py").read_text()
    assert "result = torch.nn.functional.linear(inputs[0], inputs[1])" in text
    assert "op_tools" not in text and "deeplink" not in text
    code, said = run(tmp_path / "repro.py", "cpu")
    assert (code, said) == (0, "torch.nn.functional.linear: as it was captured\n")

    held = torch.load(data, weights_only=True)
    held["gradients"][1][0, 0] += 1
    torch.save(held, data)
    code, said = run(tmp_path / "repro.py", "cpu")
    assert code == 1
    assert "gradient of argument 1: Tensor-likes are not close!" in said
    assert said.endswith("torch.nn.functional.linear: NOT as it was captured\n")


def test_a_missing_device_is_said(tmp_path: Path) -> None:
    with OpCapture():
        torch.ones(3, device="dipu").sort()
    export(captured("torch.Tensor.sort"), tmp_path / "repro.py")
    code, said = run(tmp_path / "repro.py")
    assert code == 0 and "no device 'dipu:0' here" in said and "as it was captured" in said


def test_writes_slices_strides_and_plain_results(tmp_path: Path) -> None:
    x = torch.zeros(4, 6, device="dipu")
    y = torch.randn(1, 6, device="dipu").expand(4, 6)
    with OpCapture():
        x[1:3, ...] = 2
        x.t().add_(y.t(), alpha=2)
        y.tolist()
        torch.ops.aten.add.Tensor(x, y)
        torch.empty(3, device="dipu")
    for number, name in enumerate(
        (
            *("torch.Tensor.__setitem__", "torch.Tensor.add_", "torch.Tensor.tolist"),
            *("aten.add.Tensor", "torch.empty"),
        )
    ):
        export(captured(name), tmp_path / f"repro{number}.py")
        code, said = run(tmp_path / f"repro{number}.py", "cpu")
        assert code == 0, said


def test_gradients_through_a_write_in_place(tmp_path: Path) -> None:
    x = torch.randn(3, device="dipu", requires_grad=True)
    with OpCapture():
        (x * 1).mul_(3).sum().backward()
    export(captured("torch.Tensor.mul_"), tmp_path / "repro.py")
    code, said = run(tmp_path / "repro.py", "cpu")
    assert code == 0, said


def test_what_is_no_operator_is_not_exported(tmp_path: Path) -> None:
    call = Recorded({"id": 1, "name": "os.system"}, ("true",), {}, [])
    with pytest.raises(ReplayError):
        export(call, tmp_path / "repro.py")
    drawing = Drawing("cpu", torch.get_rng_state())
    call = Recorded({"id": 1, "name": "torch.rand"}, (2,), {"generator": drawing}, [])
    with pytest.raises(ReplayError, match="not exported"):
        export(call, tmp_path / "repro.py")
    assert list(tmp_path.glob("repro*")) == []
