"""`python -m dlinfer serve …`: what `deeplink serve` runs."""

from __future__ import annotations

from typing import Annotated

import typer

from deeplink import running
from deeplink.vendor import using
from dlinfer.serving import SERVERS, Request, serve

app = typer.Typer(
    help="Serve a large model on the device at hand.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    pass


@app.command(
    "serve",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve_(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="The folder of a model, as its maker publishes it.")],
    framework: Annotated[
        str, typer.Option(help=f"Whose server: {', '.join(SERVERS)}.")
    ] = "transformers",
    host: Annotated[str, typer.Option(help="Who may ask: 0.0.0.0 lets everybody.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where it listens.")] = 8000,
    vendor: Annotated[str, typer.Option(help="On this vendor's device (DEEPLINK_VENDOR).")] = "",
) -> None:
    """Serve a model by a framework's own OpenAI-compatible server, on dlinfer's ops.

    The framework must be installed. Options that are not listed below go to its own command
    (`transformers serve`, `lmdeploy serve api_server`, `vllm serve`) as they are. DEEPLINK_VENDOR
    chooses the device; without an accelerator it is the CPU. Ctrl-C ends it.

    \b
    Examples:
      deeplink serve --model ./Qwen2-7B --framework lmdeploy
      deeplink serve --model ./Qwen2-7B --framework lmdeploy --session-len 8192
      curl localhost:8000/v1/models
      curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "./Qwen2-7B", "messages": [{"role": "user", "content": "Hello"}]}'
    """
    with using(vendor):
        serve(framework, Request(model, host, port, tuple(context.args)))


def main() -> None:
    with running.errors_as_text():
        app(prog_name="deeplink")


if __name__ == "__main__":
    main()
