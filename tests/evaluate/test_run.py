"""Whole runs by the command over real HTTP: oracles, kills, bad input."""

import json
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future

import pytest

from acpo.errors import ACPOError
from acpo.evaluate.backends import Completion, Sampling
from acpo.evaluate.backends.openai import OpenAIBackend
from acpo.evaluate.run import plan, run, sample_seed
from acpo.tasks import PAPER
from acpo.tasks.grading import Judges
from acpo.tasks.questions import load_questions
from evaluate.runs import acpo, add, lines, oracle, start, sums, timeless
from evaluate.server import serving

# Each worker imports a computer algebra system when it starts.
ONE_WORKER = ("--workers", 1)


def summary(folder) -> dict:
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def gold(shared_data):
    return oracle([load_questions(name, shared_data) for name in PAPER])


@pytest.mark.sandbox
def test_an_oracle_scores_100_on_all_six(gold, shared_data, tmp_path):
    with serving(lambda prompt, seed: gold[prompt]) as server:
        done = acpo(
            *("eval", "tiny", "--base-url", server.url, "--data-dir", shared_data),
            *("--k", 1, "--output", tmp_path),
        )
    assert done.returncode == 0, done.stderr
    entries = summary(tmp_path)["benchmarks"]
    assert list(entries) == list(PAPER)
    assert {name: entry["mean"]["value"] for name, entry in entries.items()} == dict.fromkeys(
        PAPER, 1
    )
    assert [entry["questions"] for entry in entries.values()] == [30, 30, 500, 30, 100, 164]
    assert summary(tmp_path)["average"]["value"] == 1
    assert "100.0" in done.stdout and (tmp_path / "intervals.png").stat().st_size > 5000


@pytest.mark.sandbox
def test_gold_on_half_the_samples_scores_50(gold, shared_data, tmp_path):
    """Of four questions one is always right, one never, and two every other time."""
    number = {prompt: index for index, prompt in enumerate(gold)}
    times: Counter[str] = Counter()
    counting = threading.Lock()

    def half(prompt: str, seed: int) -> str:
        with counting:
            times[prompt] += 1
            first = times[prompt] == 1
        kind = number[prompt] % 4
        return gold[prompt] if kind == 0 or (kind > 1 and first) else "I give up."

    with serving(half) as server:
        done = acpo(
            *("eval", "tiny", "--base-url", server.url, "--data-dir", shared_data),
            *("--k", 2, "--limit", 20, "--output", tmp_path),
        )
    assert done.returncode == 0, done.stderr
    whole = summary(tmp_path)
    for name, entry in whole["benchmarks"].items():
        assert entry["mean"]["value"] == pytest.approx(0.5, abs=0.02), name
        assert entry["mean"]["low"] < 0.5 < entry["mean"]["high"], name
        assert entry["pass"]["2"]["value"] == pytest.approx(0.75, abs=0.02), name
    assert whole["average"]["low"] < 0.5 < whole["average"]["high"]


def test_kill_minus_nine_ten_times(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 60)
    options = ("--benchmarks", data, "--k", 2, "--temperature", 0, "--concurrency", 2)
    options += ONE_WORKER
    chance = random.Random(3)
    partial = 0
    with serving(add) as server:
        calm = ("eval", "tiny", "--base-url", server.url, *options, "--output", tmp_path / "calm")
        assert acpo(*calm).returncode == 0
        server.latency = 0.1
        path = tmp_path / "killed" / "sums.jsonl"
        killed = ("eval", "tiny", "--base-url", server.url, *options, "--output", path.parent)
        kept: dict[tuple, str] = {}
        for _ in range(10):
            process = start(*killed)
            size = path.stat().st_size if path.exists() else 0
            while process.poll() is None and not (path.exists() and path.stat().st_size > size):
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            drawn = [line for line in lines(path)[1:] if "completion" in line]
            now = {(line["question"], line["sample"]): line["completion"] for line in drawn}
            assert len(now) == len(drawn), "a sample was drawn twice"
            assert kept.items() <= now.items(), "a sample was lost"
            partial += len(kept) < len(now) < 120
            kept = now
        assert partial >= 5, "the kills hit runs at work"
        server.latency = 0.0
        assert acpo(*killed).returncode == 0
    assert timeless(path) == timeless(tmp_path / "calm" / "sums.jsonl")
    assert len(timeless(path)) == 121


def test_a_finished_run_samples_nothing_and_grows_with_k(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 5)
    with serving(add) as server:
        run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
        run += ("--output", tmp_path / "run")
        assert acpo(*run, "--k", 1, "--limit", 3).returncode == 0
        assert server.number == 3
        assert acpo(*run, "--k", 1, "--limit", 3).returncode == 0
        assert server.number == 3
        grown = acpo(*run, "--k", 2)
        assert grown.returncode == 0 and "holds more" not in grown.stdout
        assert server.number == 10
        fewer = acpo(*run, "--k", 1, "--limit", 3)
        assert "sums: the folder holds more: 5 questions, k=2" in fewer.stdout
        assert server.number == 10


