"""`deeplink serve`: a framework's own server answers a request, with dlinfer's ops under it."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deeplink.errors import DeeplinkError
from dlinfer.serving import SERVERS, Request, serve

ROOT = Path(__file__).parents[3]
SECONDS = 480  # to start, on a busy machine


@contextmanager
def _serving(*line: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "deeplink", "serve", *line, "--port", str(port)]
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(server, address)
        yield address
    finally:
        server.terminate()
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:  # it was still starting
            server.kill()
            server.communicate()


def _wait(server: subprocess.Popen[str], address: str) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if server.poll() is not None:
            raise AssertionError(server.communicate()[0])
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"no answer after {SECONDS} s")


def _asked(address: str, model: Path) -> Any:
    body = {
        "model": str(model),
        "messages": [{"role": "user", "content": "How are you?"}],
        "max_tokens": 5,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return json.loads(answer.read())


@pytest.mark.frameworks
@pytest.mark.parametrize("framework", SERVERS)
def test_a_request_is_answered(framework: str, tmp_path: Path) -> None:
    for name in SERVERS[framework].needs:
        pytest.importorskip(name, reason=f"not installed: scripts/frameworks {framework}")
    from tests.dlinfer.serving import tiny

    model = tiny.make("llama", tmp_path, hidden_size=128)  # vLLM has heads of 32 at least
    with _serving("--model", str(model), "--framework", framework) as address:
        answer = _asked(address, model)
    assert answer["usage"]["completion_tokens"] == 5
    assert isinstance(answer["choices"][0]["message"]["content"], str)


def test_what_cannot_be_served_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(str(tmp_path), "127.0.0.1", 1)
    with pytest.raises(DeeplinkError, match="no framework 'tgi'; allowed: transformers, lmdeploy"):
        serve("tgi", request)
    with pytest.raises(DeeplinkError, match=r"no folder with a model: it has no config\.json"):
        monkeypatch.setitem(SERVERS, "here", type(SERVERS["vllm"])(("json",), "", lambda _: None))
        serve("here", request)
    (tmp_path / "config.json").touch()
    with pytest.raises(
        DeeplinkError, match=r"gone cannot serve: no_such_module not installed(.|\n)*pip"
    ):
        monkeypatch.setitem(
            SERVERS,
            "gone",
            type(SERVERS["vllm"])(("no_such_module",), "pip install it.", lambda _: None),
        )
        serve("gone", request)
