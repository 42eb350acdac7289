"""`deeplink report`: one page from what tools wrote, whole, quick, and without a network."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import threading
import urllib.request
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

import op_tools
from deeplink import cli
from deeplink.errors import DeeplinkError
from op_tools.diagnosis.report import exports, html, readers, summary
from op_tools.diagnosis.report.model import Content, Row
from op_tools.diagnosis.report.server import Server
from tests.op_tools import browser

STAMP = "2026-01-01-00-00-00"


def statistics(folder: Path, count: int, name: str = f"op_statistics_info_pid1_{STAMP}") -> Path:
    """A run's statistics: `count` calls, one of them with a value that is not finite."""
    place = folder / "op_statistics_result"
    place.mkdir(parents=True, exist_ok=True)
    with (place / f"{name}.jsonl").open("w") as file:
        for i in range(count):
            made = {"dtype": "float32", "shape": [4, 8], "min": -1.0, "max": float(i % 7)}
            made |= {"norm": 1.0, "nonfinite": int(i == count // 2), "hash": f"{i:016x}"}
            call = {"id": i, "op": f"aten.op{i % 40}.default", "step": i // 100}
            call |= {"direction": "backward" if i % 2 else "forward", "module": f"blocks.{i % 5}"}
            file.write(json.dumps(call | {"site": "program.py:2", "outputs": [made]}) + "\n")
    return folder


def head_of(text: str) -> Any:
    """The description inside a page."""
    body = text.split('id="head">', 1)[1].split("</script>", 1)[0]
    return json.loads(body.replace("<\\/", "</"))


def test_a_compared_run_shows_what_is_wrong_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    x = torch.linspace(-3, 3, 64, device="dipu").reshape(8, 8)
    with torch.dipu.quirk("ignore_strides", "gelu"), op_tools.OpAutoCompare():
        torch.nn.functional.gelu(x.t()) + 1
    text = html.render(readers.read(tmp_path), Path(__file__).parent)
    label = f"reference device (CPU) (device dipu), torch {torch.__version__}, python "
    head = head_of(text)
    assert head["devices"][0].startswith(label)
    assert head["about"]["device"] == "reference device (CPU) (device dipu)"
    assert head["about"]["torch"] == torch.__version__
    assert {"command", "vendor", "python", "host", "date"} <= set(head["about"])
    assert head["findings"][0]["level"] == "bad"
    assert head["findings"][0]["title"] == "torch.nn.functional.gelu is wrong"
    assert head["operators"][0]["op"] == "torch.nn.functional.gelu"
    (site,) = {site for site in head["texts"]["site"] if site}
    assert "gelu(x.t())" in "".join(head["code"][site]["lines"])
    wrong = {(c["op"], c["dtype"]): c["wrong"] for c in head["cells"]}
    assert wrong["torch.nn.functional.gelu", "float32"] == 1
    assert wrong["torch.Tensor.add", "float32"] == 0


def test_a_timed_run_has_groups_with_operations_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    layer = torch.nn.Linear(64, 32).to("dipu")
    with op_tools.OpTimeMeasure(trace=str(tmp_path / "trace.json")):
        layer(torch.ones(8, 64, device="dipu")).sum().backward()
    content = readers.read(tmp_path)
    (linear,) = [g for g in content.groups if g.op.endswith("linear") and g.direction == "forward"]
    assert (linear.calls, linear.flops) == (1, 2 * 8 * 64 * 32)
    assert linear.bytes > 0
    assert content.clock == "us"  # the trace has the time; the table of times only the duration
    assert {row.op for row in content.rows if row.direction == "backward"} >= {linear.op}
    assert exports.perfetto(content, tmp_path / "again.json") >= len(content.rows)
    events = json.loads((tmp_path / "again.json").read_text())
    assert {event["ph"] for event in events} == {"M", "X"}


def test_a_capture_is_shown_by_its_calls_without_reading_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    with op_tools.OpCapture(format="packed"):
        torch.exp(torch.ones(4, 2, device="dipu"))
    rows = {row.op: row for row in readers.read(tmp_path).rows}
    made = rows["torch.exp"]
    assert (made.dtype, made.shape, made.bytes) == ("float32", "[4, 2]", 32)
    assert made.site.startswith("test_report.py:")


def test_earlier_runs_in_the_same_folder_are_left_out(tmp_path: Path) -> None:
    statistics(tmp_path, 4, "op_statistics_info_pid7_2025-12-31-00-00-00")
    content = readers.read(statistics(tmp_path, 10))
    assert len(content.rows) == 10
    assert content.notes == [
        "1 file of earlier runs in this folder is left out; name one to see it"
    ]


def test_runs_that_share_a_page_are_reported(tmp_path: Path) -> None:
    for name in ("first", "second"):
        statistics(tmp_path / name, 4)
        record = {"kind": "run", "command": f"deeplink run --{name} train.py", "status": 0}
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    content = readers.read(tmp_path)
    assert "2 runs are shown together; name the folder of one to see it alone" in content.notes
    assert content.about["command"] == (
        "deeplink run --first train.py · deeplink run --second train.py"
    )
    assert readers.read(tmp_path / "first").notes == []


def test_what_cannot_be_read_is_reported_and_the_rest_shown(tmp_path: Path) -> None:
    statistics(tmp_path, 10)
    lines = tmp_path / f"op_statistics_result/op_statistics_info_pid1_{STAMP}.jsonl"
    lines.write_text(lines.read_text()[:-20])  # as kill -9 leaves it
    (tmp_path / "diff.json").write_text('{"kind": "diff", "version": 1}')
    (tmp_path / "broken.opcap").write_bytes(b"nothing")
    content = readers.read(tmp_path)
    assert len(content.rows) == 9
    assert [text.split(":")[0] for text in content.problems] == [
        "broken.opcap was not read",
        "diff.json was not read",
    ]
    assert "broken.opcap was not read" in html.render(content, tmp_path)


def test_a_rank_that_is_missing_is_reported_and_the_rest_shown(tmp_path: Path) -> None:
    for rank in (0, 2):
        statistics(tmp_path, 4, f"op_statistics_info_pid{rank}_{STAMP}-rank{rank}of3")
    content = readers.read(tmp_path)
    assert content.problems == ["rank 1 of 3 is missing; the rest is shown"]
    assert len(content.rows) == 8


def test_a_full_disk_is_reported_and_leaves_the_page_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statistics(tmp_path, 4)
    (tmp_path / "report.html").write_text("before")
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most[1]))  # the system refuses the rest
    try:
        assert cli.status(["report", str(tmp_path)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert "report.html cannot be written: File too large" in capsys.readouterr().err
    assert (tmp_path / "report.html").read_text() == "before"
    assert not list(tmp_path.glob(".report*"))


def test_a_folder_with_nothing_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DeeplinkError, match="has nothing to show"):
        readers.read(tmp_path)
    with pytest.raises(DeeplinkError, match="there is nothing at"):
        readers.read(tmp_path / "missing")


def test_conformance_results_are_a_matrix(tmp_path: Path) -> None:
    rows = [
        {"case": "add/float32/0", "status": "passed", "grade": "A", "error": 0.2, "findings": []},
        {"case": "add/bfloat16/0", "status": "failed", "grade": "F", "error": 40.0}
        | {"findings": [{"message": "off by far"}]},
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = readers.read(tmp_path)
    assert [(c.op, c.dtype, c.grade, c.wrong) for c in content.cells] == [
        ("add", "bfloat16", "F", 1),
        ("add", "float32", "A", 0),
    ]
    assert content.findings[0].title == "1 of 2 conformance cases failed"
    assert content.rows[0].note == "off by far"


@pytest.mark.parametrize(
    ("statuses", "title"),
    [
        (["passed", "passed", "skipped"], "2 conformance cases passed, 1 skipped"),
        (["passed", "failed", "skipped"], "1 of 2 conformance cases failed, 1 skipped"),
        (["skipped", "skipped"], "no conformance case ran, 2 skipped"),
    ],
)
def test_skipped_conformance_cases_are_not_counted_as_passed(
    tmp_path: Path, statuses: list[str], title: str
) -> None:
    rows = [
        {"case": f"add/float32/{number}", "status": status, "reason": "no float32"}
        for number, status in enumerate(statuses)
    ]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = readers.read(tmp_path)
    assert content.findings[0].title == title
    assert f"{statuses.count('skipped')} skipped: no float32" in content.findings[0].lines
    assert sum(cell.count for cell in content.cells) == len(statuses) - statuses.count("skipped")


def test_a_finished_conformance_run_shows_its_gaps_and_how_it_was_made(tmp_path: Path) -> None:
    row = {"case": "add/float32/0", "status": "failed", "grade": "F", "error": 40.0}
    (tmp_path / "results.jsonl").write_text(json.dumps(row | {"findings": []}) + "\n")
    cell = {"op": "add", "dtype": "float32", "known": 1, "note": "float16"}
    origin = {"machine": "a machine", "torch": "2.13", "python": "3.11", "day": "2026-01-01"}
    summary = {"vendor": "acme", "tier": "quick", "cells": [cell], "complaints": ["interrupted"]}
    summary |= {"origin": origin | {"seconds": 9.0, "cpu_seconds": 12.0}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    names = ("op", "dtype", "status", "grade", "check", "message", "gap", "reproduce")
    values = ("add", "float32", "failed", "F", "values", "far off", "todo: soon", "run it")
    (tmp_path / "error_report.csv").write_text(f"{','.join(names)}\n{','.join(values)}\n")
    content = readers.read(tmp_path)
    (shown,) = content.cells
    assert (shown.wrong, shown.known, shown.note) == (1, 1, "float16")
    first, complaint = content.findings
    assert (first.level, complaint.title) == ("warn", "interrupted")
    assert "1 of the failures is a known gap of the vendor" in first.lines
    assert first.next == "deeplink conformance --vendor acme --case 'add/float32/0'"
    assert content.about["command"] == "deeplink conformance --vendor acme --tier quick"
    assert content.about["duration"] == "9 s, 12 s of CPU"
    assert content.tables[0].rows == [values]


def test_a_verdict_is_shown_with_its_evidence_and_commands(tmp_path: Path) -> None:
    found = {
        "problem": "torch.mm, output forward: 3 of 4 elements differ",
        "where": "/a/train.py:7 forward: y = torch.mm(a, b), module head, step 0",
        "evidence": ["All 2 wrong calls have argument 1 that is transposed"],
        "workaround": "deeplink run --fallback torch.mm train.py",
        "next": "deeplink replay x --check",
    }
    name = f"op_autocompare_info_pid1_{STAMP}.problems.json"
    (tmp_path / name).write_text(json.dumps({"torch.mm": found}))
    (finding,) = readers.read(tmp_path).findings
    assert (finding.title, finding.site) == ("torch.mm is wrong", "/a/train.py:7")
    assert finding.where.endswith("module head, step 0")
    assert finding.where.startswith("output forward, forward: y")
    assert finding.lines == ("3 of 4 elements differ", *found["evidence"])
    assert (finding.workaround, finding.next) == (found["workaround"], found["next"])


def recorded(folder: Path, losses: list[float | None]) -> Path:
    """What the flight recorder writes of a run with these losses; None is not finite."""
    lines = [{"step": step, "loss": loss, "at": float(step)} for step, loss in enumerate(losses)]
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in [*lines, {"end": 99.0}])
    (folder / f"recorder_pid1_{STAMP}.0.jsonl").write_text(text)
    return folder


def test_a_loss_that_is_nan_is_marked_in_its_chart(tmp_path: Path) -> None:
    content = readers.read(recorded(tmp_path / "a", [3.0, None, 1.0]))
    (chart, *_) = summary.of(content)["charts"]
    assert chart["title"] == "Loss"
    assert chart["series"][0]["marks"] == [[1, "NaN"]]


def test_the_losses_of_a_bisection_share_a_chart(tmp_path: Path) -> None:
    run = {"number": 1, "ops": [], "places": [], "outcome": "failed", "reason": "loss 0 is 9"}
    run |= {"seconds": 1.0, "log": ""}
    runs = [
        {**run, "purpose": "as it is", "losses": [9.0, 8.0]},
        {**run, "purpose": "everything", "losses": [4.0, 2.0]},
        {**run, "purpose": "search", "losses": [9.0, 8.0]},
        {**run, "purpose": "search", "outcome": "passed", "losses": [4.0, 2.0]},
    ]
    guilty = {"op": "aten.mm.default", "places": [], "script": "repro.py", "evidence": ["pattern"]}
    found = {"kind": "bisect", "status": "found", "verdict": "Cause: aten.mm.default."}
    found |= {"guilty": [guilty], "runs": runs, "fix": "deeplink run --fallback mm train.py"}
    found |= {"command": ["python", "train.py"], "seconds": 7.0}
    (tmp_path / "bisect.json").write_text(json.dumps(found))
    content = readers.read(tmp_path)
    (finding,) = content.findings
    assert finding.lines == ("pattern", "as it is: loss 0 is 9")
    assert (finding.workaround, finding.next) == (found["fix"], "deeplink run repro.py")
    assert content.about["command"] == "deeplink bisect train.py"
    problem = {"problem": "aten.mm.default, output forward: far off", "where": "train.py:3 f"}
    problem |= {"evidence": ["pattern"], "workaround": "", "next": ""}
    name = f"op_autocompare_info_pid1_{STAMP}.problems.json"
    (tmp_path / name).write_text(json.dumps({"aten.mm.default": problem}))
    (finding,) = readers.read(tmp_path).findings  # one, with the evidence of the comparison
    assert finding.lines == ("far off", "pattern", "as it is: loss 0 is 9")
    (chart,) = content.charts
    assert {series.name: series.values for series in chart.series} == {
        "on the device": [9.0, 8.0],
        "reference: every operator on the CPU": [4.0, 2.0],
        "with the workaround": [4.0, 2.0],
    }


def test_errors_have_a_log_axis_with_the_tolerance() -> None:
    content = Content(rows=[Row("mm", state="right", error=0.0), Row("mm", state="wrong", error=9)])
    (chart,) = summary.of(content)["charts"]
    assert (chart["log"], chart["tolerance"]) == (True, 1.0)


def test_two_runs_share_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = recorded(tmp_path / "a", [3.0, 2.0]), recorded(tmp_path / "b", [3.0, 5.0, 9.0])
    page = tmp_path / "page.html"
    assert cli.status(["report", str(a), str(b), "-o", str(page)]) == 0
    head = head_of(page.read_text())
    assert [run["name"] for run in head["runs"]] == ["A: a", "B: b"]
    (chart, *_) = head["charts"]
    assert {series["name"]: series["values"] for series in chart["series"]} == {
        "A: loss": [3.0, 2.0, None],
        "B: loss": [3.0, 5.0, 9.0],
    }


def test_operators_of_two_runs_stand_beside_each_other() -> None:
    runs = [
        Content(title=name, rows=[Row("mm", state=state, error=error), Row(other)])
        for name, state, error, other in (("x", "right", 0.0, "add"), ("y", "wrong", 7.0, "exp"))
    ]
    made = summary.side_by_side(*runs)
    pairs = {pair["op"]: pair for pair in made.pairs}
    assert made.pairs[0]["op"] == "mm"  # the worst first
    assert (pairs["mm"]["A"]["wrong"], pairs["mm"]["B"]["wrong"]) == (0, 1)
    assert pairs["add"]["B"] is None and pairs["exp"]["A"] is None
    assert [row.run for row in made.rows] == [0, 0, 1, 1]
    bad = [each["run"] for each in summary.of(made)["findings"] if each["level"] == "bad"]
    assert bad == [1]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a", "b", "c"], "report shows one run, or two side by side; found 3."),
        (["--serve", "a", "b"], "--serve follows one run, found two."),
        (["a", "nowhere"], "there is nothing at nowhere."),
    ],
)
def test_runs_that_cannot_be_shown_are_refused(
    words: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        recorded(tmp_path / name, [1.0])
    assert cli.status(["report", *words]) == 2
    assert text in capsys.readouterr().err


def test_the_classic_table_of_a_comparison_is_enough(tmp_path: Path) -> None:
    columns = "forward_id,name,allclose,cosine_similarity,max_abs_diff,max_relative_diff,atol,rtol"
    text = f"{columns},error_info\n1,torch.add output,False,0.9,2.0,1,0.5,0,far off\n"
    (tmp_path / f"op_autocompare_info_pid1_{STAMP}.csv").write_text(text)
    (row,) = readers.read(tmp_path).rows
    assert (row.op, row.part, row.state, row.error) == ("torch.add", "output", "wrong", 4.0)


def test_the_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    text = html.render(Content("</script><b>", [Row("a</script>b")]), tmp_path)
    assert text.count("<script") == text.count("</script>") == 3
    for outside in ("http://", "https://", "src=", "@import", "url("):
        assert outside not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(("given", "expected"), [("zh", "zh"), ("en", "en"), ("auto", "")])
def test_the_page_is_in_the_language_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    """Without a setting the browser decides; a reader's own choice on the page is stored there."""
    monkeypatch.setenv("DEEPLINK_LANG", given)
    text = html.render(Content("page", [Row("a")]), tmp_path)
    assert f'<html lang="en" data-language="{expected}">' in text


def test_the_script_and_the_style_are_in_the_package() -> None:
    names = {each.name for each in files("op_tools.diagnosis.report").iterdir()}
    assert {"page.html", "style.css", *html.SCRIPTS} <= names


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_reads_back_what_was_packed(tmp_path: Path) -> None:
    text = html.render(readers.read(statistics(tmp_path, 500)), tmp_path)
    (tmp_path / "page.html").write_text(text)
    folder = files("op_tools.diagnosis.report")
    (tmp_path / "data.js").write_text(folder.joinpath("data.js").read_text())
    (tmp_path / "try.js").write_text("""
        const { load, matches, sorted } = require("./data.js");
        const text = require("fs").readFileSync("page.html", "utf8");
        const inside = (id) => text.split(`id="${id}">`)[1].split("</script>")[0];
        load(inside("head").replaceAll("<\\\\/", "</"), inside("blob")).then((data) => {
          const rows = matches(data, "blocks.3 backward step>=1 -op:op13");
          const first = sorted(data, matches(data, ""), "high", true)[0];
          console.log(JSON.stringify({ count: data.count, rows: [...rows],
            high: data.columns.high[first], nonfinite: [...matches(data, "state:nonfinite")],
            op: data.text("op", 41) }));
        });
    """)
    done = subprocess.run(
        ["node", "try.js"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    expected = [i for i in range(100, 500) if i % 5 == 3 and i % 2 and i % 40 != 13]
    assert found["rows"] == expected
    assert (found["count"], found["high"], found["op"]) == (500, 6, "aten.op1.default")
    assert found["nonfinite"] == [250]


def test_the_command_writes_the_page_beside_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.status(["report", str(statistics(tmp_path, 10))]) == 0
    assert "10 calls and results" in capsys.readouterr().out
    assert (tmp_path / "report.html").read_text().endswith("</html>\n")


def test_tensorboard_that_is_missing_is_one_message_and_the_page_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    run = str(statistics(tmp_path, 10))
    assert cli.status(["report", run, "--tensorboard", str(tmp_path / "events")]) == 2
    assert "pip install tensorboard" in capsys.readouterr().err
    assert (tmp_path / "report.html").exists()


def test_a_served_page_is_made_anew_when_the_run_goes_on(tmp_path: Path) -> None:
    statistics(tmp_path, 10)
    server = Server(tmp_path, 0, lambda: html.render(readers.read(tmp_path), tmp_path))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:

        def get(path: str) -> str:
            with urllib.request.urlopen(server.address + path) as answer:
                text: str = answer.read().decode()
                return text

        before = get("state")
        assert len(head_of(get(""))["texts"]["op"]) == 10
        statistics(tmp_path, 20, f"op_statistics_info_pid2_{STAMP}")
        assert get("state") != before
        assert len(head_of(get(""))["texts"]["op"]) == 20
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# In a real browser.

needs_browser = pytest.mark.skipif(
    browser.installed() is None, reason="no Chromium is installed (apt-get install chromium)"
)


@needs_browser
@pytest.mark.slow
def test_a_hundred_thousand_calls_open_in_a_browser(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\ny = torch.relu(x)\n")
    cli.status(["report", str(statistics(tmp_path, 100_000)), "--source", str(tmp_path)])
    with browser.Browser() as opened:
        opened.offline()
        opened.open(tmp_path / "report.html")
        assert opened.js("document.querySelectorAll('.virtual .row').length") < 60
        assert opened.js("document.querySelector('#calls .count').textContent") == (
            "100,000 of 100,000"
        )
        opened.js("calls = document.querySelector('#calls input'); calls.value = 'state:nonfinite'")
        opened.js("calls.dispatchEvent(new Event('input'))")
        assert opened.js("document.querySelector('#calls .count').textContent") == "1 of 100,000"
        opened.js("document.querySelector('.virtual .link').click()")
        assert "torch.relu(x)" in opened.js("document.querySelector('dialog pre b').textContent")
        opened.js("document.querySelector('dialog').close()")
        before = opened.js("document.querySelector('canvas').toDataURL()")
        opened.js("document.querySelector('[aria-label=\"Zoom in\"]').click()")
        assert opened.js("document.querySelector('canvas').toDataURL()") != before


def compared(folder: Path, error: float) -> Path:
    """A comparison of long names in many modules and steps, one result of each step is wrong."""
    folder.mkdir()
    rows = []
    for number in range(240):
        wrong = number % 60 == 7
        row = {"op": "torch.nn.functional.scaled_dot_product_attention", "item": "grad[1]"}
        row |= {"direction": "backward" if number % 2 else "forward", "step": number // 60}
        row |= {
            "module": f"model.layers.{number % 12}.self_attn.q_proj",
            "site": "train_gpt.py:107",
        }
        row |= {"dtype": "bfloat16", "shape": [16, 32, 1024, 64], "passed": not wrong}
        rows.append(row | {"ratio": error if wrong else 0.0, "message": ""})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"op_autocompare_info_pid1_{STAMP}.jsonl").write_text(text)
    return folder


CUT = """[...document.querySelectorAll(
    'td, th, dd, h1, h2, p, code, .virtual .row > *, .virtual .head > *')]
    .filter((node) => node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0
        || node.classList.contains('mono') && node.scrollHeight > node.clientHeight + 1)
    .map((node) => node.textContent.slice(0, 80))"""
OVERFLOWING = """[...document.querySelectorAll('.scroll, .virtual, nav ul')]
    .filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.className)"""


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("two", [False, True], ids=["one run", "two runs"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_is_cut_at_1280_pixels(two: bool, language: str, tmp_path: Path) -> None:
    runs = [compared(tmp_path / "a", 289574.7), *([compared(tmp_path / "b", 3.0)] if two else [])]
    page = tmp_path / "page.html"
    cli.status(["report", *map(str, runs), "-o", str(page)])
    with browser.Browser(1280) as opened:
        opened.open(page, state={"lang": language})
        assert opened.js(CUT) == []
        assert opened.js(OVERFLOWING) == []
        assert opened.js("document.documentElement.scrollWidth") == 1280
        assert opened.js("document.documentElement.lang") == language
        assert "train_gpt.py:107" in opened.js("document.querySelector('#calls').innerText")
        assert opened.errors == []


@needs_browser
@pytest.mark.slow
def test_the_page_fits_a_telephone(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    cli.status(["report", str(compared(tmp_path / "a", 9.0)), "-o", str(page)])
    with browser.Browser() as opened:
        opened.size(400, 800)
        opened.open(page)
        assert opened.js("document.documentElement.scrollWidth") == 400


@needs_browser
@pytest.mark.slow
def test_a_view_is_in_the_address_and_modules_lead_to_their_calls(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    cli.status(["report", str(compared(tmp_path / "a", 289574.7)), "-o", str(page)])
    count = "document.querySelector('#calls .count').textContent"
    with browser.Browser() as opened:
        opened.open(page)
        assert "background" in opened.js("document.querySelector('.heat td[style]').outerHTML")
        opened.js("document.querySelector('.heat td[title*=\"289,575\"]').click()")
        assert opened.js(count) == "5 of 240"
        assert "module%3Dmodel.layers.7" in opened.js("location.hash")
        opened.js("[...document.querySelectorAll('#modules .link')].at(0).click()")
        assert opened.js("new URLSearchParams(location.hash.slice(1)).get('q')") == "in:model"
        assert opened.js(count) == "240 of 240"
        opened.open(page, state={"q": "state:wrong", "lang": "zh", "theme": "dark"})
        assert opened.js(count) == "4 / 240"
        assert opened.js("document.documentElement.dataset.theme") == "dark"
        assert opened.js("document.querySelector('#calls h2').textContent") == "调用"
        csv = "csvText(['a', 'b'], [['x,\"y', 1]])"
        assert opened.js(csv) == 'a,b\n"x,""y",1\n'
        assert opened.js("document.querySelectorAll('.copy').length") >= 1
        assert opened.errors == []


@needs_browser
@pytest.mark.slow
def test_a_nan_is_marked_in_the_loss_and_two_losses_share_a_chart(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a", [3.0, None, 1.0]), recorded(tmp_path / "b", [3.0, 2.0, 1.5])
    page = tmp_path / "page.html"
    cli.status(["report", str(a), str(b), "-o", str(page)])
    with browser.Browser() as opened:
        opened.open(page)
        assert opened.js("document.querySelector('#steps svg text.broken').textContent") == "NaN"
        paths = "document.querySelector('#steps .chart').querySelectorAll('path').length"
        assert opened.js(paths) == 2
        legend = "document.querySelector('#steps .legend').innerText"
        assert "A: loss" in opened.js(legend) and "B: loss" in opened.js(legend)
        assert opened.errors == []


@needs_browser
@pytest.mark.slow
def test_the_page_is_dark_where_that_is_preferred(tmp_path: Path) -> None:
    cli.status(["report", str(statistics(tmp_path, 100))])
    with browser.Browser() as opened:
        opened.dark()
        opened.open(tmp_path / "report.html")
        assert opened.js("document.documentElement.dataset.theme") == "dark"
        opened.js("document.querySelector('#theme').click()")
        assert opened.js("getComputedStyle(document.body).backgroundColor") == "rgb(247, 248, 250)"
        missing = "[...document.querySelectorAll('button,input,canvas,svg')].filter(n =>"
        missing += " !n.textContent.trim() && !n.getAttribute('aria-label')).length"
        assert opened.js(missing) == 0
        opened.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000
