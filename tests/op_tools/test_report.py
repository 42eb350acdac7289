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
from op_tools.diagnosis.report import exports, html, readers
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
    assert f'<p id="device">{label}' in text
    head = head_of(text)
    assert head["devices"][0].startswith(label)
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
        "1 files of earlier runs in this folder are left out; name one to see it"
    ]


def test_what_cannot_be_read_is_told_and_the_rest_shown(tmp_path: Path) -> None:
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


def test_a_rank_that_is_missing_is_told_and_the_rest_shown(tmp_path: Path) -> None:
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


def test_the_script_and_the_style_are_in_the_package() -> None:
    names = {each.name for each in files("op_tools.diagnosis.report").iterdir()}
    assert {"page.html", "style.css", "data.js", "charts.js", "page.js"} <= names


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
