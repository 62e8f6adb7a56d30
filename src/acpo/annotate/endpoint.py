"""One OpenAI-compatible endpoint: a message in, a reply or a named failure out."""

import socket
import threading
from typing import Any, NamedTuple

from acpo.annotate.annotators import Status
from acpo.errors import ACPOError
from acpo.jsonl import json_value
from acpo.servers import Patience, api_key, may_pass, without_key
from acpo.wire import Connection, Reply, TooLong, TooSlow, WireError

MAX_REPLY_BYTES = 1 << 20
FAILURES_IN_A_ROW = 5
"""Questions given up in a row after which an endpoint is left alone for the rest of a run."""


class ChatReply(NamedTuple):
    """The message of a completed request, and the tokens it cost."""

    text: str
    refusal: str
    finish: str
    read: int
    written: int

    def is_whole(self) -> bool:
        """Whether every field is what it should be: servers and files may say anything."""
        kinds = (str, str, str, int, int)
        return all(
            type(value) is kind and (not isinstance(value, int) or abs(value) < 2**53)
            for value, kind in zip(self, kinds, strict=True)
        )


class RequestFailure(Exception):
    """A request without a reply."""

    def __init__(self, status: Status, detail: str, *, passing: bool = True) -> None:
        super().__init__(detail[:300])
        self.status = status
        self.passing = passing  # whether another attempt may end better


class Endpoint:
    """Sends messages at temperature 0 and asks for replies of a given form.

    A server that rejects the form or the temperature is asked without.

    Args:
        base_url: Up to and including the version.
        form: JSON schema of a reply.
        api_key_env: Variable with the key; unset, none is sent.
        timeout: Seconds one attempt may take.
        retries: Further attempts after a passing failure (429, 408, 5xx, no connection, cut off,
            not a chat completion, too slow), with growing pauses from `first_pause` seconds on.
            `Retry-After` holds back every message to the endpoint.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        form: dict[str, Any],
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 300.0,
        retries: int = 5,
        first_pause: float = 1.0,
    ) -> None:
        self.url, self.model = base_url.rstrip("/"), model
        self._timeout, self._retries, self._patience = timeout, retries, Patience(first_pause)
        self._key = api_key(api_key_env)
        self._key_named = f"{'the one' if self._key else 'none'} in ${api_key_env}"
        schema = {"name": "place", "strict": True, "schema": form}
        self._options: dict[str, Any] = {
            "temperature": 0.0,
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
        self.over = threading.Event()  # set: nothing more is sent
        self._lock = threading.Lock()
        self._failed_in_a_row = 0
        self._is_there = False  # whether it ever said something

    def complete(self, system: str, message: str) -> ChatReply:
        """The reply to a message.

        A RequestFailure is raised where there is none after all attempts, an ACPOError where there
        can be none: wrong key, address or model, or nobody listens from the beginning.
        """
        self._require_open()  # at once, whatever holds requests back
        for _ in self._patience.attempts(self._retries + 1, self.over):
            self._require_open()
            try:
                reply = self._adapted(system, message)
            except RequestFailure as failure:
                last = failure
                if not failure.passing:
                    break
            else:
                self._failed_in_a_row = 0
                return reply
        if last.passing:
            with self._lock:
                self._failed_in_a_row += 1
        raise last

    def _require_open(self) -> None:
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            detail = f"not sent: {FAILURES_IN_A_ROW} questions in a row had no answer"
            raise RequestFailure(Status.UNAVAILABLE, detail, passing=False)
        if self.over.is_set():
            raise RequestFailure(Status.UNAVAILABLE, "not sent: the run is over", passing=False)

    def _adapted(self, system: str, message: str) -> ChatReply:
        """One attempt, without the options that this server turns out not to know.

        It does not know those without which it replies; a message it rejects in any form (one that
        is too long) says nothing about them.
        """
        options = dict(self._options)
        while True:
            try:
                reply = self._send(system, message, dict(options))
            except RequestFailure as failure:
                said = str(failure).lower()
                unknown = "temperature" if "temperature" in said else "response_format"
                if failure.status is not Status.REJECTED or unknown not in options:
                    raise
                del options[unknown]
            else:
                with self._lock:
                    self._options = {k: v for k, v in self._options.items() if k in options}
                return reply

    def _send(self, system: str, message: str, options: dict[str, Any]) -> ChatReply:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": message}]
        payload = {"model": self.model, "messages": messages, **options}
        connection = Connection(self.url, self._key, most_bytes=MAX_REPLY_BYTES)
        try:
            reply = connection.exchange("POST", "/chat/completions", payload, self._timeout)
            self._is_there = True
        except TooSlow as error:
            raise RequestFailure(Status.TIMEOUT, str(error)) from error
        except TooLong as error:
            raise RequestFailure(Status.OVERSIZE, str(error), passing=False) from error
        except WireError as error:
            said = without_key(str(error), self._key)
            absent = isinstance(error.__cause__, ConnectionRefusedError | socket.gaierror)
            if absent and not self._is_there:
                raise ACPOError(
                    f"{self.url}: no server there ({said}): start it, or correct the URL"
                ) from None
            raise RequestFailure(Status.CONNECTION, said) from None
        finally:
            connection.close()
        if reply.status != 200:
            raise self._failure(reply)
        return self._reply(reply.body)

    def _failure(self, reply: Reply) -> RequestFailure:
        code = reply.status
        said = f"status {code}: {without_key(reply.body, self._key)}"[:300]
        if code in (401, 403, 404) or 300 <= code < 400:
            raise ACPOError(
                f"{self.url} answers {said}: check the URL, model={self.model!r} and the key "
                f"({self._key_named})"
            ) from None
        if may_pass(code):
            self._patience.hold(reply.retry_after)
            limited = code == 429
            return RequestFailure(Status.RATE_LIMITED if limited else Status.SERVER_ERROR, said)
        return RequestFailure(Status.REJECTED, said, passing=False)

    def _reply(self, body: bytes) -> ChatReply:
        """The message in the body of a chat completion."""
        try:
            value = json_value(body)
            choice = value["choices"][0]
            message = choice["message"]
            text, refusal = message.get("content") or "", message.get("refusal") or ""
            usage = value.get("usage") or {}
            read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
            reply = ChatReply(text, refusal, choice.get("finish_reason") or "", read, written)
            if not reply.is_whole():
                raise ValueError("of other types")
        except (ValueError, LookupError, TypeError, AttributeError):
            said = without_key(body, self._key)
            raise RequestFailure(Status.MALFORMED, f"no chat completion: {said[:200]!r}") from None
        return reply._replace(read=max(read, 0), written=max(written, 0))
