"""`acpo view --live`: the page of a run, served to this machine alone and to read only.

Whoever can name the token in the address may read, and nothing else: there is no path to a file,
no verb but GET. A page of another site can neither read an answer (no cross-origin headers, and
browsers say where a request comes from) nor reach the server under a name of its own (`Host`).
"""

import functools
import hmac
import secrets
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.viewer.credit import Blocks, credit_blocks, credit_page
from acpo.viewer.run import newest_part, recorded, run_facts
from acpo.viewer.shell import to_json

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
Answers = dict[str, Callable[[str], tuple[str, str]]]
"""By the path after the token, a function of the query that gives content type and text."""


class LiveServer(ThreadingHTTPServer):
    """Answers on loopback, under an address nobody can guess."""

    daemon_threads = True

    def __init__(self, answers: Answers, port: int = 0) -> None:
        self.answers = answers
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ACPOError(
                f"--port {port}: {error.strerror}; leave it out for any free"
            ) from error

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away is no error."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "acpo", ""
    timeout = 10

    def do_GET(self) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self.send_error(403, "this server has no such name")
            return
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            self.send_error(403, "asked for by another site")
            return
        path, _, query = self.path.partition("?")
        _, token, name = path.split("/", 2) if path.count("/") > 1 else ("", "", "")
        answer = self.server.answers.get(name)
        if not hmac.compare_digest(token.encode(), self.server.token.encode()) or answer is None:
            self.send_error(404)
            return
        try:
            kind, text = answer(query)
        except ACPOError as error:
            self._send(503, "text/plain", str(error))
            return
        self._send(200, kind, text)

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: addresses hold the token, and terminals interpret what strangers send."""


LIVE_TOKENS = 60_000
"""Of the latest rollouts, on a page that is sent whenever they change."""


def run_blocks(folder: Path, *, step: int | None = None, **options: Any) -> Blocks:
    """What the page of a run shows: all that was recorded of it, or one step."""
    rollouts = recorded(folder)
    if rollouts is None and (step is not None or options.get("annotations")):
        raise ACPOError(
            f"{folder} holds no recorded rollouts, of which --step and --annotations choose: train "
            "with record_rollouts: true"
        )
    rollouts = rollouts.of_step(step) if rollouts else None
    blocks = credit_blocks(rollouts, name=folder.resolve().name, **options)
    blocks["page"]["run"] = run_facts(folder)
    return blocks


def run_answers(folder: Path, **options: Any) -> Answers:
    """The page of a run, what is new of it since a part, and the page as it can be kept."""
    lock = threading.Lock()  # two windows must not compute the same at a time

    @functools.lru_cache(maxsize=1)
    def rollouts(step: int, part: int) -> Blocks:
        wanted = step if part >= 0 else None
        blocks = run_blocks(folder, step=wanted, most_tokens=LIVE_TOKENS, **options)
        blocks["page"]["part"] = f"{step}-{part}"
        return blocks

    def latest() -> Blocks:
        with lock:
            blocks = rollouts(*newest_part(folder))
        return blocks | {"page": blocks["page"] | {"run": run_facts(folder)}}

    def news(query: str) -> tuple[str, str]:
        step, part = newest_part(folder)
        same = query in ("part=", f"part={step}-{part}")
        found = {"run": run_facts(folder)} if same else {"blocks": latest()}
        return "application/json", to_json(found)

    return {
        "": lambda query: ("text/html", credit_page(latest(), live=True)),
        "run.json": news,
        "report.html": lambda query: ("text/html", credit_page(run_blocks(folder, **options))),
    }
