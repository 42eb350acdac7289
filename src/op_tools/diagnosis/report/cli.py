# SPDX-License-Identifier: Apache-2.0
"""`deeplink report RUN [RUN_B] [-o FILE]`: one page for the results of a run, or of two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from deeplink.console import console
from deeplink.i18n import _
from op_tools.diagnosis.report import exports, html, readers, summary
from op_tools.diagnosis.report.server import Server


def report(
    runs: Sequence[Path],
    output: Path | None,
    source: Path,
    serve: bool,
    port: int,
    perfetto: Path | None,
    tensorboard: Path | None,
) -> int:
    """Run `deeplink report`; returns the exit code."""
    run = runs[-1]
    if serve:
        return _serve(run, port, source)
    contents = [readers.read(each) for each in runs]
    content = contents[0] if len(contents) == 1 else summary.side_by_side(*contents)
    say = console().print
    inside = run if run.is_dir() else run.parent
    page = output or inside / "report.html"
    size = html.write(content, page, source)
    for problem in content.problems:
        say(problem, style="yellow", soft_wrap=True)
    kib = size / 1024
    if content.rows:
        text = _("report: {page} ({rows} {rows:call or result|calls and results}, {kib:.0f} KiB)")
    else:
        text = _("report: {page} ({kib:.0f} KiB)")
    say(text.format(page=page, rows=f"{len(content.rows):,}", kib=kib), soft_wrap=True)
    if perfetto is not None:
        count = exports.perfetto(content, perfetto)
        say(
            _(
                "trace: {count} {count:slice|slices} in {perfetto}; open it at https://ui.perfetto.dev"
            ).format(count=count, perfetto=perfetto)
        )
    if tensorboard is not None:
        count = exports.tensorboard(content, tensorboard)
        say(
            _(
                "TensorBoard: {count} {count:value|values}; tensorboard --logdir {tensorboard}"
            ).format(count=count, tensorboard=tensorboard)
        )
    return 0


def page(folder: Path) -> None:
    """Write report.html into a folder of results, and print its path."""
    html.offer(readers.read(folder), folder / "report.html")


def _serve(run: Path, port: int, source: Path) -> int:
    server = Server(run, port, lambda: html.render(readers.read(run), source))
    console().print(_("report: {address} (Ctrl-C ends it)").format(address=server.address))
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0