def test_names_of_models_and_folders_are_no_markup(tmp_path):
    """Not a terminal's, nor a formula's: a run ended in its traceback instead of its scores."""
    data, output = sums(tmp_path / "sums.jsonl", 2), tmp_path / "old[" / "bold]"
    with serving(add) as server:
        run = ("eval", r"a$\bad$b", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
        done = acpo(*run, "--k", 1, "--output", output)
    assert done.returncode == 0 and f"reports in {output}" in done.stdout, done.stderr


def test_a_changed_setting_is_refused(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 2)
    with serving(add) as server:
        run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
        run += ("--output", tmp_path / "run")
        assert acpo(*run).returncode == 0
        done = acpo(*run, "--max-tokens", 99)
    assert done.returncode == 2
    assert "max_tokens=8192, this run has max_tokens=99" in " ".join(done.stderr.split())


def test_columns_of_a_template_that_changed_are_refused(tmp_path):
    """They are no part of the questions' checksum."""
    rows = [{"problem": f"What is {i} + 1?", "answer": str(i + 1), "hint": "old"} for i in (1, 2)]
    task = tmp_path / "own.yaml"
    task.write_text('own: {problems: own.jsonl, grader: math, template: "{problem} {hint}"}\n')
    with serving(lambda prompt, seed: "\\boxed{2}") as server:
        run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", f"{task}:own", *ONE_WORKER)
        run += ("--output", tmp_path / "run")
        for hint, status in (("old", 0), ("new", 2)):
            text = "".join(json.dumps(row | {"hint": hint}) + "\n" for row in rows)
            (tmp_path / "own.jsonl").write_text(text)
            done = acpo(*run, "--k", 1 if hint == "old" else 2)
            assert done.returncode == status, done.stderr
        assert "holds samples of another prompt: use another --output" in done.stderr
        assert server.number == 2


def test_a_run_that_drew_nothing_does_not_block_the_corrected_one(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 2)
    with serving(add) as server:
        server.payload_faults = lambda payload: "400" if payload["max_tokens"] > 99 else None
        run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
        run += ("--k", 1, "--output", tmp_path / "run")
        assert acpo(*run).returncode == 2
        done = acpo(*run, "--max-tokens", 99)
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["average"]["value"] == 1.0


def test_golds_that_nobody_can_read_are_told(tmp_path):
    data = tmp_path / "odd.jsonl"
    rows = [{"problem": "What is 1 + 2?", "answer": gold} for gold in ("3", "\\frac{")]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(add) as server:
        run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
        done = acpo(*run, "--k", 2, "--output", tmp_path / "run")
    said = "2 of 4 samples could not be judged (unparseable_gold 2) and are left out"
    assert f"odd: {said}" in done.stdout, done.stdout
    assert f"- {said}" in (tmp_path / "run" / "report.md").read_text()


def test_partial_results_are_kept_when_the_server_dies(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 20)
    with serving(add) as server:
        server.faults = lambda number: "500" if number >= 7 else None
        run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
        run += ("--output", tmp_path / "run")
        done = acpo(*run, "--k", 1, "--concurrency", 1, "--retries", 0)
        assert done.returncode == 2 and "status 500" in done.stderr
        assert "7 of 20 samples are kept" in done.stderr
        assert (
            sum(line.get("verdict") == "correct" for line in lines(tmp_path / "run" / "sums.jsonl"))
            == 7
        )


def test_compare_names_the_better_one(tmp_path):
    data = sums(tmp_path / "sums.jsonl", 40)

    def weak(prompt: str, seed: int) -> str:
        return add(prompt, seed) if seed % 3 == 0 else "\\boxed{-1}"

    for name, answer in (("strong", add), ("weak", weak)):
        with serving(answer) as server:
            run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
            assert acpo(*run, "--k", 4, "--output", tmp_path / name).returncode == 0
    result = json.loads(
        acpo("eval", "compare", tmp_path / "strong", tmp_path / "weak", "--format", "json").stdout
    )["benchmarks"]["sums"]
    assert result["questions"] == 40 and result["worse"] == 0 and result["p_value"] < 1e-9
    assert 0 < result["difference"]["low"] <= 2 / 3 <= result["difference"]["high"] < 1
    table = acpo("eval", "compare", tmp_path / "strong", tmp_path / "weak").stdout
    assert "| sums | 40 | +" in table


def test_bad_input_is_explained(tmp_path):
    (tmp_path / "no_answer.jsonl").write_text('{"problem": "1+1"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    for benchmarks, said in [
        ("aime2024", "did you mean 'aime24'?"),
        ("math-500", "did you mean 'math500'?"),
        (tmp_path / "no_answer.jsonl", "row 1 has no answer"),
        (tmp_path / "empty.jsonl", "no rows"),
        (tmp_path / "absent.jsonl", "no such file"),
        (",", "--benchmarks is empty"),
    ]:
        done = acpo(
            "eval", "tiny", "--base-url", "http://127.0.0.1:9/v1", "--benchmarks", benchmarks
        )
        assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr
    data = sums(tmp_path / "sums.jsonl", 2)
    run = ("eval", "tiny", "--base-url", "http://127.0.0.1:9/v1", "--benchmarks", data, *ONE_WORKER)
    done = acpo(*run, "--output", tmp_path / "run")
    assert done.returncode == 2 and "no server there" in done.stderr
    done = acpo("eval", "compare", tmp_path / "nowhere", tmp_path)
    assert done.returncode == 2 and "no such folder" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prompt-format", "plain", "--system", "x"), "--system needs --prompt-format chat"),
        (("--temperature", "inf"), "--temperature inf must be 0, which takes the most probable"),
        (("--temperature", "1e-320"), "must be 0, which takes the most probable token, or 0.001"),
        (("--output", ""), "--output is empty"),
        (("--output=",), "--output is empty"),
        (("--stop", "x", "--stop", ""), "--stop '' ends every completion"),
        (("--concurrency", 64), "--backend transformers does not take --concurrency"),
        (
            ("--retries", 1, "--api-key-env", "KEY"),
            "transformers does not take --api-key-env, --retries",
        ),
        (("--backend", "transformers", "--base-url", "http://x/v1"), "does not take --base-url"),
        (("--backend", "vllm", "--device", "cpu"), "--backend vllm does not take --device"),
        (("--base-url", "http://x/v1", "--batch-size", 2), "openai does not take --batch-size"),
    ],
)
def test_options_that_cannot_count_are_refused(tmp_path, options, said):
    data = sums(tmp_path / "sums.jsonl", 2)
    done = acpo("eval", tmp_path / "absent", "--benchmarks", data, *options)
    assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr


