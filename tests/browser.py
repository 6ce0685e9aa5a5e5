"""A headless Chromium, driven over its DevTools protocol: enough to open a page and ask it questions."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
         "--remote-allow-origins=*", "--disable-dev-shm-usage", "--hide-scrollbars")  # fmt: skip


def executable() -> str:
    """Return Chromium's path; skips the test where there is none."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no Chromium here: apt-get install chromium, or set CHROMIUM to its path")
    return found


class Browser:
    """One Chromium with one page; use as a context manager."""

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp(prefix="quarl-browser-")
        call = [executable(), *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(call, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.count = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        import websocket

        port_file, deadline = Path(self.profile) / "DevToolsActivePort", time.monotonic() + 60
        while not port_file.exists() or len(port_file.read_text().splitlines()) < 2:
            assert time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.05)
        port = port_file.read_text().splitlines()[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list"))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self.socket = websocket.create_connection(address, timeout=120, max_size=None)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools method and return its result; events that come meanwhile are kept."""
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.count:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open an address in a window of a size, and wait until it has loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression: str) -> Any:
        """Evaluate JavaScript, wait for a promise, and return the value."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.1)

    def requested(self) -> list[str]:
        """Return the addresses that the page asked for since it was opened."""
        return [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path, whole: bool = False) -> Path:
        """Save what the window shows, or the whole page, as PNG."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path
