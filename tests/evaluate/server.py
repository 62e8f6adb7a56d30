"""A real OpenAI-compatible server on loopback, which answers as told and misbehaves on demand."""

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# What a completion is made from: the prompt and the seed of the request.
Answer = Callable[[str, int], str]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.key: str | None = None
        self.faults: Callable[[int], str | None] = lambda number: None
        self.payload_faults: Callable[[dict], str | None] = lambda payload: None
        self.card: dict = {}
        self.fingerprint: str | None = None
        self.listing: Callable[[int], int] = lambda number: 200  # the status of `/models`
        self.listed = 0
        self.finish: Callable[[int], object] = lambda number: "stop"
        self.count: Callable[[str], object] = len  # of tokens, as `usage` tells it
        self.latency = 0.0
        self.requests: Counter[tuple[str, int]] = Counter()
        self.payloads: list[dict] = []
        self.paths: list[str] = []
        self.lock = threading.Lock()
        self.number = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request, client_address) -> None:
        """A client that went away is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *args) -> None:
        pass

    def refused(self) -> bool:
        key = self.server.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        self.reply(401, {"error": {"message": f"bad key: {self.headers.get('Authorization')}"}})
        return True

    def do_GET(self) -> None:
        if not self.refused():
            status = self.server.listing(self.server.listed)
            self.server.listed += 1
            self.reply(status, {"data": [{"id": "tiny", **self.server.card}]})

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        chat = self.path.endswith("/chat/completions")
        prompt = payload["messages"][-1]["content"] if chat else payload["prompt"]
        with self.server.lock:
            number = self.server.number
            self.server.number += 1
            self.server.payloads.append(payload)
            self.server.paths.append(self.path)
        fault = self.server.faults(number) or self.server.payload_faults(payload)
        if fault is not None:
            self.misbehave(fault)
            return
        time.sleep(self.server.latency)
        text = self.server.answer(prompt, payload["seed"])
        finish = self.server.finish(number)
        choice = {"index": 0} if finish is ... else {"index": 0, "finish_reason": finish}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        mark = self.server.fingerprint
        said = {"system_fingerprint": mark} if mark else {}
        said |= {"choices": [choice], "usage": {"completion_tokens": self.server.count(text)}}
        self.reply(200, said)
        with self.server.lock:
            self.server.requests[prompt, payload["seed"]] += 1

    def reply(self, status: int, body: object, **headers: str) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def misbehave(self, fault: str) -> None:
        if fault.isdigit():
            headers = {"Retry_After": "0.2"} if fault == "429" else {}
            self.reply(int(fault), {"error": "told to"}, **headers)
            return
        if fault == "429 for 600 s":
            self.reply(429, {"error": "later"}, Retry_After="600")
            return
        if fault.startswith("echo"):
            said = f"{'.' * 40}{self.headers['Authorization']}"
            self.reply(int(fault.removeprefix("echo ")), {"error": {"message": 7 * said}})
            return
        if fault == "unknown":
            self.reply(400, {"error": "Unrecognized request argument supplied: min_p"})
            return
        if fault == "hang":
            time.sleep(60.0)
        elif fault == "malformed":
            self.raw(b'Content-Length: 9\r\n\r\n{"choices')
            return
        elif fault == "empty":
            self.reply(200, {"choices": []})
            return
        elif fault == "null":
            self.reply(200, {"choices": [{"message": {"content": None}}]})
            return
        elif fault == "thoughts":
            message = {"role": "assistant", "reasoning_content": "hm"}
            self.reply(200, {"choices": [{"message": message, "finish_reason": "length"}]})
            return
        elif fault == "ended":
            self.reply(200, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]})
            return
        elif fault == "deep":
            self.raw(b"Content-Length: 100000\r\n\r\n" + b"[" * 100_000)
            return
        elif fault == "short":
            self.raw(b'Content-Length: 500\r\n\r\n{"choices": [{"mess')
        elif fault == "truncated_chunks":
            self.raw(b'Transfer-Encoding: chunked\r\n\r\n40\r\n{"choices": [{"mess')
        # "cut", and what came above: no further byte, and the connection is gone
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def raw(self, rest: bytes) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + rest)
        self.wfile.flush()


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    with Server(answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
