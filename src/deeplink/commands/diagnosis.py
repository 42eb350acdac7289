# SPDX-License-Identifier: Apache-2.0
"""The commands that find a cause: diagnose, bisect, why-nan, determinism, diff, report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from deeplink import settings
from deeplink.commands import common, host
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from deeplink.run import program as programs
from deeplink.run.loss_log import PATTERN
from deeplink.run.run_folder import latest
from deeplink.vendor import using

Level = Annotated[
    Literal["aten", "api"], typer.Option(help="What counts as an operator: kernels, or functions.")
]
Steps = Annotated[
    str | None,
    typer.Option(
        metavar="3-5", help=f"Only these training steps ({settings.OP_TOOLS_STEPS.name})."
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(metavar="KINDS", help="Only these kinds of devices, as cpu (OP_TOOLS_DEVICES)."),
]


def diagnose(
    context: typer.Context,
    program: common.Program = None,
    symptom: Annotated[
        Literal["loss", "nan", "slow", "hang", "memory"] | None,
        typer.Option(help="What is wrong; without it the command asks.", show_default=False),
    ] = None,
    output: Annotated[Path | None, common.output("Default: a new folder diagnosis.")] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End a step that takes longer.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the commands, and run none of them.")
    ] = False,
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Name the symptom; the right tools run, one report at the end

    \b
    Examples:
      deeplink diagnose train.py                    asks for the symptom
      deeplink diagnose --symptom nan train.py      asks nothing
      deeplink diagnose --symptom slow --dry-run train.py

    \b
    Exit codes:
      0 nothing wrong was found, 1 something was found, 2 a step did not do its work
    """
    found = programs.read(program, "diagnose")
    if symptom is None and any(word.startswith("--symptom") for word in found.arguments):
        raise DeeplinkError(
            _("--symptom stands behind the program, so it is an option of the program."),
            _("options of deeplink come first: deeplink diagnose --symptom nan train.py"),
        )
    with settings.quiet(quiet), using(vendor):
        guide = common.work("op_tools.diagnosis.diagnose:diagnose")
        raise typer.Exit(guide(found, symptom, output, timeout, dry_run))


def bisect(
    context: typer.Context,
    program: common.Program = None,
    check: Annotated[
        str,
        typer.Option(help="How to decide whether a run is correct; see below.", metavar="CHECK"),
    ] = "loss",
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The correct losses: a JSON list, or what a correct run printed.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            help="Relative tolerance of a loss. Default: what rounding does to it, as measured.",
            show_default=False,
        ),
    ] = None,
    loss_pattern: Annotated[
        str,
        typer.Option(
            metavar="REGEX",
            help="A regular expression for the losses that the program prints.",
            show_default=False,
        ),
    ] = PATTERN,
    level: Level = "aten",
    instead: Annotated[
        Literal["cpu", "float64", "float32"],
        typer.Option(help="Where operators run instead: the CPU, or the device in a wider type."),
    ] = "cpu",
    max_runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="The largest number of runs of the search.")
    ] = 60,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after Ctrl-C: keep the runs that were made.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new Python for each run.")
    ] = False,
    no_suspects: Annotated[
        bool, typer.Option("--no-suspects", help="Do not compare calls in run 1.")
    ] = False,
    no_modules: Annotated[
        bool, typer.Option("--no-modules", help="Skip locating the affected modules.")
    ] = False,
    no_script: Annotated[
        bool, typer.Option("--no-script", help="Write no script that reproduces the fault.")
    ] = False,
    timeout: common.Timeout = None,
    output: Annotated[Path, common.output("Default: bisect_results.")] = Path("bisect_results"),
    json: common.Json = "",
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Find the operators that cause a wrong loss

    The program runs as it is, then with all operators on the CPU, then with fewer and fewer there.

    \b
    Examples:
      deeplink bisect train.py --steps 20
      deeplink bisect --check nan train.py
      deeplink bisect --check 'losses[-1] < 0.1 * losses[0]' train.py
      deeplink bisect --reference gpu_losses.json train.py
      deeplink bisect --resume train.py             go on after Ctrl-C

    \b
    Checks:
      loss            the losses are those of all operators on the CPU, or of --reference
      nan             no loss is nan or infinite
      exit            the program ends with status 0
      'loss < 0.5'    a Python expression of loss (the last one), losses and status
      script:FILE     FILE LOG LOSSES.json ends with status 0

    \b
    Exit codes:
      0 nothing to find, 1 found, 2 the program does not run, or the result is not clear
    """
    try:
        re.compile(loss_pattern)
    except re.error as error:
        raise DeeplinkError(
            _("--loss-pattern {loss_pattern!r} is not a regular expression: {error}.").format(
                loss_pattern=loss_pattern, error=error
            ),
            _("for example: --loss-pattern 'loss=([0-9.]+)'"),
        ) from None
    found = programs.read(program, "bisect")
    with settings.quiet(quiet), using(vendor):
        work = common.work("op_tools.diagnosis.cli:bisect")
        with host.of(context).searching():
            status = work(
                found.line,
                output,
                check=check,
                reference=reference,
                tolerance=tolerance,
                loss_pattern=loss_pattern,
                level=level,
                instead=instead,
                max_runs=max_runs,
                resume=resume,
                fresh=fresh,
                suspects=not no_suspects,
                places=not no_modules,
                script=not no_script,
                timeout=timeout,
                json=json,
                quiet=quiet,
            )
    raise typer.Exit(status)


def determinism(
    context: typer.Context,
    program: common.Program = None,
    level: Level = "aten",
    timeout: common.Timeout = None,
    output: Annotated[Path, common.output("Default: determinism_results.")] = Path(
        "determinism_results"
    ),
    json: common.Json = "",
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Run twice; find the first operator with other results

    \b
    Examples:
      deeplink determinism train.py --steps 3
      deeplink determinism -o found torchrun --nproc-per-node 2 train.py

    \b
    Exit codes:
      0 both runs gave the same bits, 1 they differ, 2 the program does not run
    """
    found = programs.read(program, "determinism")
    with settings.quiet(quiet), using(vendor):
        work = common.work("op_tools.diagnosis.cli:determinism")
        with host.of(context).searching():
            status = work(found.line, output, level=level, timeout=timeout, json=json, quiet=quiet)
    raise typer.Exit(status)


