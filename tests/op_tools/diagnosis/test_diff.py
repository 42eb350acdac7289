"""Two recorded runs: where they first truly part, whatever holds them."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import op_tools
import torch_dipu  # noqa: F401
from deeplink import cli
from op_tools.core import native_library, step_counter
from op_tools.diagnosis import result_files
from op_tools.diagnosis.diff import collectives, recordings, tensor_diff
from op_tools.diagnosis.diff.driver import diff
from op_tools.diagnosis.diff.recordings import Entry, Recording, Value
from tests.op_tools.diagnosis.programs import training

NORM = "aten.native_layer_norm.default"
STORES: dict[str, dict[str, str]] = {
    "packed": {"format": "packed"},
    "folders": {"format": "folders"},
    "statistics": {"mode": "statistics"},
}


def recorded(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    store: str = "packed",
    fault: tuple[str, str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Recording:
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder))
    step_counter.reset()
    with op_tools.OpCapture(level="aten", **STORES[store]):
        training(fault, dtype)()
    return recordings.read(folder)


@pytest.mark.parametrize("store", STORES)
def test_the_call_that_goes_wrong_is_named_not_those_behind_it(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = recorded(tmp_path / "a", monkeypatch, store)
    fault = ("wrong_epsilon", "native_layer_norm")
    wrong = recorded(tmp_path / "b", monkeypatch, store, fault)
    found = diff(right, wrong)
    assert found["status"] == "diverges"
    first = found["first"]
    assert first is not None
    assert (first["op"], first["module"], first["step"]) == (NORM, "1", 0)
    assert found["counts"] == {"same": right.calls}
    grown = {
        row["step"]: row["error"] or 0.0
        for row in found["growth"]
        if (row["module"], row["direction"]) == ("0", "forward")
    }
    assert grown[0] == 0 < grown[1]  # right until then, and wrong from there on


def test_the_same_run_twice_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [recorded(tmp_path / word, monkeypatch) for word in "ab"]
    found = diff(*runs)
    assert (found["status"], found["first"]) == ("same", None)


def test_rounding_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that rounds in another way: everything in float64 in between."""
    right = recorded(tmp_path / "a", monkeypatch)
    with op_tools.OpReroute(
        op_tools.diagnosis.bisect.reroute_tool.Plan("cpu-float64", everything=True)
    ):
        other = recorded(tmp_path / "b", monkeypatch)
    found = diff(right, other)
    assert found["status"] == "rounding"
    assert found["first"] is None


def test_runs_of_other_programs_have_little_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = recorded(tmp_path / "a", monkeypatch)
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / "b"))
    with op_tools.OpCapture(level="aten", format="packed"):
        torch.ones(3, device="dipu").tan()
    found = diff(mine, recordings.read(tmp_path / "b"))
    assert found["status"] in ("same", "nothing in common")
    assert found["counts"]["only a"] >= mine.calls - 2


def test_an_archive_that_ends_in_the_middle_is_read_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recorded(tmp_path / "a", monkeypatch)
    (file,) = (tmp_path / "a").rglob("*.opcap")
    data = file.read_bytes()
    (tmp_path / "b").mkdir()
    for share in (0.3, 0.7, 0.99):
        (tmp_path / "b" / file.name).write_bytes(data[: int(len(data) * share)])
        found = diff(whole, recordings.read(tmp_path / "b"))
        assert found["status"] == "same"
        assert 0 < found["b"]["calls"] < whole.calls + (share > 0.9)


