"""A headless Chromium, driven over its DevTools pipe: no port, no WebSocket library, no network.

Knows pages only as addresses; what is looked for in them is the tests'.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
ANSWER = 60.0  # seconds


def find_chromium() -> str | None:
    """The path of a Chromium, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab. Methods wait for the browser's answer."""

    def __init__(self, to: int, out: int) -> None:
        self._to, self._from = to, out
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.complaints: list[str] = []  # errors that the page threw or the browser logged
        self.requests: list[str] = []  # addresses that the page asked for
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def look(self, width: int, height: int, *, dark: bool) -> None:
        """Size and theme of the screen, from now on."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Load a file and wait until it is drawn."""
        self._call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def wait(self, expression: str) -> None:
        """Until the expression holds."""
        end = time.monotonic() + ANSWER
        while not self.run(expression):
            assert time.monotonic() < end, f"the page never got so far: {expression}"
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path, clip: tuple[float, float, float, float] | None = None) -> None:
        """A PNG of the window, or of a part (x, y, width, height) of the page."""
        more: dict[str, Any] = {}
        if clip is not None:
            more["clip"] = {**dict(zip(("x", "y", "width", "height"), clip, strict=True)), "scale": 1}
            more["captureBeyondViewport"] = True
        data = self._call("Page.captureScreenshot", format="png", **more)["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            self._note(answer.get("method", ""), answer.get("params", {}))
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.complaints.append(str(about["entry"]["text"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(str(about["request"]["url"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], ANSWER)
            assert ready, "the browser does not answer"
            read = os.read(self._from, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def chromium(binary: str) -> Iterator[Page]:
    """A browser of its own, with a fresh profile; it and its processes are gone afterwards."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]

        def wire() -> None:  # the browser reads file 3 and writes file 4
            os.dup2(to_read, 10)
            os.dup2(from_write, 11)
            os.dup2(10, 3)
            os.dup2(11, 4)

        process = subprocess.Popen(
            command,
            preexec_fn=wire,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Page(to_write, from_read)
        finally:
            os.close(to_write)
            os.close(from_read)
            process.terminate()
            process.wait(timeout=20)
