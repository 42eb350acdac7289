"""inductorgraph on the CPU: a later process opens the library that an earlier one compiled."""

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from deeplink_vendors.cuda.graph import backend
from dicp import torch_internals
from dicp.dynamo_bridge import report
from dicp.torch_internals import libraries

# inductor's own imports
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
slow = pytest.mark.slow  # inductor compiles C++ for a minute
PROGRAM = """
import sys, torch
from deeplink_vendors.cuda.graph import backend
from dicp.dynamo_bridge import report
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 2))
x = torch.randn(3, 4)
with torch.no_grad():
    model[0].weight.mul_(float(sys.argv[1]))
    made = torch.compile(model, backend=backend)(x)
    torch.testing.assert_close(made, model(x))
print(made.flatten().tolist())
print(report.RECORDS[-1].cached, "torch._inductor.compile_fx" in sys.modules)
"""


def process(factor: float) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(factor)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x))) + x  # type: ignore[no-any-return]


def run(function: Callable[..., Any], *args: Tensor) -> tuple[Any, report.Record]:
    torch.compiler.reset()
    with torch.no_grad():
        return torch.compile(function, backend=backend)(*args), report.RECORDS[-1]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Replace inductor: a graph becomes a library of a few bytes; return the opened ones."""
    found: list[bytes] = []
    graphs: list[fx.GraphModule] = []

    def inductor(gm: fx.GraphModule, inputs: Any, *rest: Any, watch: Any) -> Callable[..., Any]:
        if watch is not None and watch.wanted(aot_graph(gm, inputs)):
            watch.library = torch_internals.Library(f"library {len(graphs)}".encode(), "")
        graphs.append(fx.GraphModule(gm, gm.graph))
        return gm.forward

    def open_library(file: Path, text: str) -> Callable[[list[Any]], Any]:
        found.append(file.read_bytes())
        gm = graphs[int(found[-1].split()[-1])]
        return lambda args: gm(*args)

    monkeypatch.setattr(torch_internals, "inductor", inductor)
    monkeypatch.setattr(torch_internals, "open_library", open_library)
    return found


def aot_graph(gm: fx.GraphModule, inputs: Any) -> fx.GraphModule:
    made: list[fx.GraphModule] = []

    def inference(graph: fx.GraphModule, given: Any) -> Callable[..., Any]:
        made.append(graph)
        return graph.forward

    copied = fx.GraphModule(gm, copy.deepcopy(gm.graph))
    given = {"forward": inference, "backward": inference, "inference": inference}
    torch_internals.aot(copied, inputs, **given, table={})
    return made[0]


def libraries_of(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "inductorgraph").glob("*.library"))


@slow
def test_a_later_process_needs_no_inductor_and_takes_the_weights_that_it_has() -> None:
    first = process(1.0)
    assert first[1] == "0 True"
    assert process(1.0) == [first[0], "1 False"]  # bit by bit
    other = process(2.0)
    assert other[1] == "1 False" and other[0] != first[0]


@slow
def test_a_damaged_library_of_inductor_s_is_compiled_anew(tmp_path: Path) -> None:
    model, x = Model(), torch.randn(3, 4)
    expected, record = run(model, x)
    assert record.cached == 0
    (kept,) = libraries_of(tmp_path)
    kept.write_bytes(kept.read_bytes()[:-7])
    made, record = run(model, x)
    assert record.cached == 0 and torch.equal(made, expected)
    made, record = run(model, x)
    assert record.cached == 1 and torch.equal(made, expected)


def test_a_damaged_file_is_said_and_written_anew(
    opened: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Model(), torch.randn(3, 4)
    assert run(model, x)[1].cached == 0
    (kept,) = libraries_of(tmp_path)
    kept.write_bytes(b"foreign" + kept.read_bytes())
    assert run(model, x)[1].cached == 0 and opened == []
    assert f"{kept} is damaged" in caplog.text
    assert run(model, x)[1].cached == 1
    for file in kept.parent.glob("*.so"):
        file.write_bytes(b"no library")
    assert run(model, x)[1].cached == 1 and opened == [b"library 1"] * 2


def test_a_library_that_cannot_be_opened_here_is_compiled_anew(
    opened: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: Path, text: str) -> Any:
        raise ImportError("failed to map segment from shared object")

    model, x = Model(), torch.randn(3, 4)
    run(model, x)
    monkeypatch.setattr(torch_internals, "open_library", refuse)
    made, record = run(model, x)
    assert record.cached == 0 and "failed to map segment" in caplog.text
    torch.testing.assert_close(made, model(x).detach())


def test_weights_that_change_after_a_start_from_the_disk_are_taken(opened: list[bytes]) -> None:
    model, x = Model(), torch.randn(3, 4)
    run(model, x)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(model, backend=backend)
        torch.testing.assert_close(compiled(x), model(x))
        assert report.RECORDS[-1].cached == 1
        model.up.weight.mul_(3)
        torch.testing.assert_close(compiled(x), model(x))


def test_another_machine_or_setting_has_another_library(
    opened: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = Model(), torch.randn(3, 4)
    run(model, x)
    with torch._inductor.config.patch("cpp.enable_unsafe_math_opt_flag", True):
        assert run(model, x)[1].cached == 0
    monkeypatch.setattr(libraries, "_processor", lambda: ("another",))
    assert run(model, x)[1].cached == 0
    assert len(libraries_of(tmp_path)) == 3


def test_a_pass_of_the_program_s_own_leaves_a_graph_to_torch_s_cache() -> None:
    with torch._inductor.config.patch(joint_custom_pre_pass=lambda graph: None):
        assert torch_internals.state_of_inductor() is None


def viewed(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t(), x + 1


def written(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


@slow
def test_what_aotautograd_does_around_a_graph_is_not_left_out() -> None:
    x = torch.randn(3, 4)
    for _ in range(2):
        view, _ = run(viewed, x)[0]
        assert view.data_ptr() == x.data_ptr()
        given = x.clone()
        made, record = run(written, given)
        assert record.cached == 0 and torch.equal(given, x + 1) and torch.equal(made, given * 2)


def test_what_is_no_library_is_left_to_torch_s_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    watches: list[Any] = []

    def inductor(gm: fx.GraphModule, *rest: Any, watch: Any) -> Callable[..., Any]:
        watches.append(watch)
        return gm.forward

    monkeypatch.setattr(torch_internals, "inductor", inductor)
    for _ in range(2):
        assert run(Model(), torch.randn(3, 4))[1].cached == 0
    assert watches[0] is not None and watches[1] is None


@slow
def test_changing_sizes_are_those_of_the_first_process_or_compiled_anew(tmp_path: Path) -> None:
    model = Model()
    for cached in (0, 1):
        torch.compiler.reset()
        compiled = torch.compile(model, backend=backend, dynamic=True)
        with torch.no_grad():
            for rows in (3, 5, 40):
                x = torch.randn(rows, 4)
                torch.testing.assert_close(compiled(x), model(x))
        assert report.RECORDS[-1].cached == cached
    assert len(libraries_of(tmp_path)) == 1
