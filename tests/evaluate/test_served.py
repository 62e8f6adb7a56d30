"""The HTTP backend against a server of others: `transformers serve` with the tiny trained model."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from acpo import tasks
from acpo.errors import ACPOWarning
from acpo.evaluate.backends import Request, Sampling
from acpo.evaluate.backends.openai import OpenAIBackend
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.tasks import chain_problems
from evaluate.runs import acpo, lines

CHAIN = Path(tasks.__file__).parent / "checkpoints" / "chain"
# The model knows nothing but chains: what stands around one in a prompt is left out.
TEMPLATE = "{{ messages[-1]['content'].split('\n')[0] }}"
# Where a reply begins and ends: without it the server looks for the marks of Qwen3's template.
REPLY = {"start_anchor": ":", "fields": {"content": {"close": "<eos>", "content": "text"}}}
SERVE = "from transformers.cli.transformers import main; main()"
GREEDY = Sampling(temperature=0.0, max_tokens=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "chain"
    shutil.copytree(CHAIN, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = folder / "tokenizer_config.json"
    settings = {**json.loads(config.read_text()), "response_template": REPLY}
    config.write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def url(model):
    """The address of a server that has `model`, and nothing in its cache."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVE, "serve", model, "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    log = model.parent / "log"
    environment = {**os.environ, "HF_HOME": str(model.parent), "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        deadline = time.monotonic() + 300
        while not answers(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(timeout=60)


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        return reply.status == 200
    return False


def drawn(backend, prompts: list[str]) -> dict[str, tuple[str, str]]:
    requests = [Request(prompt, prompt, number) for number, prompt in enumerate(prompts)]
    return {done.key: (done.text, done.finish) for done in backend.sample(requests)}


def test_a_run_against_a_server_of_others(model, url, tmp_path):
    problems = chain_problems(12, steps=4, seed=9)
    data = tmp_path / "chains.jsonl"
    rows = [{"problem": problem.prompt, "answer": problem.answer} for problem in problems]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = acpo(
        *("eval", model, "--base-url", url, "--benchmarks", data, "--output", tmp_path / "run"),
        *("--k", 1, "--temperature", 0, "--max-tokens", 40, "--concurrency", 4, "--workers", 1),
    )
    assert done.returncode == 0, done.stderr
    samples = lines(tmp_path / "run" / "chains.jsonl")[1:]
    here = drawn(TransformersBackend(str(model), GREEDY), [problem.prompt for problem in problems])
    for problem, sample in zip(problems, samples, strict=True):
        assert (sample["completion"], sample["finish"]) == here[problem.prompt]
        # A server counts the token that ends a completion; here a token is a character.
        assert sample["tokens"] == len(sample["completion"]) + 1
        assert sample["verdict"] == "incorrect", "a chain names no final answer"
    solved = [here[problem.prompt][0] == problem.solution for problem in problems]
    assert 0 < sum(solved) < 12, "a trained model, not noise"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["benchmarks"]["chains"]["mean"]["value"] == 0


def test_plain_prompts_and_cut_completions(model, url):
    prompts = [problem.prompt for problem in chain_problems(6, steps=4, seed=10)]
    for tokens in (40, 5):
        sampling = GREEDY._replace(chat=False, max_tokens=tokens)
        with pytest.warns(ACPOWarning, match="does not take top_k, min_p, repetition_penalty"):
            served = drawn(OpenAIBackend(str(model), sampling, base_url=url), prompts)
        assert served == drawn(TransformersBackend(str(model), sampling), prompts)
