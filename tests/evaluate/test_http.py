"""The HTTP backend against a real server: well-behaved, slow, broken, and absent."""

import contextlib
import re
import socket
import threading
import time
import traceback

import pytest

from acpo.errors import ACPOError, ACPOWarning
from acpo.evaluate.backends import Failure, Request, Sampling, SamplingError
from acpo.evaluate.backends.openai import OpenAIBackend
from acpo.wire import Connection, TooSlow, WireError
from evaluate.server import serving


def echo(prompt: str, seed: int) -> str:
    return f"{prompt} {seed}"


def backend(server, sampling=None, **options) -> OpenAIBackend:
    options = {"first_pause": 0.01, "timeout": 60.0, "base_url": server.url, **options}
    return OpenAIBackend("tiny", sampling or Sampling(), **options)


def requests(count: int) -> list[Request]:
    return [Request(index, f"prompt {index}", index) for index in range(count)]


def texts(source: OpenAIBackend, count: int) -> dict[int, str]:
    found = list(source.sample(requests(count)))
    assert len(found) == count
    return {completion.key: completion.text for completion in found}


def expected(count: int) -> dict[int, str]:
    return {index: f"prompt {index} {index}" for index in range(count)}


@pytest.mark.parametrize(
    ("chat", "path"), [(True, "/v1/chat/completions"), (False, "/v1/completions")]
)
def test_sends_what_was_asked(chat, path):
    sampling = Sampling(0.7, 0.9, 123, ("END",), chat, "be brief" if chat else None)
    with serving(echo) as server:
        assert texts(backend(server, sampling), 3) == expected(3)
        sent = server.payloads[0]
        assert set(server.paths) == {path}
    want = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 123, "stop": ["END"], "model": "tiny"}
    assert {key: sent[key] for key in want} == want
    if chat:
        assert sent["messages"][0] == {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    "fault",
    [
        *("500", "503", "429", "408", "cut", "short", "truncated_chunks", "malformed"),
        *("empty", "null", "deep"),
    ],
)
def test_passing_faults_are_retried(fault):
    with serving(echo) as server:
        server.faults = lambda number: fault if number % 3 == 0 else None
        assert texts(backend(server, concurrency=4, retries=8), 20) == expected(20)
        assert server.number > 20, "some attempts did fail"


@pytest.mark.parametrize("count", [10**400, -1, True, "9", 2.5])
def test_a_count_of_tokens_that_is_none_is_not_kept(count):
    with serving(echo) as server:
        server.count = lambda text: count
        (done,) = backend(server).sample(requests(1))
    assert done.text == expected(1)[0] and done.tokens is None


def test_a_model_that_says_nothing_has_answered():
    with serving(echo) as server:
        server.faults = lambda number: "ended"
        assert texts(backend(server), 2) == {0: "", 1: ""}
        assert server.number == 2


@pytest.mark.parametrize("reason", ["abort", "error", None, "", 0, ["stop"], {"type": "stop"}])
@pytest.mark.parametrize("chat", [True, False])
def test_a_completion_that_was_broken_off_is_drawn_again(reason, chat):
    with serving(echo) as server:
        server.finish = lambda number: reason if number % 3 == 0 else "stop"
        source = backend(server, Sampling(chat=chat), concurrency=4, retries=8)
        assert texts(source, 10) == expected(10)
        assert server.number > 10
        server.finish = lambda number: reason
        (failed,) = backend(server, Sampling(chat=chat), retries=1).sample(requests(1))
        assert isinstance(failed, Failure) and not failed.refused
        assert "gave up after 2 attempts" in failed.reason


@pytest.mark.parametrize("reason", ["content_filter", "repetition"])
def test_a_completion_that_is_withheld_is_a_refusal(reason):
    with serving(echo) as server:
        server.finish = lambda number: reason
        found = list(backend(server).sample(requests(2)))
        assert server.number == 2, "asked again, it would be filtered again"
    assert all(isinstance(one, Failure) and one.refused for one in found)
    assert f"finish_reason is '{reason}'" in found[0].reason