def test_more_samples_than_a_run_holds_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("acpo.evaluate.run.MOST_SAMPLES", 59)
    wanted = plan(load_questions(str(sums(tmp_path / "sums.jsonl", 30))), 2)
    source = OpenAIBackend("tiny", Sampling(), base_url="http://127.0.0.1:9/v1")
    with Judges(1) as judges, pytest.raises(ACPOError, match="60 samples are wanted, and a run"):
        run([wanted], source, judges, output=tmp_path / "run")


def test_samples_are_kept_while_the_verifier_is_busy(tmp_path):
    """A verifier that does not come along neither stops sampling nor keeps samples off the disk."""
    free = threading.Event()
    path = tmp_path / "run" / "sums.jsonl"

    class Busy(Judges):
        def verify(self, task, text, row):
            assert free.wait(120)
            return super().verify(task, text, row)

    wanted = plan(load_questions(str(sums(tmp_path / "sums.jsonl", 30))), 1)
    with serving(add) as server, Busy(1) as judges:
        source = OpenAIBackend("tiny", Sampling(), base_url=server.url)
        options = {"output": path.parent}
        running = threading.Thread(target=run, args=([wanted], source, judges), kwargs=options)
        running.start()
        deadline = time.monotonic() + 90
        while not (path.exists() and len(lines(path)) == 31) and time.monotonic() < deadline:
            time.sleep(0.02)
        kept = lines(path)
        free.set()
        running.join()
    assert len(kept) == 31 and not any("verdict" in line for line in kept)
    assert all(line["verdict"] == "correct" for line in lines(path)[1:])


def test_code_without_a_sandbox_is_refused_before_sampling(tmp_path):
    row = {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c):\n    assert c(1)\n"}
    data = tmp_path / "code.jsonl"
    data.write_text(json.dumps(row) + "\n")
    with serving(add) as server:
        run = ("eval", "tiny", "--base-url", server.url, "--benchmarks", data, *ONE_WORKER)
        done = acpo(*run, "--output", tmp_path / "run", PATH="/nowhere")
        assert done.returncode == 2 and "bubblewrap" in done.stderr
        assert server.number == 0


def test_seeds_are_their_own():
    seeds = {sample_seed(0, "b", (str(q), i)) for q in range(200) for i in range(8)}
    assert len(seeds) == 1600 and max(seeds) < 2**31
    assert sample_seed(0, "b", ("1", 0)) != sample_seed(1, "b", ("1", 0))


@pytest.mark.parametrize("later", [False, True])
def test_a_verifier_that_breaks_ends_the_run_it_is_part_of(tmp_path, later):
    """Where a verdict broke later, samples were drawn to the end and it was told then."""
    benchmark = load_questions(str(sums(tmp_path / "sums.jsonl", 2000)))
    drawn = []

    class Endless:
        def settings(self):
            return {}

        def sample(self, requests):
            for request in requests:
                drawn.append(request)
                time.sleep(0.001)
                yield Completion(request.key, "4", 1, "stop", 0.0)

    class Broken(Judges):
        def verify(self, task, text, row):
            error = ACPOError("no verdict today")
            if not later:
                raise error
            verdict = Future()
            verdict.set_exception(error)
            return verdict

    with Broken(1) as judges, pytest.raises(ACPOError, match="no verdict today"):
        run([plan(benchmark, 1)], Endless(), judges, output=tmp_path / "out")
    assert len(drawn) < 1000
