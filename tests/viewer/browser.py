"""A real Chromium, driven over a pipe: the DevTools protocol without a driver package."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

CHROMIUM = shutil.which("google-chrome") or shutil.which("chromium")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


class PageError(AssertionError):
    """The page threw, or an expression evaluated in it did."""


class Browser:
    """One window. `events` holds every DevTools event since the last `open`."""

    def __init__(self, *, width: int = 1440, height: int = 900, scale: float = 1) -> None:
        self.size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.events: list[dict[str, Any]] = []
        self._next, self._buffer = 0, b""

    def __enter__(self) -> Self:
        assert CHROMIUM
        self._home = tempfile.mkdtemp(prefix="chromium-")
        to_child, self._out = os.pipe()
        self._in, from_child = os.pipe()
        # Chromium reads commands from descriptor 3 and writes to 4.
        script = f'exec "$@" 3<&{to_child} 4>&{from_child}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "_", CHROMIUM, *FLAGS, f"--user-data-dir={self._home}"],
            pass_fds=(to_child, from_child),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._home},
        )
        os.close(to_child)
        os.close(from_child)
        target = self._send("Target.createTarget", {"url": "about:blank"}, session=None)
        attach = {"targetId": target["targetId"], "flatten": True}
        self._session = self._send("Target.attachToTarget", attach, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", **self.size)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._home, ignore_errors=True)

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._send(method, params, session=self._session)

    def _send(self, method: str, params: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._out, data) :]
        deadline = time.monotonic() + 60
        while True:
            reply = self._receive(deadline)
            if reply.get("id") == self._next:
                if "error" in reply:
                    raise PageError(f"{method}: {reply['error']}")
                return reply["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            wait = deadline - time.monotonic()
            if wait <= 0 or not select.select([self._in], [], [], wait)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise PageError("the browser ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page: Path | str) -> None:
        """Load a file, or an address, and wait until it has drawn itself."""
        self.events.clear()
        url = page if isinstance(page, str) else page.resolve().as_uri()
        answer = self.send("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        deadline = time.monotonic() + 60
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._receive(deadline)
        self.frames(2)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page, awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise PageError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def texts(self, selector: str) -> list[str]:
        """What stands in each element."""
        found = f"document.querySelectorAll({json.dumps(selector)})"
        return self.run(f"[...{found}].map((element) => element.textContent)")

    def text(self, selector: str) -> str:
        """What stands in the first element."""
        return self.texts(selector)[0]

    def count(self, selector: str) -> int:
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def wait(self, expression: str, seconds: float = 20) -> None:
        """Until an expression is true in the page."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"{expression} did not come true"
            time.sleep(0.05)

    def frames(self, number: int = 2) -> None:
        for _ in range(number):
            self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def press(self, *keys: str, modifiers: int = 0) -> None:
        """Key strokes as the keyboard makes them; `modifiers` 8 is Shift."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "PageUp": 33, "PageDown": 34}
        codes |= {"End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
        codes |= {"ArrowDown": 40}
        for key in keys:
            text = "\r" if key == "Enter" else key if len(key) == 1 else None
            code = codes.get(key, ord(key.upper()) if len(key) == 1 and key.isalnum() else 0)
            common = {"key": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
            down = {**common, "type": "keyDown" if text else "rawKeyDown"}
            self.send("Input.dispatchKeyEvent", **(down | ({"text": text} if text else {})))
            self.send("Input.dispatchKeyEvent", **common, type="keyUp")

    def hover(self, selector: str) -> dict[str, float]:
        """Move the pointer to the middle of the first element; gives the place."""
        x, y = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2] })()"
        )
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return {"x": x, "y": y}

    def click(self, selector: str) -> None:
        """As a mouse does it, with what a press alone brings about."""
        place = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def screenshot(self, file: Path) -> None:
        data = self.send("Page.captureScreenshot", format="png")["data"]
        file.write_bytes(base64.b64decode(data))

    def main_thread_tasks(self, action: Callable[[], object]) -> list[float]:
        """CPU milliseconds of each task the page's main thread ran during an action."""
        categories = "devtools.timeline,disabled-by-default-devtools.timeline"
        options = {"categories": categories, "transferMode": "ReportEvents"}
        self.events = [e for e in self.events if not e["method"].startswith("Tracing.")]
        self._send("Tracing.start", options, session=None)
        action()
        self._send("Tracing.end", {}, session=None)
        deadline = time.monotonic() + 60
        while not any(event["method"] == "Tracing.tracingComplete" for event in self.events):
            self._receive(deadline)
        collected = [e for e in self.events if e["method"] == "Tracing.dataCollected"]
        traced = [entry for event in collected for entry in event["params"]["value"]]
        main = {(e["pid"], e["tid"]) for e in traced if e["name"] == "FireAnimationFrame"}
        tasks = [e for e in traced if e["name"] == "RunTask" and (e["pid"], e["tid"]) in main]
        return [task["tdur"] / 1000 for task in tasks if "tdur" in task]

    def problems(self) -> list[str]:
        """Errors, policy violations, dialogs and requests since the page was opened."""
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                found.append(f"console: {params['args']}")
            elif method == "Page.javascriptDialogOpening":
                found.append(f"dialog: {params['message']}")
        return found

    def requests(self, *, blocked: bool = True) -> list[str]:
        """Every request but the page itself, with those the page's policy stopped or without."""
        stopped = {
            event["params"]["requestId"]
            for event in self.events
            if event["method"] == "Network.loadingFailed"
            and event["params"].get("blockedReason") == "csp"
        }
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
            and (blocked or event["params"]["requestId"] not in stopped)
        ]
        return urls[1:]
