"""`python -m ditorch run train.py …`: a CUDA program as it is, on the vendor's device."""

from __future__ import annotations

import typer

from deeplink import one_iter, running, settings
from ditorch import coverage, session
from ditorch.pytorch_tests.command import pytorch_tests

app = typer.Typer(
    help="Run programs written for CUDA on another accelerator.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    pass


@app.command(context_settings=running.FORWARDED)
def run(context: typer.Context) -> None:
    """Run a script (or `-m module`) with its arguments; `run --help` says what may watch it."""
    _run(running.parse("python -m ditorch run", context.args))


@app.command("one-iter", context_settings=running.FORWARDED)
def one_iteration(context: typer.Context) -> None:
    """Record an iteration of a script, or compare one with a record, layer by layer."""
    _run(one_iter.parse("python -m ditorch one-iter", context.args))


app.command("pytorch-tests")(pytorch_tests)
app.command("coverage")(coverage.command)


def _run(request: running.Request) -> None:
    settings.watch_children(request.values)  # the vendor is one of them
    settings.activate_children()
    session.activate(request.vendor or None)
    running.run(request)


if __name__ == "__main__":
    with running.errors_as_text():
        app()
