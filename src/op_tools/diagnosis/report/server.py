# SPDX-License-Identifier: Apache-2.0
"""`report --serve`: a local page that is rendered again when the run has written more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from deeplink.errors import DeeplinkError

PERIOD = 2  # seconds between two requests of the page
# Requests the state of the run, and reloads the page when it has changed.
WATCH = """<script>
let known = null;
setInterval(async () => {
  try {
    const now = await (await fetch("/state")).text();
    if (known !== null && now !== known) location.reload();
    known = now;
  } catch { /* the server is gone */ }
}, %d);
</script></body>"""


class Server(ThreadingHTTPServer):
    """Serves the output of `render`, and renders it again when the run has changed."""

    daemon_threads = True

    def __init__(self, run: Path, port: int, render: Callable[[], str]) -> None:
        self.run, self.render = run, render
        self._made: tuple[str, bytes] | None = None
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def state(self) -> str:
        """A text that changes when a file of the run is written."""
        files = [self.run] if self.run.is_file() else self.run.rglob("*")
        seen = [stat for file in files if (stat := _stat(file)) is not None]
        return f"{len(seen)}-{max(seen, default=0)}"

    def page(self) -> bytes:
        """The current page of the run."""
        with self._lock:
            now = self.state()
            if self._made is None or self._made[0] != now:
                self._made = (now, self._rendered())
            return self._made[1]

    def _rendered(self) -> bytes:
        try:
            text = self.render()
        except DeeplinkError as error:  # no results yet
            text = f"<!doctype html><body><pre>{error}</pre></body>"
        return text.replace("</body>", WATCH % (PERIOD * 1000)).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path not in ("/", "/state"):
            self.send_error(404)
            return
        state = self.path == "/state"
        body = self.server.state().encode() if state else self.server.page()
        self.send_response(200)
        kind = "text/plain" if state else "text/html; charset=utf-8"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the user's."""


def _stat(file: Path) -> int | None:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # deleted in the meantime
        return None