def test_a_run_that_is_not_whole_is_not_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = recorded(tmp_path / "a", monkeypatch)
    (file,) = (tmp_path / "a").rglob("*.opcap")
    data = file.read_bytes()
    (tmp_path / "b.opcap").write_bytes(data[: len(data) // 2])
    line = [str(tmp_path / "a"), str(tmp_path / "b.opcap"), "--json", str(tmp_path / "x.json")]
    assert cli.status(["diff", *line]) == 2
    found = result_files.read(tmp_path / "x.json")
    assert f"of {whole.calls} calls are missing or damaged" in found["b"]["problems"][0]
    assert "Not all of B was read" in " ".join(capsys.readouterr().out.split())


def test_the_command_writes_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "a", monkeypatch)
    recorded(tmp_path / "b", monkeypatch, fault=("ignore_strides", "mm"))
    line = [str(tmp_path / "a"), str(tmp_path / "b"), "--json", str(tmp_path / "found.json")]
    assert cli.status(["diff", *line]) == 1
    found = result_files.read(tmp_path / "found.json")
    assert found["first"]["op"] == "aten.mm.default"
    printed = capsys.readouterr().out
    assert found["verdict"].split(":")[0] in " ".join(printed.split())
    assert "\nProblem:    B is wrong: output: " in printed
    (evidence,) = found["evidence"]
    assert f"\nEvidence:   {evidence}\n" in printed and "transposed (not contiguous)" in evidence
    assert "\nWorkaround: deeplink run --fallback aten.mm.default train.py\n" in printed
    assert "\nNext:       deeplink bisect train.py\n" in printed
    assert cli.status(["diff", *line[:3], str(tmp_path / "none" / "found.json")]) == 2
    shown = capsys.readouterr()
    assert "cannot be written" in shown.err  # the findings are shown nevertheless
    assert "aten.mm.default" in shown.out


def test_what_is_no_run_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.status(["diff", str(tmp_path), str(tmp_path / "none")]) == 2
    assert "no recorded call" in capsys.readouterr().err


# Two tensors.


def value_of(tensor: Tensor) -> Value:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Value(dtype, tuple(tensor.shape), stride=tensor.stride(), bytes=lambda: data)


@pytest.mark.parametrize("native", [True, False], ids=["native", "numpy"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "bool"])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e20])
def test_two_tensors_are_compared_as_float64_would(
    dtype: str, native: bool, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(native_library, "helper", lambda: None)
    torch.manual_seed(0)
    a = (torch.randn(5000, dtype=torch.float64) * scale).to(getattr(torch, dtype))
    b = a.clone()
    b[::7] = (a[::7].double() * 1.01 + 1).to(a.dtype)
    found = tensor_diff.compared(value_of(a), value_of(b))
    assert found is not None
    x, y = a.double(), b.double()
    good = x.isfinite() & y.isfinite()
    assert found.differing == int((a != b).sum())
    if bool(good.all()):
        assert found.error == pytest.approx(float((x - y).norm() / x.norm()), rel=1e-4)
        assert found.largest == pytest.approx(float((x - y).abs().max()), rel=1e-6)


def test_what_is_not_finite_on_one_side_is_infinitely_far() -> None:
    a = torch.tensor([1.0, math.nan, math.inf, -math.inf] * 300)
    same = tensor_diff.compared(value_of(a), value_of(a.clone()))
    assert same is not None and same.same
    for at, other in ((0, math.nan), (1, 0.0), (2, -math.inf)):
        b = a.clone()
        b[at] = other
        found = tensor_diff.compared(value_of(a), value_of(b))
        assert found is not None and found.error == math.inf and found.differing == 1


def test_tensors_of_other_strides_are_compared_by_place() -> None:
    a = torch.randn(6, 4)
    b = a.t().contiguous().t()
    data = b.t().contiguous().reshape(-1).view(torch.uint8).numpy()
    other = Value("float32", (6, 4), stride=b.stride(), bytes=lambda: data)
    found = tensor_diff.compared(value_of(a), other)
    assert found is not None and found.same


# Ranks.


def gave(rank: int, data: Any, result: Any, op: str = "all_reduce", number: int = 1) -> Entry:
    name = f"torch.distributed.distributed_c10d.{op}"
    inputs = tuple(value_of(torch.tensor(row)) for row in data)
    outputs = tuple(value_of(torch.tensor(row)) for row in result)
    stamp = f"2026-01-01-00-00-{10 * number + rank * 3:02}"
    return Entry(number, name, "forward", 0, "", "t.py:1", inputs, outputs, rank, stamp)


def ranks(*entries: Entry, missing: tuple[int, ...] = ()) -> Recording:
    by_rank = {entry.rank: [entry] for entry in entries}
    return Recording(Path(), ["packed"], by_rank, list(missing))


def test_a_sum_that_is_wrong_on_one_rank_is_found() -> None:
    right = ranks(gave(0, [[1.0, 2.0]], [[4.0, 6.0]]), gave(1, [[3.0, 4.0]], [[4.0, 6.0]]))
    (row,) = collectives.check(right, "a")
    assert row["status"] == "right"
    wrong = ranks(gave(0, [[1.0, 2.0]], [[4.0, 6.0]]), gave(1, [[3.0, 4.0]], [[4.0, 7.0]]))
    (row,) = collectives.check(wrong, "a")
    assert (row["status"], row["rank"]) == ("wrong", 1)


@pytest.mark.parametrize(
    ("op", "results"),
    [
        ("all_gather_single", [[1.0, 2.0, 3.0, 4.0]] * 2),
        ("reduce_scatter_single", [[4.0], [6.0]]),
        ("broadcast", [[1.0, 2.0]] * 2),
    ],
)
def test_other_collectives_are_checked_too(op: str, results: list[list[float]]) -> None:
    given = [[1.0, 2.0], [3.0, 4.0]]
    runs = [gave(r, [given[r]], [results[r]], op) for r in range(2)]
    assert collectives.check(ranks(*runs), "a")[0]["status"] == "right"
    runs[1] = gave(1, [given[1]], [[9.0] * len(results[1])], op)
    (row,) = collectives.check(ranks(*runs), "a")
    assert row["status"] == "wrong"


def later(rank: int, data: Any, read: Any) -> list[Entry]:
    """A collective that did not wait, and the call that read its result."""
    given, found = value_of(torch.tensor(data)), value_of(torch.tensor(read))
    call = Entry(7, "c10d.allreduce_.default", "forward", 0, "", "", (given,), (given,), rank)
    return [call, Entry(8, "aten.add.Tensor", "forward", 0, "", "", (found,), (), rank,
                        awaited=((7, 0, 1),))]  # fmt: skip


def test_a_result_that_came_later_is_judged_by_the_first_that_read_it() -> None:
    """The reader may read a part only, for example of a bucket of gradients."""
    right = {0: later(0, [1.0, 2.0], [6.0]), 1: later(1, [3.0, 4.0], [6.0])}
    assert [row["status"] for row in collectives.check(Recording(Path(), [], right), "a")] == [
        "right"
    ]
    right[1] = later(1, [3.0, 4.0], [7.0])
    (row,) = collectives.check(Recording(Path(), [], right), "a")
    assert (row["status"], row["rank"]) == ("wrong", 1)


def test_who_writes_over_a_result_has_not_read_it() -> None:
    """Back ends of torch's make an all_gather so, with a kernel that is in the record."""
    run = {rank: later(rank, [1.0, 2.0], [9.0]) for rank in range(2)}
    over = {
        rank: [call, replace(reader, op="aten.copy_.default")]
        for rank, (call, reader) in run.items()
    }
    statuses = [
        collectives.check(Recording(Path(), [], each), "a")[0]["status"] for each in (run, over)
    ]
    assert statuses == ["wrong", "not checked"]


def test_groups_of_ranks_are_distinguished() -> None:
    rows = [gave(r, [[1.0 + r]], [[3.0 if r < 2 else 7.0]]) for r in range(4)]
    run = ranks(*(replace(e, group=(0, 1) if e.rank < 2 else (2, 3)) for e in rows))
    assert [row["status"] for row in collectives.check(run, "a")] == ["right", "right"]


def test_a_missing_rank_is_reported_and_the_rest_is_shown() -> None:
    full = ranks(gave(0, [[1.0]], [[3.0]]), gave(1, [[2.0]], [[3.0]]))
    lone = ranks(gave(0, [[1.0]], [[3.0]]), missing=(1,))
    found = diff(full, lone)
    assert "Rank 1 of B is missing" in found["verdict"]
    assert found["counts"]["same"] >= 1


def test_the_rank_that_is_late_is_named() -> None:
    (late,) = collectives.stragglers(ranks(gave(0, [[1.0]], [[3.0]]), gave(1, [[2.0]], [[3.0]])))
    assert (late["rank"], late["seconds"]) == (1, 3.0)


def test_the_rank_where_it_began_is_the_one_that_is_named() -> None:
    def row(rank: int, wrong_at: int) -> list[Entry]:
        one = value_of(torch.ones(8))
        good, bad = replace(one, norm=1.0), value_of(torch.full((8,), 2.0))
        return [
            Entry(n, f"aten.op{n}.default", "forward", 0, "", "", (one,),
                  (bad if n == wrong_at else good,), rank)
            for n in range(6)
        ]  # fmt: skip

    a = Recording(Path(), ranks={0: row(0, 9), 1: row(1, 9)})
    b = Recording(Path(), ranks={0: row(0, 4), 1: row(1, 2)})
    first = diff(a, b)["first"]
    assert first is not None
    assert (first["rank"], first["op"]) == (1, "aten.op2.default")


def test_one_rank_is_held_against_each_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = recorded(tmp_path / "a", monkeypatch)
    entries = one.ranks[0]
    many = Recording(Path(), ranks={r: [replace(e, rank=r) for e in entries] for r in range(3)})
    found = diff(one, many)
    assert found["counts"] == {"same": 3 * len(entries)}
    short = Recording(Path(), ranks={0: entries[:-2]})
    assert "bit for bit, as far as both go (2 calls only in A)" in diff(one, short)["verdict"]


def test_the_file_names_of_ranks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in (0, 2):
        monkeypatch.setenv("RANK", str(rank))
        recorded(tmp_path, monkeypatch, "statistics" if rank else "packed")
    run = recordings.read(tmp_path)
    assert (sorted(run.ranks), run.missing) == ([0, 2], [1])
    assert run.ranks[2][0].rank == 2


def test_numbers_that_json_has_no_word_for_are_null(tmp_path: Path) -> None:
    result_files.write({"kind": "diff", "x": [math.nan, 1.0]}, tmp_path / "f.json")
    assert json.loads((tmp_path / "f.json").read_text())["x"] == [None, 1.0]


def test_random_bytes_are_never_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "x.opcap").write_bytes(np.random.default_rng(0).bytes(4096))
    (tmp_path / "op_statistics_x.jsonl").write_text("{not json}\n")
    with pytest.raises(recordings.RecordingError, match="no recorded call"):
        recordings.read(tmp_path)


