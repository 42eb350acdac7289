"""`deeplink report RUN [-o FILE]`: one page from whatever a run has written."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deeplink.table import console
from op_tools.diagnosis.report import exports, html, readers
from op_tools.diagnosis.report.server import Server

EPILOG = """
RUN is what a tool wrote: op_tools_results, a folder of `bisect` or `diff`, of the conformance
suite, of the flight recorder, or one file. The page needs nothing but itself, no network either.

examples:
  deeplink report op_tools_results                      writes op_tools_results/report.html
  deeplink report op_tools_results -o report.html
  deeplink report op_tools_results --serve              a page that follows the run
  deeplink report op_tools_results --perfetto t.json    for ui.perfetto.dev
  deeplink report op_tools_results --tensorboard runs/1
"""


def main(line: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="deeplink report",
        description="One self-contained HTML page from a run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a folder or a file of a run")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page (report.html)")
    parser.add_argument(
        "--source", type=Path, default=Path(), metavar="DIR", help="where the program's files are"
    )
    parser.add_argument("--serve", action="store_true", help="serve it here, and follow the run")
    parser.add_argument("--port", type=int, default=0, help="with --serve; default: a free one")
    parser.add_argument("--perfetto", type=Path, metavar="FILE", help="write a trace as well")
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="write event files as well")
    given = parser.parse_args(list(line))
    if given.serve:
        return _serve(given.run, given.port, given.source)
    content = readers.read(given.run)
    say = console().print
    inside = given.run if given.run.is_dir() else given.run.parent
    output = given.output or inside / "report.html"
    size = html.write(content, output, given.source)
    for problem in content.problems:
        say(problem, style="yellow", soft_wrap=True)
    rows, kib = len(content.rows), size / 1024
    say(f"report: {output} ({rows} calls and results, {kib:.0f} KiB)", soft_wrap=True)
    if given.perfetto is not None:
        count = exports.perfetto(content, given.perfetto)
        say(f"trace: {count} slices in {given.perfetto}; open it at https://ui.perfetto.dev")
    if given.tensorboard is not None:
        count = exports.tensorboard(content, given.tensorboard)
        say(f"TensorBoard: {count} values; tensorboard --logdir {given.tensorboard}")
    return 0


def _serve(run: Path, port: int, source: Path) -> int:
    server = Server(run, port, lambda: html.render(readers.read(run), source))
    console().print(f"report: {server.address} (Ctrl-C ends it)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0
