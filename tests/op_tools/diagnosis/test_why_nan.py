"""`deeplink why-nan`: the kernel that made the first NaN of those that did harm, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from op_tools import WhyNan
from op_tools.tensors import statistics
from tests.op_tools import small

ROOT = Path(__file__).parents[3]


class Cnn(nn.Module):
    """Convolutions, a batch norm, a pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        out: Tensor = self.last(hidden.flatten(1))
        return out


def images(steps: int, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(0)
    model = Cnn().to("dipu", dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        x = torch.randn(2, 3, 8, 8).to("dipu", dtype)
        loss = F.cross_entropy(model(x).float(), torch.tensor([1, 2]).to("dipu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def texts(steps: int) -> None:
    small.train(steps)


PLANTED: list[tuple[Callable[[int], Any], str, str]] = [
    (texts, "addmm", "aten.addmm.default"),
    (texts, "native_layer_norm", "aten.native_layer_norm.default"),
    (texts, "_softmax", "aten._softmax.default"),
    (texts, "bmm|mm", "aten.mm.default"),
    (texts, "_log_softmax_backward_data", "aten._log_softmax_backward_data.default"),
    (images, "convolution_overrideable", "aten.convolution.default"),
    (images, "native_batch_norm", "aten.native_batch_norm.default"),
    (images, "max_pool2d_with_indices", "aten.max_pool2d_with_indices.default"),
    (images, "threshold_backward", "aten.threshold_backward.default"),
    (partial(images, dtype=torch.bfloat16), "native_batch_norm", "aten.native_batch_norm.default"),
    (partial(small.train, amp=True), "addmm", "aten.addmm.default"),
]


@pytest.mark.parametrize(("train", "op", "name"), PLANTED, ids=lambda value: str(value)[:30])
def test_the_kernel_with_the_fault_is_named(
    train: Callable[[int], Any], op: str, name: str
) -> None:
    with torch.dipu.quirk("nan", op, call=2), WhyNan() as tool:
        train(2)
    assert tool.found is not None and tool.found["status"] == "found"
    assert tool.found["origin"]["op"] == name
    assert tool.found["origin"]["state"] == "NaN"
    assert tool.found["origin"]["site"].rpartition("/")[2].startswith(("small.py", "test_why_nan"))
    assert json.loads(tool.place.read_text())["verdict"] == tool.found["verdict"]


@pytest.mark.parametrize("train", [texts, images])
def test_a_healthy_run_reports_nothing(train: Callable[[int], None]) -> None:
    with WhyNan() as tool:
        train(2)
    assert tool.found is not None
    assert (tool.found["status"], tool.found["origin"]) == ("healthy", None)


def test_it_changes_nothing() -> None:
    plain = small.train(2)
    with WhyNan():
        watched = small.train(2)
    assert plain["losses"] == watched["losses"]
    for a, b in zip(plain["weights"], watched["weights"], strict=True):  # type: ignore[call-overload]
        assert torch.equal(a, b)


def explained(run: Callable[[], Any]) -> dict[str, Any]:
    with WhyNan() as tool:
        run()
    assert tool.found is not None
    return tool.found


def test_an_inf_that_does_no_harm_is_passed_over() -> None:
    def run() -> None:
        x = torch.tensor([0.0, 1.0], device="dipu", requires_grad=True)
        y = torch.where(x.detach() > 0, torch.log(x.detach()), 0.0)  # log(0) is thrown away
        (x * y).sum().backward()

    assert explained(run)["status"] == "healthy"


def test_softmax_of_a_row_that_is_all_masked_is_the_origin() -> None:
    def run() -> None:
        x = torch.zeros(2, 2, device="dipu", requires_grad=True)
        mask = torch.tensor([[True, True], [False, True]]).to("dipu")
        torch.softmax(x.masked_fill(mask, float("-inf")), -1).sum().backward()

    assert explained(run)["origin"]["op"] == "aten._softmax.default"


def test_a_nan_among_the_data_is_reported_as_such() -> None:
    def run() -> None:
        x = torch.tensor([1.0, float("nan")]).to("dipu")
        (x * 2).sum().item()

    found = explained(run)
    assert found["verdict"].startswith(
        "The NaN came from outside: it is an argument of aten._to_copy.default"
    )


def test_an_overflow_is_followed_to_where_it_began() -> None:
    def run() -> None:
        x = torch.full((4,), 300.0, device="dipu", dtype=torch.float16, requires_grad=True)
        y = x * x  # 90000 is beyond float16
        (y - y).sum().item()

    found = explained(run)
    assert (found["origin"]["op"], found["origin"]["state"]) == ("aten.mul.Tensor", "Inf")
    assert found["chain"][0]["state"] == "NaN"


def test_a_step_that_a_scaler_skips_is_no_alarm() -> None:
    scaler = torch.amp.GradScaler("dipu", init_scale=2.0**40)
    weight = nn.Parameter(torch.ones(4, device="dipu", dtype=torch.float32))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def run() -> None:
        for _ in range(2):
            loss = (weight.half() * 3.0).float().sum()  # its gradient passes through float16
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert explained(run)["status"] == "healthy"
    assert scaler.get_scale() < 2.0**40  # it did skip


def test_a_full_disk_costs_the_file_and_not_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = WhyNan().start()
    tool.place = Path("/dev/full")
    torch.log(torch.tensor([-1.0], device="dipu")).item()
    tool.stop()
    assert tool.found is not None and tool.found["origin"]["op"] == "aten.log.default"


def test_the_command_names_it_writes_a_page_and_fails(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nx = torch.zeros(2, device='cuda')\nprint((x / x).sum().item())\n"
    )
    line = [sys.executable, "-m", "op_tools", "why-nan", "-o", str(tmp_path / "out")]
    done = subprocess.run(
        [*line, "--", "python", str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "why-nan: first NaN produced by aten.div.Tensor (forward), step 0" in done.stdout
    assert f"{program}:3: print((x / x).sum().item())" in done.stdout.replace("\n", "")
    assert "first NaN produced by aten.div.Tensor" in (tmp_path / "out/report.html").read_text()


def test_where_the_host_does_not_see_the_memory_calls_are_judged_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "kind_is_seen", lambda kind: kind == "cpu")
    with torch.dipu.quirk("nan", "native_layer_norm", call=2), WhyNan() as tool:
        texts(2)
    assert tool.found is not None
    assert tool.found["origin"]["op"] == "aten.native_layer_norm.default"
    assert any(line.startswith("in  [0] float32") for line in tool.found["lines"])
    with WhyNan() as healthy:
        texts(2)
    assert healthy.found is not None and healthy.found["status"] == "healthy"
