"""Headless Chromium over its debugging pipe: enough to test one page and collect its errors."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--mute-audio",
    "--remote-debugging-pipe",
)
WAIT_S = 30.0


def program() -> str | None:
    """The path of the installed program."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Browser:
    """Browser process with its own profile, as a context manager. `flags` are additional; `quic` leaves HTTP/3 on."""

    def __init__(self, *flags: str, quic: bool = False) -> None:
        self._flags = [*(one for one in FLAGS if not (quic and one == "--disable-quic")), *flags]

    def __enter__(self) -> Browser:
        self._profile = tempfile.mkdtemp(prefix="towline-browser-")
        child_end, self._write = os.pipe()
        self._read, back = os.pipe()

        def pipes() -> None:
            # Chromium reads commands from 3 and writes replies to 4. Dup first: either may be 3 or 4 already.
            first, second = os.dup(child_end), os.dup(back)
            os.dup2(first, 3)
            os.dup2(second, 4)

        command = [str(program()), *self._flags, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(child_end)
        os.close(back)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read, selectors.EVENT_READ)
        self._buffer, self._numbers, self.events = b"", itertools.count(1), list[dict[str, Any]]()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        """Sends one command and returns its reply; events meanwhile are stored in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                result: dict[str, Any] = reply["result"]
                return result
            self.events.append(reply)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_S
        while b"\0" not in self._buffer:
            if not self._selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError("the browser did not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


class Tab:
    """Tab of a browser. `protocols`: those of the last document and of its resources (ALPN names)."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network"):
            browser.call(f"{domain}.enable", self._session)

    def open(self, url: str, condition: str = "true") -> None:
        """Waits until the document is complete and the condition holds."""
        self._browser.call("Page.navigate", self._session, url=url)
        deadline = time.monotonic() + WAIT_S
        whole = f"document.URL === {json.dumps(url)} && document.readyState === 'complete' && ({condition})"
        while not self.evaluate(whole):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url}: {self.evaluate('document.URL + document.body?.innerText')}")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        reply = self._browser.call(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise RuntimeError(reply["exceptionDetails"]["exception"].get("description", "thrown"))
        return reply["result"].get("value")

    @property
    def protocols(self) -> tuple[str, list[str]]:
        document, *rest = self.evaluate(
            "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
            ".map(entry => entry.nextHopProtocol)"
        )
        return document, rest


def trusting(cert: Path, host: str = "127.0.0.1") -> list[str]:
    """Flags with which a certificate of a test is accepted, over QUIC as well.

    QUIC takes a private authority only for hosts of which some origin is forced to it; that of port 1 is never visited.
    """
    key = x509.load_pem_x509_certificate(cert.read_bytes()).public_key()
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    pin = base64.b64encode(hashlib.sha256(encoded).digest()).decode()
    return [f"--ignore-certificate-errors-spki-list={pin}", f"--origin-to-force-quic-on={host}:1"]


class Page:
    """A file, opened at a window size; `problems` are errors and requests, which the page must not have."""

    def __init__(self, browser: Browser, path: Path, width: int, height: int, *, dark: bool = False) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._target = target
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        browser.events.clear()
        self._url = path.as_uri()
        self._call("Page.navigate", url=self._url)
        self.wait("document.readyState === 'complete'")

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """A JSON value. Raises RuntimeError with the page's exception."""
        reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(reply["exceptionDetails"]["exception"].get("description", "thrown"))
        return reply["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    @property
    def problems(self) -> list[str]:
        """Console errors, exceptions, log entries, and requests for anything but the page itself."""
        self.evaluate("1")
        found = []
        for event in self._browser.events:
            method, params = event.get("method"), event.get("params", {})
            if event.get("sessionId") != self._session:
                continue
            if method == "Runtime.exceptionThrown":
                found.append(f"exception: {params['exceptionDetails']}")
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(f"console: {params['args']}")
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {params['entry']['text']}")
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if url.partition("#")[0] != self._url and not url.startswith("data:"):
                    found.append(f"request: {url}")
        return found

    def screenshot(self, path: Path, *, full_page: bool = True) -> None:
        reply = self._call("Page.captureScreenshot", captureBeyondViewport=full_page, format="png")
        path.write_bytes(base64.b64decode(reply["data"]))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
