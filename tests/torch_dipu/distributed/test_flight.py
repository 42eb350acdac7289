"""The flight record: what a rank writes when a collective fails, and who is named as missing."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing as mp
from typer.testing import CliRunner

from deeplink import cli
from deeplink.inspection import collective_hang
from tests.torch_dipu import ranks_flight
from torch_dipu import flight_trace


def test_a_timeout_writes_the_record_and_the_reader_names_the_missing_rank(tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    args = (str(tmp_path), 3.0)
    ranks = [context.Process(target=ranks_flight.main, args=(r, *args)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    first = json.loads((tmp_path / "rank-0.json").read_text())
    assert first["reason"] == "a collective failed"
    done, failed = (entry for entry in first["entries"] if entry["group"] == "1")
    assert (done["operation"], done["sequence"], done["state"]) == ("ALLREDUCE", 1, "done")
    assert (failed["sequence"], failed["state"], failed["inputs"] or failed["outputs"]) == (
        2,
        "failed",
        ["Float[2]"],
    )
    assert "imed out" in failed["error"]
    assert "ranks_flight.py:" in failed["where"] and failed["where"].endswith(" _error")
    late, lost = (tmp_path / "errors").read_text().split("\n---\n")
    assert late.startswith(
        "dicl: rank 0 of 2, all_reduce #2 of group 1 (Float[2]): timed out after 3000 ms: "
    )
    assert "rank 0 aborted the group: rank 1 never joined this collective" in late
    assert "rank 1 has ended, or left the group" in lost
    said_by_torch = _read_by_torch(tmp_path)
    assert "all_reduce" in said_by_torch
    (finding,) = collective_hang.diagnose(collective_hang.read(tmp_path))
    assert "rank 0 in allreduce #2 Float[2]" in finding
    assert "rank 1 is missing: its last is allreduce #1 Float[3], done" in finding
    said = CliRunner().invoke(cli.app, ["flight-record", str(tmp_path)])
    assert said.exit_code == 1 and "rank 1 is missing" in said.stdout.replace("\n", " ")


def _read_by_torch(folder: Path) -> str:
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("missing", [False, True])
def test_torchs_own_reader_reads_the_record_of_two_ranks(tmp_path: Path, missing: bool) -> None:
    for rank in range(2):
        rows = [
            numbered(1, rank, entry(1)),
            numbered(2, rank, entry(2, "_ALLGATHER_BASE", outputs=["Float[2, 4]"])),
            numbered(3, rank, entry(0, ("SEND", "RECV")[rank], peer=1 - rank)),
        ]
        if not (missing and rank == 1):
            rows.append(numbered(4, rank, entry(3, "BARRIER", inputs=[], outputs=[])))
        content = {"groups": {"0": [0, 1]}, "entries": rows}
        trace = flight_trace.trace_of(content, {"0": "default_pg"})
        (tmp_path / f"{flight_trace.PREFIX}{rank}").write_bytes(pickle.dumps(trace))
    said = _read_by_torch(tmp_path)
    assert ("Not all ranks joining collective" in said) == missing
    assert "Traceback" not in said


def test_an_entry_has_torchs_fields() -> None:
    row = numbered(7, 1, entry(5, state="pending", where="train.py:7 step"))
    trace = flight_trace.trace_of({"groups": {"0": [0, 1]}, "entries": [row]}, {"0": "default_pg"})
    (made,) = trace["entries"]
    assert (made["profiling_name"], made["process_group"]) == (
        "xccl:all_reduce",
        ("0", "default_pg"),
    )
    assert (made["input_sizes"], made["input_dtypes"]) == ([[4]], ["Float"])
    assert (made["collective_seq_id"], made["state"], made["retired"]) == (5, "scheduled", False)
    assert made["frames"] == [{"filename": "train.py", "line": 7, "name": "step"}]


def numbered(number: int, rank: int, row: collective_hang.Entry) -> dict[str, Any]:
    """What the core adds to an entry."""
    return {**row, "number": number, "rank": rank, "begun": number, "ended": number + 0.5}


def entry(sequence: int, operation: str = "ALLREDUCE", **more: object) -> collective_hang.Entry:
    return {
        "group": "0",
        "sequence": sequence,
        "operation": operation,
        "inputs": ["Float[4]"],
        "outputs": ["Float[4]"],
        "state": "done",
        "where": "train.py:7 step",
        "peer": -1,
        **more,
    }


def record(rank: int, *entries: collective_hang.Entry) -> collective_hang.Record:
    return collective_hang.Record(rank, 3, 0.0, "", {"0": [0, 1, 2]}, list(entries))


def test_nothing_under_way_is_no_finding() -> None:
    assert collective_hang.diagnose([record(rank, entry(1)) for rank in range(3)]) == []


def test_a_rank_that_wrote_nothing_is_named() -> None:
    records = [record(rank, entry(5, state="pending")) for rank in range(2)]
    assert collective_hang.diagnose(records) == [
        "group 0: ranks 0, 1 in allreduce #5 Float[4] (train.py:7 step); rank 2: no record found "
        "(process exited, or not in a collective)"
    ]


def test_a_rank_that_calls_something_else_is_named() -> None:
    other = entry(5, "BROADCAST", state="pending", where="train.py:9 save")
    waiting = entry(5, state="pending")
    found = collective_hang.diagnose([record(0, waiting), record(1, waiting), record(2, other)])
    assert [line.partition("; ")[2] for line in found] == [
        "rank 2 calls broadcast #5 Float[4] instead (train.py:9 save)"
    ]


def test_a_case_where_all_ranks_are_present_is_distinguished() -> None:
    found = collective_hang.diagnose([record(rank, entry(5, state="pending")) for rank in range(3)])
    assert found == [
        "group 0: ranks 0, 1, 2 in allreduce #5 Float[4] (train.py:7 step): all are there, so it "
        "is slow, or the connection is broken"
    ]


def test_a_receiver_without_a_sender_is_named() -> None:
    waits = entry(0, "RECV", state="pending", peer=2, inputs=[])
    assert collective_hang.diagnose([record(0, waits)]) == [
        "rank 0 waits to receive from rank 2 of group 0: Float[4] (train.py:7 step)"
    ]