@pytest.mark.parametrize(
    ("said", "finish"),
    [("STOP", "stop"), (..., "stop"), ("eos_token", "stop"), ("MAX_TOKENS", "length")],
)
def test_the_ends_of_a_completion(said, finish):
    with serving(echo) as server:
        server.finish = lambda number: said
        (done,) = backend(server, Sampling(max_tokens=8)).sample(requests(1))
    assert done.finish == finish


@pytest.mark.parametrize(
    "url",
    ["http://h:1/v1?api-version=2", "http://me:secret@h:1/v1", "http://h\u00f6st:1/v1", "h:1/v1"],
)
def test_addresses_that_would_be_cut_or_tell_a_password_are_refused(url):
    with pytest.raises(SamplingError, match="without a query and without a password") as error:
        OpenAIBackend("tiny", Sampling(), base_url=url)
    assert "secret" not in str(error.value)


def test_a_limit_of_the_servers_own_is_told_once():
    with serving(echo) as server:
        server.finish = lambda number: "length"
        with pytest.warns(ACPOWarning, match="at 10 tokens, where --max-tokens 8192") as told:
            texts(backend(server), 2)
    assert len(told) == 1


def test_thoughts_that_used_the_limit_up_are_a_completion():
    with serving(echo) as server:
        server.faults = lambda number: "thoughts"
        (done,) = backend(server).sample(requests(1))
    assert (done.text, done.finish) == ("<think>hm</think>", "length")


def test_a_key_that_was_taken_is_not_refused_by_a_prompt():
    """403 is also said of prompts, by servers that moderate them."""
    with serving(echo) as server:
        server.faults = lambda number: "403" if number == 1 else None
        found = list(backend(server, concurrency=1).sample(requests(3)))
        assert [isinstance(one, Failure) for one in found] == [False, True, False]
        assert found[1].refused
        server.faults = lambda number: "403"
        with pytest.raises(SamplingError, match="status 403, the server refuses the key"):
            list(backend(server).sample(requests(1)))


def test_a_server_that_is_still_starting_is_waited_for():
    with serving(echo) as server:
        server.card = {"owned_by": "me"}
        server.listing = lambda number: 503 if number < 2 else 200
        assert backend(server).settings()["served"] == {"id": "tiny", "owned_by": "me"}
        server.listing = lambda number: 503
        with pytest.raises(SamplingError, match="/models answers status 503: is it still starting"):
            backend(server, retries=1).settings()
        server.listing = lambda number: 500
        assert backend(server).settings()  # it cannot list, and may serve all the same


def test_hanging_requests_time_out_and_are_retried():
    with serving(echo) as server:
        server.faults = lambda number: "hang" if number == 1 else None
        start = time.monotonic()
        assert texts(backend(server, concurrency=2, timeout=1.0), 4) == expected(4)
        assert time.monotonic() - start < 30.0, "nobody waited for the hanging reply"


def test_retry_after_holds_everyone_back():
    with serving(echo) as server:
        server.faults = lambda number: "429" if number == 0 else None
        start = time.monotonic()
        assert texts(backend(server, concurrency=1), 2) == expected(2)
        assert time.monotonic() - start >= 0.2


def test_gives_up_after_its_attempts_with_the_reason():
    with serving(echo) as server:
        server.faults = lambda number: "500" if number >= 5 else None
        source = backend(server, concurrency=1, retries=2).sample(requests(6))
        kept = [next(source) for _ in range(5)]
        failed = next(source)
        assert isinstance(failed, Failure) and failed.key == 5
        assert re.search(r"gave up after 3 attempts.*status 500", failed.reason)
        assert len(kept) == 5 and server.number == 8


def test_client_errors_are_not_retried():
    with serving(echo) as server:
        server.faults = lambda number: "400"
        failed = list(backend(server, concurrency=1).sample(requests(5)))
        assert all(isinstance(one, Failure) and "status 400" in one.reason for one in failed)
        assert server.number == 5


