"""The remote backend against a real HTTP server that speaks SandboxFusion's run_code."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from acpo.errors import ACPOError
from acpo.tasks import get_task
from acpo.tasks.grading import Judges
from acpo.verify import CodePool, Limits, Outcome, RemoteBackend, batch
from acpo.verify import remote as remote_module
from acpo.verify.code import judge_code
from verify.sandboxed import ADD

# The server's clock also counts the start of Python, however busy the machine.
PATIENT = Limits(wall_seconds=120.0)
HONEST = "```python\ndef add(a, b):\n    return a + b\n```"


class Server(BaseHTTPRequestHandler):
    """Runs what it is sent, like SandboxFusion with `isolation: none`. Test code only."""

    behaviour = "honest"
    odd: dict | None = None  # instead of what the result would say
    failures = 0
    pause = 0.0  # seconds before each byte of an answer
    requests: list[dict] = []  # noqa: RUF012

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Server.requests.append(request)
        if Server.failures > 0:
            Server.failures -= 1
            self.send_error(503)
            return
        answers = {"honest": self.run_code, "broken": self.sandbox_error, "nonsense": lambda _: []}
        answer = answers[Server.behaviour](request)
        if Server.odd:
            answer["run_result"] |= Server.odd
        body = json.dumps(answer).encode()
        self.send_response(200 if self.path == "/run_code" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for piece in [body[i : i + 1] for i in range(len(body))] if Server.pause else [body]:
            time.sleep(Server.pause)
            with contextlib.suppress(OSError):  # whoever asked has left
                self.wfile.write(piece)

    def run_code(self, request):
        result = {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stderr": ""}
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", request["code"]],
                input=request["stdin"].encode(),
                capture_output=True,
                timeout=request["run_timeout"],
                check=False,
            )
            result["return_code"] = done.returncode
            result["stdout"] = done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired:
            result |= {"status": "TimeLimitExceeded", "return_code": None, "stdout": ""}
        status = "Success" if result["return_code"] == 0 else "Failed"
        return {"status": status, "message": "", "compile_result": None, "run_result": result}

    def sandbox_error(self, request):
        return {"status": "SandboxError", "message": "no pod", "run_result": None}

    def log_message(self, *args):
        pass


@pytest.fixture
def remote(monkeypatch):
    monkeypatch.setattr(remote_module, "_FIRST_PAUSE_SECONDS", 0.01)
    Server.behaviour, Server.failures, Server.requests, Server.odd = "honest", 0, [], None
    Server.pause = 0.0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield RemoteBackend(f"http://127.0.0.1:{server.server_port}/", PATIENT)
    server.shutdown()
    thread.join()
    server.server_close()


def test_verdicts_are_those_of_the_local_sandbox(remote):
    equal = "class E:\n    def __eq__(self, o): return True\n"
    for code, outcome in [
        ("def add(a, b): return a + b", Outcome.CORRECT),
        ("def add(a, b):\n    print('noise')\n    return a + b", Outcome.CORRECT),
        ("def add(a, b): return a - b", Outcome.INCORRECT),
        ("def add(a, b): return 3", Outcome.INCORRECT),
        ("import sys\nsys.exit(0)", Outcome.INCORRECT),
        ("import os\nos._exit(0)", Outcome.INCORRECT),
        (equal + "def add(a, b): return E()", Outcome.INCORRECT),
        ("this is no python", Outcome.INCORRECT),
        ("import os\nos.write(1, b'x' * 10)\ndef add(a, b): return a + b", Outcome.CORRECT),
        ("def add(a, b): return 'x' * 10 ** 7", Outcome.LIMIT),
    ]:
        verdict = judge_code(f"```python\n{code}\n```", ADD, remote)
        assert verdict.outcome is outcome, (code, verdict)


def test_a_solution_that_does_not_end_is_stopped(remote):
    remote.limits = Limits(wall_seconds=0.5)
    verdict = judge_code("```python\nwhile True: pass\n```", ADD, remote)
    assert verdict.outcome is Outcome.TIMEOUT


def test_expected_values_are_not_sent(remote):
    problem = {**ADD, "test_code": "assert add(1, 2) == 918273645\n"}
    judge_code(HONEST, problem, remote)
    assert len(Server.requests) == 1
    assert "918273645" not in json.dumps(Server.requests)


def test_scripts_run_there_too(remote):
    row = {"inputs": ["4\n", "5\n"], "outputs": ["8\n", "10\n"]}
    assert judge_code("print(2 * int(input()))", row, remote).correct
    assert not judge_code("print(8)", row, remote).correct
    assert not judge_code("1 / 0", {"inputs": [""], "outputs": [""]}, remote).correct


def test_passing_trouble_is_tried_again(remote):
    Server.failures = 2
    assert judge_code(HONEST, ADD, remote).correct
    assert len(Server.requests) == 3


@pytest.mark.parametrize("behaviour", ["broken", "nonsense"])
def test_a_server_at_fault_is_an_infra_error(remote, behaviour):
    Server.behaviour = behaviour
    verdict = judge_code(HONEST, ADD, remote)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert verdict.reward() is None


@pytest.mark.parametrize(
    "odd",
    [
        {"return_code": "zero"},
        {"return_code": 1e999},
        {"execution_time": "soon"},
        {"execution_time": 10**400},
        {"execution_time": [1]},
    ],
    ids=lambda odd: str(odd)[:30],
)
def test_a_result_that_cannot_be_read_is_an_infra_error(remote, odd):
    Server.odd = odd
    assert judge_code(HONEST, ADD, remote).outcome is Outcome.INFRA_ERROR


def test_an_answer_that_trickles_in_is_given_up(remote, monkeypatch):
    monkeypatch.setattr(remote_module, "_ANSWER_SLACK_SECONDS", 0.3)
    monkeypatch.setattr(remote_module, "_ATTEMPTS", 1)
    Server.behaviour, Server.pause = "broken", 0.02
    remote.limits = Limits(wall_seconds=0.2)
    verdict = judge_code(HONEST, ADD, remote)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert "no whole reply within 0.5 s" in verdict.detail


def test_no_server_is_an_infra_error(monkeypatch):
    monkeypatch.setattr(remote_module, "_FIRST_PAUSE_SECONDS", 0.01)
    verdict = judge_code(HONEST, ADD, RemoteBackend("http://127.0.0.1:9"))
    assert verdict.outcome is Outcome.INFRA_ERROR


@pytest.mark.parametrize("url", ["localhost", "sandbox:8080", "", "http://", "http://x:port"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ACPOError, match="no address of a sandbox server"):
        RemoteBackend(url)


def test_a_server_is_tried_before_the_first_job(remote):
    remote.probe()
    Server.odd = {"stdout": "hello"}
    with pytest.raises(ACPOError, match="hello"):
        remote.probe()
    Server.behaviour = "broken"
    Server.odd = None
    with pytest.raises(ACPOError, match="no pod"):
        batch.backend(remote._url, False, 1)


def verify(path, url, code):
    result = CliRunner().invoke(app, ["verify", "code", str(path), "--remote", url])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_the_command_says_why_nothing_was_judged(remote, tmp_path):
    path = tmp_path / "in.jsonl"
    hidden = {"test_code": "for i in range(3):\n    assert add(i, i) == 2 * i\n"}
    path.write_text(json.dumps({**ADD, **hidden, "completion": HONEST}) + "\n")
    url = remote._url
    assert "no address" in verify(path, "localhost", 2)
    assert "127.0.0.1:9" in verify(path, "http://127.0.0.1:9", 2)
    assert "no row could be judged: assert_mode" in verify(path, url, 2)
    path.write_text(path.read_text() + json.dumps({**ADD, "completion": HONEST}) + "\n")
    verify(path, url, 0)


def test_an_evaluation_finds_out_before_it_samples(remote):
    judges = Judges(1, lambda: batch.backend("http://127.0.0.1:9", False, 1))
    with judges, pytest.raises(ACPOError, match="does not run code"):
        judges.prepare(get_task("humaneval_pro"))


def test_assert_mode_is_refused_not_weakened(remote):
    row = {**ADD, "test_code": "for i in range(3):\n    assert add(i, i) == 2 * i\n"}
    verdict = judge_code(HONEST, row, remote)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert "assert_mode" in verdict.detail


def test_it_serves_a_pool(remote):
    with CodePool(2, remote) as pool:
        assert all(verdict.correct for verdict in pool.verify_all([(HONEST, ADD)] * 6))
