# SPDX-License-Identifier: Apache-2.0
"""`deeplink serve`: run a framework's own OpenAI-compatible server on dlinfer's ops."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeplink import settings
from deeplink.errors import DeeplinkError
from deeplink.i18n import _
from dlinfer.framework import apply
from dlinfer.framework.choice import chosen

log = logging.getLogger("dlinfer")


@dataclass(frozen=True)
class Request:
    """The model to serve, the address, and further arguments of the framework's own command."""

    model: str
    host: str
    port: int
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Server:
    """A framework: the modules that it needs, how to install it, and how to start it."""

    needs: tuple[str, ...]
    install: str
    start: Callable[[Request], None]


def serve(framework: str, request: Request) -> None:
    """Start the server in this process; returns when it ends."""
    server = SERVERS.get(framework)
    if server is None:
        raise DeeplinkError(f"no framework {framework!r}; allowed: {', '.join(SERVERS)}.")
    if not Path(request.model, "config.json").is_file():
        raise DeeplinkError(
            _("{model!r} is no folder with a model: it has no config.json.").format(
                model=request.model
            ),
            _("download the model first: the folder has config.json, weights and a tokenizer."),
        )
    missing = [name for name in server.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise DeeplinkError(
            _("{framework} cannot serve: {names} not installed.").format(
                framework=framework, names=", ".join(missing)
            ),
            server.install,
        )
    server.start(request)


def _lmdeploy(request: Request) -> None:
    from dlinfer.framework import lmdeploy  # needs the framework

    registered = lmdeploy.register()
    log.info("LMDeploy on %s", registered.vendor.label)
    where = ("--server-name", request.host, "--server-port", str(request.port))
    how = ("--backend", "pytorch", "--device", lmdeploy.DEVICE_TYPE)
    _command(
        "lmdeploy.cli.entrypoint", "run", "serve", "api_server", request.model, *how, *where,
        *request.rest,
    )  # fmt: skip


def _transformers(request: Request) -> None:
    manager: Any = importlib.import_module("transformers.cli.serving.model_manager")
    load = manager.ModelManager._load_model

    def _load_model(self: Any, *args: Any, **named: Any) -> Any:
        model = load(self, *args, **named)
        applied = apply(model)
        log.info("dlinfer's ops in %s", applied.layers)
        return model

    manager.ModelManager._load_model = _load_model  # in this process's server only
    where = ("--host", request.host, "--port", str(request.port), "--device", chosen().device)
    _command("transformers.cli.transformers", "main", "serve", request.model, *where, *request.rest)


def _vllm(request: Request) -> None:
    """Start vLLM by the module of `vllm serve`:
    the command itself requires the wheel named vllm.
    """
    if not importlib.metadata.entry_points(group="vllm.general_plugins", name="dlinfer"):
        raise DeeplinkError(
            _("vLLM would not find dlinfer's plugin: deeplink was installed before it had one."),
            _("install deeplink again: `pip install -e .`."),
        )
    settings.watch_children({settings.DLINFER_VLLM.name: "1"})  # its engine is another process
    where = ("--host", request.host, "--port", str(request.port))
    module = "vllm.entrypoints.openai.api_server"
    sys.argv = [module, "--model", request.model, *where, *request.rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _command(module: str, function: str, *line: str) -> None:
    """Run a framework's own command line."""
    main = getattr(importlib.import_module(module), function)
    sys.argv = [module.partition(".")[0], *line]
    main()


BESIDE = "for a separate environment, on a machine without CUDA, scripts/frameworks"
SERVERS = {
    "transformers": Server(
        ("transformers", "accelerate", "fastapi", "uvicorn"),
        "`pip install transformers[serving] accelerate`.",
        _transformers,
    ),
    "lmdeploy": Server(("lmdeploy",), f"`pip install lmdeploy`; {BESIDE} lmdeploy.", _lmdeploy),
    "vllm": Server(("vllm",), f"`pip install vllm`; {BESIDE} vllm.", _vllm),
}
