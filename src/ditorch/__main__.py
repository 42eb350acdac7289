"""`python -m ditorch run train.py …`: a CUDA program as it is, on the vendor's device."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from deeplink import settings
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


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: python -m ditorch run train.py --epochs 3",
)
def run(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="A script, or with -m a module.")],
    module: Annotated[bool, typer.Option("-m", help="Run a module by its name.")] = False,
) -> None:
    """Run a script (or `-m module`) with its arguments; DEEPLINK_VENDOR chooses the device."""
    sys.argv = [script, *context.args]
    settings.activate_children()
    if module:
        sys.path.insert(0, "")
        runpy.run_module(script, run_name="__main__", alter_sys=True)
        return
    if not Path(script).is_file():
        raise typer.BadParameter(f"no script {script!r}; for a module say -m {script}")
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


app.command("pytorch-tests")(pytorch_tests)

if __name__ == "__main__":
    app()
