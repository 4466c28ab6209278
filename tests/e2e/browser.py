"""A real headless Chromium, driven over its DevTools pipe: what a page shows, asks for and complains of."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Page", "opened"]

_PATIENCE_S = 60


class Page:
    """One page. `requests` are the URLs that it asked for, `complaints` its errors and warnings."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self._process = process
        self._reading, self._writing = reading, writing
        self._received = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def open(self, url: str) -> None:
        """Go to `url` and wait until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Security"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        self.wait_until("document.readyState === 'complete'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something and return its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def run(self, script: str) -> Any:
        """Return what an expression of JavaScript gives; promises are waited for."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + _PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)

    def look(self, *, width: int, scheme: str = "light", medium: str = "") -> None:
        """Look at it on a screen (or medium) of `width` CSS pixels, in the colour scheme `light` or `dark`."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=features)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def press_enter(self) -> None:
        """Press the key where the focus is."""
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **key)

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """Write what it shows as PNG: all of it, or the first `height` pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._reading], [], [], _PATIENCE_S)
            assert ready, "Chromium does not answer"
            part = os.read(self._reading, 1 << 20)
            assert part, f"Chromium ended: {self._process.wait()}"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(parameters["entry"]["text"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(parameters["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))


@contextmanager
def opened(url: str, home: Path, *, any_certificate: bool = False) -> Iterator[Page]:
    """Open `url` in a Chromium of its own, whose files are in `home`, and end it afterwards.

    any_certificate: accept certificates of authorities that the browser does not know.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "there is no Chromium; hint: make setup, or apt-get install chromium"
    to_browser, writing = os.pipe()
    reading, from_browser = os.pipe()
    command = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
        f"--user-data-dir={home}", "--remote-debugging-pipe",
        *(["--ignore-certificate-errors"] if any_certificate else []), "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(to_browser, from_browser),
        env={**os.environ, "HOME": str(home)},
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        page = Page(process, reading, writing)
        page.open(url)
        yield page
    finally:
        process.terminate()
        process.wait()
        os.close(reading)
        os.close(writing)
