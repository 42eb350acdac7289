# SPDX-License-Identifier: Apache-2.0
"""`deeplink one-iter record|compare`: one training iteration, layer by layer.

The work is op_tools' (`op_tools.one_iter`); what is asked for goes into the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deeplink import settings
from deeplink.commands import common, host
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run import program as programs
from deeplink.run.runner import Request

Step = Annotated[int, typer.Option(min=0, metavar="N", help="Which iteration, from 0.")]

app = common.group(
    help="""Find the layer that goes wrong, against a trusted device

    One iteration runs and the program ends after it. `record` writes what goes into each layer and
    comes out of it, weights and gradients. `compare` starts from the recorded weights, inputs and
    random numbers, checks each layer alone, and shows how the whole run drifts.

    \b
    Examples:
      deeplink one-iter record --vendor cpu -o rec train.py
      deeplink one-iter compare rec train.py

    \b
    Exit codes:
      0 every layer is correct, 1 a layer diverges,
      2 the two do not fit (another model, other shapes)
    """
)


@app.command(cls=common.Command)
def record(
    context: typer.Context,
    program: common.Program = None,
    to: Annotated[Path | None, common.output("Where the record goes.")] = None,
    step: Step = 0,
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Record one iteration, on the trusted device

    \b
    Examples:
      deeplink one-iter record --vendor cpu -o rec train.py
      deeplink one-iter record -o rec --step 100 -m my.training
      deeplink one-iter record -o rec torchrun --nproc-per-node 2 train.py

    \b
    Exit codes:
      0 the record was written, 2 it was not
    """
    _start(context, "record", program, to, step, vendor, quiet)


@app.command(cls=common.Command)
def compare(
    context: typer.Context,
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="What `record` wrote.")],
    program: common.Program = None,
    step: Step = 0,
    json: common.Json = "",
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Compare one iteration with a record, on the device under test

    \b
    Examples:
      deeplink one-iter compare rec train.py
      deeplink one-iter compare rec --json found.json train.py --lr 1e-3

    \b
    Exit codes:
      0 every layer is correct, 1 a layer diverges,
      2 the two do not fit (another model, other shapes)
    """
    if not record.is_dir():
        raise DeeplinkError(
            _("no record at {path!r}.").format(path=str(record)),
            _("make one on the trusted device: deeplink one-iter record -o DIR train.py"),
        )
    _start(context, "compare", program, record, step, vendor, quiet, json)


def _start(
    context: typer.Context,
    mode: str,
    words: list[str] | None,
    folder: Path | None,
    step: int,
    vendor: str,
    quiet: bool,
    json: str = "",
) -> None:
    command = f"one-iter {mode}"
    found = programs.python_only(programs.read(words, command), command)
    values = {
        settings.OP_TOOLS_RUN.name: "one-iter",
        settings.OP_ONE_ITER_MODE.name: mode,
        settings.OP_ONE_ITER_STEP.name: str(step),
    }
    if folder is not None:
        values[settings.OP_ONE_ITER_RECORD.name] = str(folder.resolve())
    if json:
        if json == common.STDOUT:
            raise DeeplinkError(
                _("--json needs a file here: standard output is the program's."),
                _("for example: --json found.json"),
            )
        values[settings.OP_ONE_ITER_JSON.name] = str(Path(json).resolve())
    if vendor:
        values[settings.DEEPLINK_VENDOR.name] = vendor
    if quiet:
        values[settings.DITORCH_QUIET.name] = "1"
    line = [mode, *context.meta["line"]]
    raise typer.Exit(host.of(context).program("one-iter", Request.of(found, values), line))
