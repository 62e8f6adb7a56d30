"""A chat endpoint on loopback that annotates chains rightly, and misbehaves on demand."""

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator

from acpo.tasks.chain import ChainProblem
from evaluate.server import Handler, Server

Behave = Callable[[str, int], object]
"""(message, number of the request) -> the reply's text, a dict of message fields, or a fault."""


class Fault(str):
    """Something other than a reply."""


def pieces(message: str) -> dict[str, str]:
    """What stands between the fences, by title, as a model would read it."""
    fence = re.search(r"^The fence is (\w+)\.$", message, re.M)[1]
    found = re.findall(rf"^([^\n]*):\n<<<{fence}\n(.*?)\n{fence}>>>$", message, re.M | re.S)
    return dict(found)


def place(line: int, quote: str, rationale: str = "because", found: bool = True) -> str:
    return json.dumps({"found": found, "line": line, "quote": quote, "rationale": rationale})


def annotate_chain(message: str, number: int) -> str:
    """The right answer: quotes from the first wrong character to the end."""
    data = pieces(message)
    problem = ChainProblem.parse(data["Problem"])
    wrong = (data.get("Solution") or data["First solution, wrong"]).removeprefix("1| ")
    pairs = zip(problem.solution, wrong, strict=False)
    start = next((i for i, (a, b) in enumerate(pairs) if a != b), len(wrong) - 1)
    if "Solution" in data:
        return place(1, wrong[start:])
    return place(1, data["Second solution, right"].removeprefix("1| ")[start:])


class AnnotatingServer(Server):
    def __init__(self, behave: Behave) -> None:
        super().__init__(lambda prompt, seed: "")
        self.RequestHandlerClass = AnnotatingHandler
        self.behave = behave
        self.times: list[float] = []
        self.authorizations: list[str | None] = []
        self.rejects: set[str] = set()
        self.tokens_read = 100

    @property
    def messages(self) -> list[str]:
        return [payload["messages"][-1]["content"] for payload in self.payloads]


class AnnotatingHandler(Handler):
    server: AnnotatingServer

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = self.server.number
            self.server.number += 1
            self.server.payloads.append(payload)
            self.server.times.append(time.monotonic())
            self.server.authorizations.append(self.headers.get("Authorization"))
        if self.refused():
            return
        for option in sorted(self.server.rejects & payload.keys()):
            self.reply(400, {"error": {"message": f"{option} is not supported"}})
            return
        said = self.server.behave(payload["messages"][-1]["content"], number)
        if isinstance(said, Fault):
            self.fail(said)
            return
        message = said if isinstance(said, dict) else {"content": said}
        finish = message.pop("finish_reason", "stop")
        choice = {"finish_reason": finish, "message": {"role": "assistant", **message}}
        usage = {"prompt_tokens": self.server.tokens_read, "completion_tokens": 10}
        self.reply(200, {"choices": [choice], "usage": usage})

    def fail(self, fault: Fault) -> None:
        if fault == "drip":
            self.raw(b"Transfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    self.wfile.write(b"1\r\n \r\n")
                    self.wfile.flush()
                    time.sleep(0.05)
        elif fault == "flood":
            self.raw(b"Transfer-Encoding: chunked\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(10_000):
                    self.wfile.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            self.close_connection = True
        else:
            self.misbehave(fault)


@contextlib.contextmanager
def annotating(behave: Behave = annotate_chain) -> Iterator[AnnotatingServer]:
    with AnnotatingServer(behave) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
