"""A headless Chromium over a pipe: as much of its protocol as the tests of pages need."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def installed() -> str | None:
    """The browser's path; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """`with Browser() as page: page.open(path); page.js("document.title")`."""

    def __init__(self, width: int = 1320, height: int = 900) -> None:
        path = installed()
        assert path is not None  # check `installed` first
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        flags += [f"--window-size={width},{height}", f"--user-data-dir={self._folder.name}"]
        # the browser reads at 3 and writes at 4
        script = f'exec 3<&{to_read} 4>&{to_write}; exec "$@"'
        line = ["bash", "-c", script, "bash", path, *flags, "--remote-debugging-pipe"]
        self._process = subprocess.Popen(
            line, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest = 0, b""
        self.errors: list[str] = []  # of the scripts of the page, and of its console
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session: str | None = attached["sessionId"]

    _session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol; events that come between are passed over."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answer()
            self._note(answer)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _note(self, event: dict[str, Any]) -> None:
        """Keep an exception or an error of the console."""
        about = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(about["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled" and about["type"] == "error":
            self.errors.append(str(about["args"]))

    def _answer(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._from, 1 << 20)
            assert data, "the browser has gone"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, page: Path, seconds: float = 30.0, state: dict[str, str] | None = None) -> None:
        """Load a page with a state in its address, and wait until it is drawn."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url="about:blank")
        address = page.resolve().as_uri() + (f"#{urlencode(state)}" if state else "")
        self.call("Page.navigate", url=address)
        until = time.monotonic() + seconds
        shown = "document.documentElement?.dataset"
        while not self.js(f"{shown}?.ready || {shown}?.failed || ''"):
            assert time.monotonic() < until, "the page does not come to its end"
            time.sleep(0.05)
        assert not self.js("document.documentElement.dataset.failed || ''")

    def js(self, expression: str) -> Any:
        """What an expression gives; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """The page as it is seen, or all of it."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def size(self, width: int, height: int) -> None:
        """Show the page as on a screen of this size."""
        how = {"deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, **how)

    def dark(self, on: bool = True) -> None:
        """As on a desktop that prefers dark colours."""
        wanted = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", features=[wanted])

    def offline(self) -> None:
        """No network at all: a page that needs one shows it."""
        self.call("Network.enable")
        self.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