def why_nan(
    context: typer.Context,
    program: common.Program = None,
    steps: Steps = None,
    devices: Devices = None,
    output: Annotated[Path | None, common.output("Default: a new folder why_nan.")] = None,
    vendor: common.VendorName = "",
    quiet: common.Quiet = False,
) -> None:
    """Find the kernel, the line and the module of the first NaN

    The results of all kernels are checked. When a NaN reaches the loss, a value that the program
    reads, or an optimizer, its path is followed back to the kernel that produced it. The -inf of a
    mask and the steps that a GradScaler skips are not reported.

    \b
    Examples:
      deeplink why-nan train.py --lr 1e-3
      deeplink why-nan --steps 100- train.py          from step 100 on
      deeplink why-nan --devices cpu train.py         a program on the CPU

    \b
    Exit codes:
      1 a cause was found, 2 a refused option; else the program's own
    """
    found = programs.read(program, "why-nan")
    values = {}
    for name, text, setting in (
        ("steps", steps, settings.OP_TOOLS_STEPS),
        ("devices", devices, settings.OP_TOOLS_DEVICES),
    ):
        if text is not None:
            values[setting.name] = common.allowed(name, setting, text)
    with settings.quiet(quiet), using(vendor):
        work = common.work("op_tools.diagnosis.nan.cli:why_nan")
        with host.of(context).searching():
            raise typer.Exit(work(found.line, output, values))


def diff(
    context: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="RUN_A RUN_B", help="Two recorded runs.")],
    judge: Annotated[
        int, typer.Option(min=0, metavar="N", help="Repeat N differing calls on the CPU.")
    ] = 300,
    json: common.Json = "diff.json",
) -> None:
    """Compare two recorded runs: the first diverging call

    A run is a folder or a file that `deeplink run --capture --first 0 --level aten train.py` wrote,
    of one process or of many ranks. --capture-format packed is the fastest to read,
    --capture-mode statistics the smallest. Differences go to diff.json unless --json names a file.

    \b
    Examples:
      deeplink diff run_gpu run_npu
      deeplink diff --json found.json before after
      deeplink diff one_rank eight_ranks

    \b
    Exit codes:
      0 the same, or only rounding; 1 they diverge, or a collective is wrong;
      2 they have nothing in common, or a part cannot be read
    """
    if len(runs) != 2:
        raise DeeplinkError(
            _("diff compares two runs, found {count}: {names}.").format(
                count=len(runs), names=", ".join(runs)
            ),
            _("for example: deeplink diff run_gpu run_npu"),
        )
    raise typer.Exit(common.work("op_tools.diagnosis.diff.cli:diff")(runs, judge, json))


def report(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN] [RUN_B]",
            help="What a tool wrote: a folder or a file. Two: side by side on one page.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        common.output("The page. Default: report.html in RUN, of two runs in RUN_B.", "FILE"),
    ] = None,
    source: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the files of the program are.")
    ] = Path(),
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the page here, and follow the run.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of --serve; 0: any free one.")] = 0,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev, too.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write event files, too.")
    ] = None,
) -> None:
    """Write one HTML page from the results of a run

    RUN is what a tool wrote: op_tools_results (its latest run, which is the default), a folder of
    `bisect` or `diff`, of the conformance suite, of the flight recorder, or one file. The page is
    self-contained.

    \b
    Examples:
      deeplink report                               of the latest run of `deeplink run`
      deeplink report op_tools_results -o page.html
      deeplink report before after                  two runs side by side
      deeplink report --serve night                 a page that follows the run in night
      deeplink report --perfetto trace.json
      deeplink report --tensorboard runs/1 night

    \b
    Exit codes:
      0 the page was written, 2 there is nothing to read
    """
    found = [latest(run) for run in runs or [settings.OP_TOOLS_RESULTS.get()]]
    if len(found) > 2:
        raise DeeplinkError(
            _("report shows one run, or two side by side; found {count}.").format(count=len(found)),
            _("for example: deeplink report before after"),
        )
    if len(found) == 2 and serve:
        raise DeeplinkError(
            _("--serve follows one run, found two."),
            _("for example: deeplink report --serve {found}").format(found=found[1]),
        )
    for run in found:
        if not run.exists():
            raise DeeplinkError(
                _("there is nothing at {run}.").format(run=run),
                _("name what a tool wrote, for example: deeplink report op_tools_results"),
            )
    work = common.work("op_tools.diagnosis.report.cli:report")
    raise typer.Exit(work(found, output, source, serve, port, perfetto, tensorboard))
