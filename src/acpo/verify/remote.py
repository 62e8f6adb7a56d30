"""A SandboxFusion-compatible server as the place where solutions run."""

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from acpo.errors import ACPOError
from acpo.jsonl import json_object
from acpo.servers import Patience, web_address
from acpo.verify.sandbox import RUNNER, Execution, ProgramRun, Reply
from acpo.verify.session import Limits, SessionEnded
from acpo.verify.verdict import Outcome
from acpo.wire import Connection, TooLong, WireError

_ATTEMPTS = 3
_FIRST_PAUSE_SECONDS = 0.4
_ANSWER_SLACK_SECONDS = 30.0
# Every byte of output may arrive as a six-character JSON escape.
_JSON_GROWTH = 6


class RemoteBackend:
    """Runs solutions by `POST {url}/run_code`. The server gets calls, never expected values.

    What confines them is the server's business: SandboxFusion's shipped local configuration does
    not. A server that cannot be reached, answers nonsense or reports a fault of its own gives
    `infra_error`, after `_ATTEMPTS` tries.

    Args:
        url: The server, without `/run_code`.
        limits: Only time, memory and output apply; the rest is the server's.
    """

    def __init__(self, url: str, limits: Limits | None = None) -> None:
        if web_address(url) is None:
            raise ACPOError(f"{url!r} is no address of a sandbox server: give http://HOST:PORT")
        self._url = url.rstrip("/")
        self.limits = limits or Limits()

    def probe(self) -> None:
        """One small run, so that a server that cannot work is refused before the first job."""
        run = self.run_program("print(6 * 7)", b"", self.limits.wall_seconds)
        if run.output.strip() != b"42":
            reason = run.ended.detail if run.ended else f"{self._url}: {run.error or run.output!r}"
            raise ACPOError(f"the sandbox server does not run code: {reason}")

    def run_calls(
        self, sources: Sequence[str], expressions: Sequence[str], accept: Callable[[Reply], bool]
    ) -> Execution:
        job = json.dumps({"sources": list(sources), "expressions": list(expressions)})
        code = RUNNER.read_text().partition('\nif __name__ == "__main__":')[0]
        run = self.run_program(
            f"{code}\nrun_batch(json.loads({job!r}))\n", b"", self.limits.wall_seconds
        )
        for line in run.output.splitlines()[: len(expressions)]:
            try:
                reply = json_object(line)
            except ValueError:
                break
            if not accept(reply):
                break
        return Execution(None, run.ended, run.seconds)

    def run_program(self, source: str, stdin: bytes, within: float) -> ProgramRun:
        start = time.perf_counter()
        seconds_left = min(self.limits.wall_seconds, within)
        try:
            result = self._post(source, stdin, seconds_left)
        except SessionEnded as failure:
            return ProgramRun(b"", 1, "", failure, time.perf_counter() - start)
        output = str(result.get("stdout") or "").encode(errors="surrogatepass")
        seconds = float(result.get("execution_time") or 0.0)
        status = 1 if (code := result.get("return_code")) is None else code
        ended = None
        if result.get("status") == "TimeLimitExceeded":
            ended = SessionEnded(Outcome.TIMEOUT, f"more than {seconds_left} s")
        elif len(output) > self.limits.output_bytes:
            ended = SessionEnded(Outcome.LIMIT, "more standard output than output_bytes")
        return ProgramRun(output, status, str(result.get("stderr") or "")[-200:], ended, seconds)

    def run_asserts(self, sources: Sequence[str], test: dict[str, Any], nonce: str) -> Execution:
        """Refused: the test would have to share a process with the solution."""
        detail = "assert_mode needs two connected sandboxes, which this server does not offer"
        return Execution(None, SessionEnded(Outcome.INFRA_ERROR, detail), 0.0)

    def _post(self, code: str, stdin: bytes, seconds: float) -> dict[str, Any]:
        """The `run_result` of one program. Raises SessionEnded when there is none."""
        body = {
            "code": code,
            "language": "python",
            "stdin": stdin.decode(errors="replace"),
            "run_timeout": seconds,
            "memory_limit_MB": math.ceil(self.limits.memory_bytes / 2**20),
        }
        problem = ""
        for _ in Patience(_FIRST_PAUSE_SECONDS).attempts(_ATTEMPTS, threading.Event()):
            try:
                answer = self._exchange(body)
            except (WireError, ValueError) as error:
                problem = str(error)
                continue
            result = answer.get("run_result")
            if answer.get("status") in ("Success", "Failed") and _is_result(result):
                return result
            problem = f"{answer.get('status')}: {answer.get('message')}"[:200]
        raise SessionEnded(Outcome.INFRA_ERROR, f"{self._url}: {problem}")

    def _exchange(self, body: dict[str, Any]) -> dict[str, Any]:
        longest = _JSON_GROWTH * self.limits.output_bytes + (1 << 20)
        connection = Connection(self._url, None, most_bytes=longest)
        within = self.limits.wall_seconds + _ANSWER_SLACK_SECONDS
        try:
            reply = connection.exchange("POST", "/run_code", body, within)
        except TooLong:
            why = "more standard output than output_bytes"
            raise SessionEnded(Outcome.LIMIT, why) from None
        finally:
            connection.close()
        if reply.status != 200:
            raise ValueError(f"status {reply.status}")
        return json_object(reply.body)


def _is_result(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a server's `run_result` can be read."""
    if not isinstance(value, dict) or not isinstance(value.get("return_code"), int | None):
        return False
    seconds = value.get("execution_time") or 0.0
    return isinstance(seconds, int | float) and 0 <= seconds < 1e9