def test_what_a_collective_wrote_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd counts no write of it: without more, its result would not be there."""
    import torch.distributed as dist

    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    dist.init_process_group("dicl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with op_tools.OpCapture(format="packed"):
            dist.all_reduce(torch.ones(2, device="dipu"))
            dist.all_reduce(torch.ones(2, device="dipu"), async_op=True).wait()
    finally:
        dist.destroy_process_group()
    entries = recordings.read(tmp_path).ranks[0]
    reduced = [entry for entry in entries if entry.op.endswith("all_reduce")]
    assert [len(entry.outputs) for entry in reduced] == [1, 0]  # the second is not waited for


def test_who_reads_the_result_of_a_collective_first_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view has not waited for it, and what torch writes without a kernel is taken as it is."""
    import torch.distributed as dist

    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with op_tools.OpCapture(level="aten", format="packed", devices=("cpu",)):
            x = torch.zeros(4)
            x.numpy()[:] = 3.0
            work = dist.all_reduce(x, async_op=True)
            part = x.view(2, 2)[1]
            work.wait()
            part + 1
    finally:
        dist.destroy_process_group()
    entries = recordings.read(tmp_path).ranks[0]
    (reduced,) = (entry for entry in entries if entry.op.startswith("c10d.allreduce_"))
    (reader,) = (entry for entry in entries if entry.awaited)
    assert (reduced.group, reader.op) == ((0,), "aten.add.Tensor")
    assert reader.awaited == ((reduced.id, 0, 2),)
    given = reduced.inputs[0].tensor()
    assert given is not None and given.tolist() == [3.0] * 4


