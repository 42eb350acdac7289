# SPDX-License-Identifier: Apache-2.0
"""The commands for graphs and models: compile-report and serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeplink.commands import common
from deeplink.vendor import using


def compile_report(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(help="A report. Default: that of the last process that compiled."),
    ] = None,
    backends: Annotated[
        bool, typer.Option("--backends", help="Instead: the installed backends; FILE is a name.")
    ] = False,
    json: common.Json = "",
) -> None:
    """Show what torch.compile compiled, what stayed eager, why

    \b
    Examples:
      deeplink compile-report
      deeplink compile-report --json
      deeplink compile-report --backends                  the installed backends
      deeplink compile-report --backends inductorgraph    load one, and show it

    \b
    Exit codes:
      0 shown, 2 there is no report, or no backend of this name
    """
    name = str(file or "") if backends else None
    raise typer.Exit(common.work("dicp.__main__:compile_report")(file, name, json))


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="The folder of a model, as its maker publishes it.")],
    framework: Annotated[
        Literal["transformers", "lmdeploy", "vllm"], typer.Option(help="Whose server runs.")
    ] = "transformers",
    host: Annotated[
        str, typer.Option(help="Address to bind; 0.0.0.0 accepts remote connections.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port.")] = 8000,
    vendor: common.VendorName = "",
) -> None:
    """Serve a large model behind an OpenAI-compatible server

    The framework must be installed. Options that are not listed below go to its own command
    (`transformers serve`, `lmdeploy serve api_server`, `vllm serve`) unchanged. Without an
    accelerator the model runs on the CPU. Ctrl-C ends the server.

    \b
    Examples:
      deeplink serve --model ./Qwen2-7B --framework lmdeploy
      deeplink serve --model ./Qwen2-7B --framework lmdeploy --session-len 8192
      curl localhost:8000/v1/models
      curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "./Qwen2-7B", "messages": [{"role": "user", "content": "Hello"}]}'

    \b
    Exit codes:
      the server's own; 2 when it cannot start
    """
    with using(vendor):
        request = common.work("dlinfer.serving:Request")(model, host, port, tuple(context.args))
        common.work("dlinfer.serving:serve")(framework, request)