def test_a_servers_own_defaults_are_overruled():
    """`vllm serve` takes what is left out from the checkpoint's generation_config.json."""
    neutral = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    with serving(echo) as server:
        assert texts(backend(server), 2) == expected(2)
        assert all(neutral.items() <= payload.items() for payload in server.payloads)


def test_a_server_that_knows_no_such_options_is_asked_without():
    with serving(echo) as server:
        server.payload_faults = lambda payload: "unknown" if "min_p" in payload else None
        with pytest.warns(ACPOWarning, match="does not take min_p: requests go without") as said:
            assert texts(backend(server, concurrency=1), 5) == expected(5)
        assert len(said) == 1 and server.number == 6, "it was asked with them once"


def test_wrong_key(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "wrong")
    with serving(echo) as server:
        server.key = "right"
        with pytest.raises(SamplingError, match=r"refuses the key \(the one in \$OTHER_KEY\)"):
            texts(backend(server, api_key_env="OTHER_KEY"), 1)
        monkeypatch.setenv("OTHER_KEY", "right")
        assert texts(backend(server, api_key_env="OTHER_KEY"), 1) == expected(1)


@pytest.mark.parametrize("key", ["sk-secret", "sk/se+cret"])
def test_a_key_that_the_server_repeats_is_not_told(monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with serving(echo) as server:
        for status in ("200", "400", "429", "500"):
            server.faults = lambda number, fault=f"echo {status}": fault
            (failed,) = backend(server, retries=0).sample(requests(1))
            assert "Bearer [the key]" in failed.reason and "sk" not in failed.reason
        server.key = "right"
        with pytest.raises(SamplingError, match=r"bad key: Bearer \[the key\]") as caught:
            texts(backend(server), 1)
    assert "sk" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_a_key_that_no_header_can_hold(monkeypatch):
    with serving(echo) as server:
        server.key = "right"
        monkeypatch.setenv("OPENAI_API_KEY", "right\n")
        assert texts(backend(server), 1) == expected(1)
        for key in ("right\r\nX: 1", "riłght", "rïght"):
            monkeypatch.setenv("OPENAI_API_KEY", key)
            with pytest.raises(ACPOError, match=r"\$OPENAI_API_KEY holds") as caught:
                backend(server)
            assert "ght" not in str(caught.value)


def test_missing_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(echo) as server:
        server.key = "right"
        with pytest.raises(SamplingError, match=r"none is set in \$OPENAI_API_KEY"):
            texts(backend(server), 1)


def test_unreachable_server_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    start = time.monotonic()
    with pytest.raises(SamplingError, match="no server there"):
        list(OpenAIBackend("tiny", Sampling(), base_url=url).sample(requests(1)))
    assert time.monotonic() - start < 30.0


def test_a_model_that_is_not_listed_is_the_servers_to_refuse():
    """`transformers serve` serves what it does not list; a mistyped name is still told."""
    with serving(echo) as server:
        source = OpenAIBackend("tinny", Sampling(), base_url=server.url)
        with pytest.warns(ACPOWarning, match="did you mean 'tiny'"):
            assert texts(source, 1) == expected(1)
        server.faults = lambda number: "404"
        source = OpenAIBackend("tinny", Sampling(), base_url=server.url)
        with pytest.warns(ACPOWarning, match="'tinny' is not listed at"):
            (failed,) = source.sample(requests(1))
        assert isinstance(failed, Failure) and "status 404" in failed.reason


def test_stop_texts_are_cut_whatever_the_server_does():
    with serving(lambda prompt, seed: "one END two STOP") as server:
        sampling = Sampling(stop=("STOP", "END"))
        assert texts(backend(server, sampling), 1) == {0: "one "}
    assert Sampling(stop=("END",)).before_stop("no stop") == "no stop"


def test_bad_url():
    for url in ("localhost:8000", "http://[x", "http://x:99999/v1", "http://x:port"):
        with pytest.raises(SamplingError, match=re.escape(f"--base-url {url!r}")):
            OpenAIBackend("tiny", Sampling(), base_url=url)


def test_requests_are_in_flight_together():
    all_here = threading.Barrier(32, timeout=60)

    def together(prompt, seed):
        all_here.wait()
        return echo(prompt, seed)

    with serving(together) as server:
        assert texts(backend(server, concurrency=32), 64) == expected(64)


RAW = {
    "chunks": (
        b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: Chunked\r\n\r\n"
        b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nA: b\r\n\r\n"
    ),
    "length": b"HTTP/1.1 200 OK\r\ncontent-length:11\r\n\r\nhello world",
    "until the end": b"HTTP/1.0 200 OK\r\n\r\nhello world",
    "after continue": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"
    ),
}