@pytest.mark.slow
def test_a_compiled_program_is_held_against_the_eager_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: Path, compiled: bool, fault: bool = False) -> Recording:
        monkeypatch.setenv("OP_TOOLS_RESULTS", str(folder))
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
        net = net.to("dipu")
        called: Any = torch.compile(net, backend="aot_eager") if compiled else net
        quirk = torch.dipu.quirk("wrong_epsilon", factor=1e5) if fault else nullcontext()
        x = torch.randn(8, 16).to("dipu")
        with quirk, op_tools.OpCapture(level="aten", format="packed"):
            called(x).pow(2).mean().backward()
        torch._dynamo.reset()
        return recordings.read(folder)

    eager = run(tmp_path / "a", False)
    found = diff(eager, run(tmp_path / "b", True))
    assert (found["status"] in ("same", "rounding"), found["first"]) == (True, None)
    first = diff(eager, run(tmp_path / "c", True, fault=True))["first"]
    assert first is not None and first["op"] == "aten.native_layer_norm.default"


def test_a_view_of_equal_values_is_no_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics have no numbers of a view: the call that makes it is not where runs part."""

    def run(folder: str, fault: bool) -> Recording:
        monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path / folder))
        step_counter.reset()
        torch.manual_seed(0)
        x = torch.randn(4, 8).to("dipu")
        quirk = torch.dipu.quirk("wrong_epsilon", "native_layer_norm") if fault else nullcontext()
        with op_tools.OpCapture(level="aten", mode="statistics"), quirk:
            torch.nn.functional.layer_norm((x * 2)[:, :6] * 3, (6,))
        return recordings.read(tmp_path / folder)

    found = diff(run("a", False), run("b", True))
    assert found["first"] is not None and found["first"]["op"] == "aten.native_layer_norm.default"
