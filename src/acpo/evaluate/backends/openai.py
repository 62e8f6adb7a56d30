"""Completions from any OpenAI-compatible server.

Requests go over plain sockets in threads: the `openai` client (3.49) spends 2 to 4 ms of CPU on
one, so that a process sends fewer than 500 a second (benchmarks/eval.py, `client`).
"""

import difflib
import queue
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from acpo.errors import ACPOWarning
from acpo.evaluate.backends import Completion, Failure, Request, Sampling, SamplingError
from acpo.jsonl import json_value
from acpo.servers import Patience, api_key, may_pass, web_address, without_key
from acpo.wire import Connection, Reply, WireError

_PROBE_SECONDS = 10.0
_IDENTITY = ("id", "root", "parent", "owned_by", "max_model_len", "meta")
"""What `/models` says of a model that stays the same while it is served."""
_REFUSED_PROMPT = (400, 413, 422)
"""Said of a prompt, e.g. one that is too long; of any other status the server is the cause."""
_DOES_NOT_LIST = (500, 501)
"""Said of `/models` by servers that cannot list; passing faults are 429, 502 or 503."""
_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent since `vllm serve` takes what is left out from the checkpoint's generation_config.json."""

_FINISHES = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete"), "stop"),
    **dict.fromkeys(("tool_calls", "function_call"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
}
"""What servers call the ends of a completion."""
_BROKEN_OFF = ("abort", "error", "")


class _Malformed(Exception):
    """A reply of status 200 that holds no whole completion."""


class _Withheld(_Malformed):
    """A completion that would be no other the next time."""


class OpenAIBackend:
    """`/chat/completions`, or `/completions` for plain prompts, with many requests in flight.

    Args:
        model: The name under which the server has it.
        sampling: How completions are drawn. Each request also sends its own `seed`.
        base_url: Up to and including the version, e.g. `http://localhost:8000/v1`.
        api_key_env: Environment variable that holds the key; unset, none is sent.
        concurrency: Requests in flight.
        timeout: Seconds a request may take in all.
        retries: Further attempts after an attempt that failed for a passing reason (429, 408, 5xx,
            no connection, cut off, malformed, too slow), with exponential pauses in between. A
            `Retry-After` is honoured by all requests.
        first_pause: Seconds before the second attempt; it doubles from there.
    """

    def __init__(
        self,
        model: str,
        sampling: Sampling,
        *,
        base_url: str = "http://localhost:8000/v1",
        api_key_env: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout: float = 1800.0,
        retries: int = 6,
        first_pause: float = 0.5,
    ) -> None:
        address = web_address(base_url)
        if address is None or address.query or address.username:
            raise SamplingError(
                f"--base-url {without_key(base_url, address and address.password)!r}: use "
                "http://HOST:PORT/v1 or https://..., in ASCII, without a query and without a "
                "password, which belongs into $OPENAI_API_KEY"
            )
        if concurrency < 1:
            raise SamplingError(f"--concurrency {concurrency}: at least 1")
        self._model = model
        self._sampling = sampling
        self._url = base_url.rstrip("/")
        self._key_env = api_key_env
        self._key = api_key(api_key_env)
        self._concurrency = concurrency
        self._timeout = timeout
        self._retries = retries
        self._patience = Patience(first_pause)
        self._neutral: dict[str, Any] = dict(_NEUTRAL)
        self._lock = threading.Lock()
        self._key_is_good = self._told_limit = False
        self._served: dict[str, Any] | None = None

    def settings(self) -> dict[str, Any]:
        if self._served is None:
            self._served = self._probe()
        return {
            "backend": "openai",
            "model": self._model,
            "base_url": self._url,
            "served": self._served,
            **self._sampling._asdict(),
        }

    def sample(self, requests: Sequence[Request]) -> Iterator[Completion | Failure]:
        self.settings()
        waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[Completion | Failure | BaseException] = queue.SimpleQueue()
        stop = threading.Event()
        for request in requests:
            waiting.put(request)
        threads = min(self._concurrency, len(requests))
        for number in range(threads):
            waiting.put(None)
            threading.Thread(
                target=self._serve,
                args=(waiting, done, stop),
                name=f"acpo-http-{number}",
                daemon=True,
            ).start()
        try:
            for _ in requests:
                result = done.get()
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            stop.set()

    def _serve(
        self,
        waiting: "queue.SimpleQueue[Request | None]",
        done: "queue.SimpleQueue[Completion | Failure | BaseException]",
        stop: threading.Event,
    ) -> None:
        connection = Connection(self._url, self._key)
        try:
            while not stop.is_set() and (request := waiting.get()) is not None:
                done.put(self._complete(connection, request, stop))
        except BaseException as error:  # raised again where the completions are taken
            done.put(error)
        finally:
            connection.close()

    def _complete(
        self, connection: Connection, request: Request, stop: threading.Event
    ) -> Completion | Failure:
        path, payload = self._payload(request)
        start = time.perf_counter()
        for _ in self._patience.attempts(self._retries + 1, stop):
            try:
                reply = self._post(connection, path, payload)
                if reply.status == 200:
                    self._key_is_good = True
                    done = _completion(request, reply.body, time.perf_counter() - start)
                    self._watch_limit(done)
                    return done._replace(text=self._sampling.before_stop(done.text))
                passing, reason = self._failure(reply)
                if not passing:
                    refused = reply.status in (*_REFUSED_PROMPT, 403)
                    return Failure(request.key, reason, refused=refused)
            except WireError as error:
                reason = without_key(str(error), self._key)
            except _Malformed as error:
                reason = f"{error}: {self._said(reply)[:300]!r}"
                if isinstance(error, _Withheld):
                    return Failure(request.key, f"{self._url}: {reason}", refused=True)
        tried = f"gave up after {self._retries + 1} attempts, the last one: {reason}"
        return Failure(request.key, f"{self._url}{path}: {tried}")

    def _watch_limit(self, done: Completion) -> None:
        """Say once that the server cuts completions off before `max_tokens`."""
        asked, tokens = self._sampling.max_tokens, done.tokens
        with self._lock:
            if done.finish != "length" or tokens is None or tokens >= asked or self._told_limit:
                return
            self._told_limit = True
        warnings.warn(
            f"{self._url} cut a completion off at {tokens} tokens, where --max-tokens "
            f"{asked} was asked: it has a limit of its own",
            ACPOWarning,
            stacklevel=2,
        )

    def _post(self, connection: Connection, path: str, payload: dict[str, Any]) -> Reply:
        """One attempt, without the neutral options where the server turns out not to take them."""
        neutral = self._neutral
        reply = connection.exchange("POST", path, {**payload, **neutral}, self._timeout)
        named = [name for name in neutral if name.encode() in reply.body]
        if reply.status not in _REFUSED_PROMPT or not named:
            return reply
        reply = connection.exchange("POST", path, payload, self._timeout)
        with self._lock:
            is_first = reply.status == 200 and bool(self._neutral)
            if is_first:
                self._neutral = {}
        if is_first:
            warnings.warn(
                f"{self._url} does not take {', '.join(named)}: requests go without "
                f"{', '.join(neutral)}, and its own defaults of these hold",
                ACPOWarning,
                stacklevel=2,
            )
        return reply

    def _payload(self, request: Request) -> tuple[str, dict[str, Any]]:
        sampling = self._sampling
        payload: dict[str, Any] = {
            "model": self._model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
        }
        if sampling.stop:
            payload["stop"] = list(sampling.stop)
        if sampling.chat:
            return "/chat/completions", {
                **payload,
                "messages": sampling.messages(request.prompt),
            }
        return "/completions", {**payload, "prompt": request.prompt}

    def _failure(self, reply: Reply) -> tuple[bool, str]:
        """Whether another attempt may help, and what went wrong; an error for a refused key."""
        said = self._said(reply)[:300]
        # Where the key was taken before, 403 is of the prompt: some moderate them.
        if reply.status == 401 or (reply.status == 403 and not self._key_is_good):
            raise SamplingError(
                f"{self._url}: status {reply.status}, the server refuses the key "
                f"({'the one in' if self._key else 'none is set in'} ${self._key_env}): export it, "
                f"or name another variable with --api-key-env. It said: {said}"
            )
        if not may_pass(reply.status):
            return False, f"{self._url}: status {reply.status}: {said}"
        self._patience.hold(reply.retry_after)
        return True, f"status {reply.status}: {said}"

    def _said(self, reply: Reply) -> str:
        return without_key(reply.body, self._key)

    def _probe(self) -> dict[str, Any]:
        """What the server says of the model; at once, what would take all retries of a request."""
        for _ in self._patience.attempts(self._retries + 1, threading.Event()):
            reply = self._models()
            if reply.status in _DOES_NOT_LIST or not self._failure(reply)[0]:
                break
        else:
            raise SamplingError(
                f"--base-url {self._url}: its /models answers status {reply.status}: is it still "
                "starting? The same command can be repeated"
            )
        try:
            entries = {str(entry["id"]): dict(entry) for entry in json_value(reply.body)["data"]}
        except (ValueError, KeyError, TypeError):
            return {}  # not every server lists its models
        served = list(entries)
        if reply.status == 200 and served and self._model not in served:
            # Some serve more than they list: `transformers serve` lists its download cache.
            near = difflib.get_close_matches(self._model, served, n=1, cutoff=0.0)[0]
            warnings.warn(
                f"model {self._model!r} is not listed at {self._url}: did you mean {near!r}? It "
                f"lists {', '.join(served[:10])}",
                ACPOWarning,
                stacklevel=3,
            )
        entry = entries.get(self._model, {})
        return {name: entry[name] for name in _IDENTITY if entry.get(name) is not None}

    def _models(self) -> Reply:
        connection = Connection(self._url, self._key)
        try:
            return connection.exchange("GET", "/models", None, _PROBE_SECONDS)
        except WireError as error:
            raise SamplingError(
                f"--base-url {self._url}: no server there ({without_key(str(error), self._key)}): "
                "start it, or correct the URL"
            ) from None
        finally:
            connection.close()


def _completion(request: Request, body: bytes, seconds: float) -> Completion:
    try:
        reply = json_value(body)
        choice = reply["choices"][0]
        text = choice["text"] if "text" in choice else _message(choice["message"])
        tokens = (reply.get("usage") or {}).get("completion_tokens")
        unsaid = None if text is None else "stop"  # some servers never say
        reason = choice.get("finish_reason", unsaid)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _Malformed(f"a malformed reply ({type(error).__name__}: {error})") from error
    told = reason.lower() if isinstance(reason, str) else ""
    finish = _FINISHES.get(told)
    if finish is None:
        kind = _Malformed if told in _BROKEN_OFF else _Withheld
        raise kind(f"no finished completion, its finish_reason is {reason!r:.40}")
    if text is None:
        text = ""  # a model that ended at once, and servers that say so
    if not isinstance(text, str):
        raise _Malformed("a completion that is no text")
    known = tokens if type(tokens) is int and 0 <= tokens < 2**31 else None
    mark = reply.get("system_fingerprint")
    mark = mark if isinstance(mark, str) else None
    return Completion(request.key, text, known, finish, seconds, fingerprint=mark)


def _message(message: dict[str, Any]) -> str | None:
    """The message; thoughts that the server split off go back to where the model wrote them."""
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    content: str | None = message.get("content") if thoughts else message["content"]
    if thoughts:
        return f"<think>{thoughts}</think>{content or ''}"
    return content