def replying(
    data: bytes, times: int = 1, heard: list[bytes] | None = None, pause: float = 0.0
) -> str:
    """Answer with raw bytes, one byte at a time, and close; what was asked goes to `heard`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(times):
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):  # a reader may give up early
                asked = client.recv(65536)
                if heard is not None:
                    heard.append(asked)
                for byte in data:
                    client.send(bytes([byte]))
                    time.sleep(pause)
        listener.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"


@pytest.mark.parametrize("form", RAW)
def test_every_form_of_a_body_is_read(form):
    connection = Connection(replying(RAW[form], times=2), None)
    for _ in range(2):  # the second time over a connection that was closed meanwhile
        assert connection.exchange("GET", "/x", None, 5.0) == (200, None, b"hello world")
    connection.close()


@pytest.mark.parametrize("form", ["chunks", "length", "after continue"])
def test_a_body_cut_anywhere_is_an_error(form):
    for cut in range(len(RAW[form])):
        with pytest.raises(WireError):
            Connection(replying(RAW[form][:cut]), None).exchange("GET", "/x", None, 5.0)


@pytest.mark.parametrize("form", RAW)
def test_a_reply_that_trickles_in_ends_at_the_deadline(form):
    connection = Connection(replying(RAW[form], pause=0.2), None)
    start = time.monotonic()
    with pytest.raises(TooSlow, match="no whole reply"):
        connection.exchange("GET", "/x", None, 0.3)
    assert time.monotonic() - start < 2.0


def test_a_reply_may_be_waited_for_without_end():
    connection = Connection(replying(RAW["length"]), None)
    assert connection.exchange("GET", "/x", None, float("inf")).body == b"hello world"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 300,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_an_error(data):
    with pytest.raises(WireError):
        Connection(replying(data), None).exchange("GET", "/x", None, 5.0)


def test_a_body_without_a_length_has_a_limit():
    url = replying(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 1001)
    with pytest.raises(WireError, match="more than 1000 bytes"):
        Connection(url, None, most_bytes=1000).exchange("GET", "/x", None, 5.0)


@pytest.mark.parametrize("direct", [False, True], ids=["HTTPS_PROXY", "NO_PROXY"])
def test_https_addresses_are_asked_through_the_proxy(monkeypatch, direct):
    heard: list[bytes] = []
    proxy = replying(b"HTTP/1.1 403 no way\r\n\r\n", heard=heard)
    monkeypatch.setenv("HTTPS_PROXY", proxy.replace("//", "//me:pass%40word@").removesuffix("/v1"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1" if direct else "")
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(WireError, match="refused" if direct else "403 no way"):
        Connection("https://127.0.0.1:1/v1", "sk-key").exchange("GET", "/models", None, 5.0)
    told = b"".join(heard)
    assert told.startswith(b"" if direct else b"CONNECT 127.0.0.1:1 HTTP/1.") and b"sk" not in told
    assert (b"Basic bWU6cGFzc0B3b3Jk" in told) is not direct  # me:pass@word


def test_http_addresses_are_asked_directly(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    url = replying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert Connection(url, None).exchange("GET", "/models", None, 5.0).body == b"{}"
