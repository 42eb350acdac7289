"""The command `deeplink`: what is installed, what is in force, and whether the device works."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from deeplink import __version__, children, flight, one_iter, operators, running, settings
from deeplink.doctor import Report, examine, plain, try_device
from deeplink.running import FORWARDED
from deeplink.settings import InForce, Unknown
from deeplink.table import console, table
from deeplink.vendor import Found, Vendor, choose, using

EXAMPLES = """

Examples:

\b
  deeplink doctor                    what is installed, what is chosen, does it work
  deeplink doctor --vendor cpu       the same for one vendor
  deeplink run train.py              a CUDA program on the device at hand
  deeplink run --time train.py       and which of its operators are slow (run --help)
  deeplink one-iter --help           which layer goes wrong, against a trusted device
  deeplink diagnose -- python x.py   what is wrong? asks, and runs the right tools
  deeplink why-nan -- python x.py    which kernel made the first NaN
  deeplink report op_tools_results   one page from what a run has written
  deeplink bisect -- python train.py     which operators make the loss wrong
  deeplink diff RUN_A RUN_B          two recorded runs: where they part
  deeplink determinism -- python train.py    which operator is not the same twice
  deeplink flight-record DIR         which rank keeps the others waiting
  deeplink compile-report            what torch.compile compiled, and what stayed eager
  deeplink coverage train.py         which of its CUDA calls are served
  deeplink serve --model DIR         a large model, behind an OpenAI-compatible server
  deeplink pytorch-tests --help      PyTorch's own tests on the device
  deeplink settings                  every environment variable and its value now
  DEEPLINK_VENDOR=cpu python x.py    run a program on the vendor of your choice
