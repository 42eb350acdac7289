# SPDX-License-Identifier: Apache-2.0
"""`deeplink report RUN [-o FILE]`: one page for the results of a run."""

from __future__ import annotations

from pathlib import Path

from deeplink.console import console
from deeplink.i18n import _
from op_tools.diagnosis.report import exports, html, readers
from op_tools.diagnosis.report.server import Server


def report(
    run: Path,
    output: Path | None,
    source: Path,
    serve: bool,
    port: int,
    perfetto: Path | None,
    tensorboard: Path | None,
) -> int:
    """Run `deeplink report`; returns the exit code."""
    if serve:
        return _serve(run, port, source)
    content = readers.read(run)
    say = console().print
    inside = run if run.is_dir() else run.parent
    page = output or inside / "report.html"
    size = html.write(content, page, source)
    for problem in content.problems:
        say(problem, style="yellow", soft_wrap=True)
    rows, kib = len(content.rows), size / 1024
    say(
        _("report: {page} ({rows} calls and results, {kib:.0f} KiB)").format(
            page=page, rows=rows, kib=kib
        ),
        soft_wrap=True,
    )
    if perfetto is not None:
        count = exports.perfetto(content, perfetto)
        say(
            _("trace: {count} slices in {perfetto}; open it at https://ui.perfetto.dev").format(
                count=count, perfetto=perfetto
            )
        )
    if tensorboard is not None:
        count = exports.tensorboard(content, tensorboard)
        say(
            _("TensorBoard: {count} values; tensorboard --logdir {tensorboard}").format(
                count=count, tensorboard=tensorboard
            )
        )
    return 0


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