"""

app = typer.Typer(
    help="PyTorch on accelerators that are not NVIDIA's." + EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command; an error of this project is shown by its text, with status 2."""
    with running.errors_as_text():
        app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deeplink {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(context_settings=FORWARDED)
def run(context: typer.Context) -> None:
    """Run a program written for CUDA, as it is, on the chosen vendor's device.

    With --time, --autocompare and others its operators are watched; `run --help` says how.
    """
    # parsed here so that an error names this command, and the vendor is set before a device loads
    request = running.parse("deeplink run", context.args)
    with using(request.vendor):
        _forward("run", context.args)


@app.command("one-iter", context_settings=FORWARDED)
def one_iteration(context: typer.Context) -> None:
    """Which layer of a program goes wrong: an iteration here against one on a trusted device.

    `one-iter record train.py` there, `one-iter compare RECORD train.py` here; --help says how.
    """
    request = one_iter.parse("deeplink one-iter", context.args)
    with using(request.vendor):
        _forward("one-iter", context.args)


def _of_op_tools(word: str, help: str) -> None:
    """A command that `python -m op_tools` has, under the same word."""

    def forward(context: typer.Context) -> None:
        line = [sys.executable, "-m", "op_tools", word, *context.args]
        raise typer.Exit(children.run(line))

    app.command(word, help=help, context_settings=FORWARDED)(forward)


_of_op_tools("bisect", "Which operators, run on the CPU, make a program well again.")
_of_op_tools("diff", "Two recorded runs: the first call where they truly part.")
_of_op_tools("determinism", "Run a program twice: the first operator that gives other bits.")
_of_op_tools("why-nan", "Which kernel made the first NaN, of what, on which line.")
_of_op_tools("report", "One HTML page from whatever a run has written.")
_of_op_tools("diagnose", "What is wrong? Asks, and runs the right tools in their order.")


@app.command("pytorch-tests", context_settings=FORWARDED)
def pytorch_tests(context: typer.Context) -> None:
    """Run PyTorch's own tests on the chosen vendor's device; --help says how."""
    _forward("pytorch-tests", context.args)


@app.command("compile-report", context_settings=FORWARDED)
def compile_report(context: typer.Context) -> None:
    """What torch.compile compiled for a vendor in the last run, what stayed eager, and why."""
    line = [sys.executable, "-m", "dicp", *context.args]
    raise typer.Exit(children.run(line))


@app.command("serve", context_settings=FORWARDED)
def serve(context: typer.Context) -> None:
    """Serve a large model by transformers, LMDeploy or vLLM on dlinfer's ops; --help says how."""
    # the process becomes the server: whoever ends it ends the server
    os.execv(sys.executable, [sys.executable, "-m", "dlinfer", "serve", *context.args])


def _forward(command: str, args: list[str]) -> None:
    """Hands over to `python -m ditorch`: only that process is to have torch patched."""
    line = [sys.executable, "-m", "ditorch", command, *args]
    raise typer.Exit(children.run(line))


@app.command("flight-record", epilog="Example: deeplink flight-record flight_record")
def flight_record(
    folder: Annotated[Path, typer.Argument(help="Where the ranks wrote their records.")],
    count: Annotated[int, typer.Option("--last", help="So many collectives of each rank.")] = 3,
) -> None:
    """Which rank keeps the others waiting: the last collectives of all ranks, read together."""
    records = flight.read(folder)
    rows = [
        (
            str(r.rank),
            e["group"],
            flight.name(e),
            e["state"],
            f"{r.time - e['begun']:.1f} s",
            e["where"],
        )
        for r in records
        for e in r.entries[-count:]
    ]
    columns = ("rank", "group", "name", "status", "since", "line")
    console().print(table("The last collectives", columns, rows))
    found = flight.diagnose(records)
    for line in found or ["nothing is under way"]:
        console().print(line, soft_wrap=True)
    raise typer.Exit(1 if found else 0)


@app.command("coverage", context_settings=FORWARDED)
def coverage(context: typer.Context) -> None:
    """Read a program before it is run: which of its CUDA calls the device serves; --help."""
    _forward("coverage", context.args)


@app.command()
def doctor(
    vendor: Annotated[
        str, typer.Option(help="Look at this vendor, whichever would be chosen.")
    ] = "",
    self_test: Annotated[
        bool, typer.Option("--self-test/--no-self-test", help="Try the device (about 10 s).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON instead of tables.")] = False,
    ops: Annotated[
        bool, typer.Option("--ops", help="Instead: who runs each operator of the device.")
    ] = False,
    pattern: Annotated[
        str, typer.Argument(help="With --ops: an operator, or a regular expression.")
    ] = "",
) -> None:
    """Show what is installed and chosen, and why; test the device.

    Exits with 1 when something failed: a check, a broken vendor, a setting that is not allowed.
    A vendor that is merely not available here is no failure.

    \b
    Examples:
      deeplink doctor --no-self-test
      deeplink doctor --vendor reference --json
      deeplink doctor --ops add
    """
    with settings.asking_for(vendor):  # an unknown name is one of the problems reported
        if ops:
            _show_operators(vendor, pattern, as_json)
        else:
            _examine(vendor, self_test, show=not as_json)


def _examine(vendor: str, self_test: bool, show: bool) -> None:
    report = examine(vendor)
    if show:
        _show_state(report)
    if self_test and report.chosen is not None:
        _self_test(report, report.chosen.vendor, show)
    if show:
        for problem in report.problems:
            console().print(f"FAILED  {problem}", style="bold red", soft_wrap=True)
        if not report.problems:
            console().print("all is well", style="green")
    else:
        typer.echo(json.dumps(plain(report), indent=2))
    raise typer.Exit(1 if report.problems else 0)


def _show_operators(vendor: str, pattern: str, as_json: bool) -> None:
    chosen = choose(vendor or None).vendor
    with settings.asking_for(chosen.name):  # torch_dipu serves the chip that is asked for
        rows = operators.rows_of(chosen, pattern)
    if as_json:
        typer.echo(json.dumps(operators.as_json(rows), indent=2))
        return
    cells = [(row.overload.removeprefix("aten::"), row.by, row.who) for row in rows]
    title = f"Who runs the operators of {chosen.label}"
    console().print(table(title, ("overload", "by", "who"), cells))
    counts = ", ".join(f"{by} {count}" for by, count in operators.summary(rows))
    console().print(f"{len(rows)} overloads: {counts or 'none match'}")


@app.command("settings")
def show_settings(
    everything: Annotated[
        bool, typer.Option("--all", help="Also the default and what is allowed.")
    ] = False,
) -> None:
    """Show every environment variable and its value now.

    \b
    Examples:
      deeplink settings
      DIPU_DEVICE_MEMORY=512MiB deeplink settings --all
    """
    out = console()
    rows = settings.in_force()
    if everything:
        for row in rows:
            out.print(f"{row.name} = {row.value or '(empty)'}  ({row.source})", style="bold")
            out.print(f"    {row.doc}")
            out.print(f"    default {row.default or '(empty)'}; allowed: {row.allowed}")
    else:
        out.print(_settings_table(rows))
    problems = [row.problem for row in rows if row.problem]
    for problem in problems:
        out.print(problem, style="bold red", soft_wrap=True)
    _show_unknown(settings.unknown())
    raise typer.Exit(1 if problems else 0)


def _self_test(report: Report, vendor: Vendor, show: bool) -> None:
    if show:
        console().print(f"self-test on {vendor.label} …")
    try_device(report, vendor)
    if show:
        rows = [(c.name, c.status, f"{c.seconds:.2f} s", c.detail) for c in report.checks]
        total = sum(check.seconds for check in report.checks)
        rows.append(("total", "", f"{total:.2f} s", ""))
        title = f"Self-test: {vendor.label}"
        console().print(table(title, ("check", "status", "time", "detail"), rows))


def _show_state(report: Report) -> None:
    out = console()
    out.print(", ".join(f"{name} {version}" for name, version in report.versions.items()))
    out.print()
    rows = [(row.name, row.status, row.distribution, _about(row)) for row in report.vendors]
    out.print(table("Vendors", ("vendor", "status", "from", "note"), rows))
    if report.chosen is not None:
        chosen = report.chosen
        title = f"Chosen: {chosen.vendor.name}, device {chosen.vendor.device!r}"
        out.print(f"{title}, {chosen.vendor.label}", style="bold")
        out.print(f"because: {chosen.why}", soft_wrap=True)
        out.print()
    if report.build:
        out.print(table("Native build", ("what", "state"), list(report.build.items())))
    cells = [(row.name, row.source, row.value or "(empty)") for row in report.settings]
    out.print(table("Settings in force", ("name", "from", "value"), cells))
    _show_unknown(report.unknown)


def _about(row: Found) -> str:
    return row.reason or (row.vendor.note if row.vendor else "")


def _settings_table(rows: list[InForce]) -> Any:
    cells = [(row.name, row.value or "(empty)", row.source, row.doc) for row in rows]
    return table("Settings", ("name", "value", "from", "meaning"), cells)


def _show_unknown(rows: list[Unknown]) -> None:
    for row in rows:
        meant = f"; did you mean {row.meant}?" if row.meant else ""
        hint = f".\nHint: {row.hint}" if row.hint else ""
        text = f"{row.name} is set, but nothing reads it{meant}{hint}"
        console().print(text, style="yellow", soft_wrap=True)
