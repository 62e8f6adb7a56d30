"""Draw what is missing, verify it while the rest is drawn, keep every bit of it."""

import hashlib
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.evaluate.backends import Backend, Completion, Failure, Request, SamplingError
from acpo.evaluate.samples import Key, SampleFile, read_settings, require_one_model
from acpo.tasks.grading import Judges, vote
from acpo.tasks.questions import Question, Questions
from acpo.tasks.task import Task
from acpo.tasks.templates import get_template
from acpo.verify.verdict import UNDECIDED, Outcome, Verdict

Watcher = Callable[[str, bool | None], None]
Arrivals = queue.SimpleQueue[tuple[str, Question, Key, str] | None]
"""Benchmark, question, key and text of every completion; None behind the last."""

MOST_SAMPLES = 10_000_000
_MOST_FAILURES = 5
"""Different questions that fail one after the other, and then it is the server that has failed.

Refused prompts do not count: their replies overtake the completions of all others.
"""


@dataclass(frozen=True)
class Plan:
    """One benchmark of a run: its questions, and how many samples of each are wanted."""

    benchmark: Questions
    k: int
    questions: tuple[Question, ...]

    @property
    def task(self) -> Task:
        return self.benchmark.task

    @property
    def name(self) -> str:
        return self.task.name


def plan(benchmark: Questions, k: int | None = None, limit: int | None = None) -> Plan:
    """`k` samples (the benchmark's own number if None) of the first `limit` questions."""
    return Plan(benchmark, k or benchmark.task.k, benchmark.questions[:limit])


def run_settings(plan: Plan, backend: Backend, seed: int) -> dict[str, Any]:
    """What the samples of a benchmark depend on; `k` and the number of questions may grow."""
    return {
        **backend.settings(),
        "seed": seed,
        "benchmark": plan.name,
        "data": plan.benchmark.checksum,
        "judge": plan.task.judge,
        "prompt": get_template(plan.task.test_template or plan.task.template),
        **({"judge_identity": dict(plan.task.identity)} if plan.task.identity else {}),
    }


def run(
    plans: Sequence[Plan],
    backend: Backend,
    judges: Judges,
    *,
    output: Path,
    seed: int = 0,
    watch: Watcher = lambda name, correct: None,
) -> None:
    """Bring the sample files of `plans`, one per benchmark, in `output` to completion.

    Every sample has a seed of its own, made of `seed` and its place. `watch` is called with the
    benchmark and the verdict of every sample that is complete, those of earlier runs first.

    Raises:
        SamplingError: The backend gave up. What had come is kept, and verified.
        ACPOError: Files in `output` were made with other settings, or by another model.
    """
    if (samples := sum(len(wanted.questions) * wanted.k for wanted in plans)) > MOST_SAMPLES:
        raise ACPOError(
            f"{samples:,} samples are wanted, and a run holds at most {MOST_SAMPLES:,}: lower --k, "
            "or ask fewer questions at a time"
        )
    settings = {wanted.name: run_settings(wanted, backend, seed) for wanted in plans}
    others = [path for path in sorted(output.glob("*.jsonl")) if path.stem not in settings]
    require_one_model(output, {path.stem: read_settings(path) for path in others} | settings)
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(SampleFile(output / f"{name}.jsonl", own))
            for name, own in settings.items()
        }
        _Run(plans, files, judges, watch).complete(backend, seed)
        for wanted in plans:
            files[wanted.name].compact([q.id for q in wanted.benchmark.questions])


class _Run:
    def __init__(
        self,
        plans: Sequence[Plan],
        files: dict[str, SampleFile],
        judges: Judges,
        watch: Watcher,
    ) -> None:
        self._plans = {wanted.name: wanted for wanted in plans}
        self._files = files
        self._judges = judges
        self._watch = watch
        self._asked = 0
        self._judged = threading.Semaphore(0)
        self._failures: list[BaseException] = []
        self._in_trouble: set[tuple[str, str]] = set()
        self._last_failure: str | None = None

    def complete(self, backend: Backend, seed: int) -> None:
        requests, unjudged = self._missing(seed)
        if requests or unjudged:
            for wanted in self._plans.values():
                self._judges.prepare(wanted.task)
        arrived: Arrivals = queue.SimpleQueue()
        # A thread of its own: a full verifier must not keep samples from coming or being kept.
        # They come in this one, which Ctrl-C reaches: Python aborts if it ends beside a model.
        judging = threading.Thread(target=self._judge_all, args=(arrived,), daemon=True)
        judging.start()
        for name, question, key in unjudged:
            arrived.put((name, question, key, self._files[name].samples[key]["completion"]))
        gave_up = self._sample(backend, requests, arrived)
        arrived.put(None)
        judging.join()
        for _ in range(self._asked):
            self._judged.acquire()
        if self._failures:
            raise self._failures[0]
        if gave_up is not None:
            self._give_up(gave_up)
        if self._last_failure is not None and not self._kept():
            raise SamplingError(self._last_failure)

    def _sample(
        self, backend: Backend, requests: Sequence[Request], arrived: Arrivals
    ) -> Exception | None:
        """Keep what comes and send it on; returned is what ended it early."""
        try:
            for item in backend.sample(requests) if requests else ():
                if isinstance(item, Failure):
                    self._note_failure(item)
                else:
                    self._in_trouble.clear()
                    self._keep(item)
                    arrived.put((*item.key, item.text))
                if self._failures:
                    break
        except Exception as error:
            return error
        return None

    def _missing(self, seed: int) -> tuple[list[Request], list[tuple[str, Question, Key]]]:
        requests = []
        unjudged = []
        for name, wanted in self._plans.items():
            file = self._files[name]
            for question, index in product(wanted.questions, range(wanted.k)):
                key = question.id, index
                if key not in file.samples or "completion" not in file.samples[key]:
                    own_seed = sample_seed(seed, name, key)
                    requests.append(Request((name, question, key), question.prompt, own_seed))
                    continue
                if file.samples[key].get("prompt") != question.prompt:
                    raise ACPOError(
                        f"{name}, question {question.id}: {file.path} holds samples of another "
                        "prompt: use another --output"
                    )
                if file.undecided(key):
                    unjudged.append((name, question, key))
                else:
                    self._watch(name, _correct(file.samples[key]["verdict"]))
        return requests, unjudged

    def _note_failure(self, failure: Failure) -> None:
        """Go on without a sample, unless it is the server that fails."""
        name, question, key = failure.key
        samples = self._files[name].samples
        if not failure.refused and "failed" not in samples.get(key, {}):
            self._in_trouble.add((name, question.id))
        if len(self._in_trouble) >= _MOST_FAILURES:
            raise SamplingError(failure.reason)
        self._files[name].append(key, {"prompt": question.prompt, "failed": failure.reason})
        self._last_failure = failure.reason
        self._watch(name, None)

    def _keep(self, completion: Completion) -> None:
        name, question, key = completion.key
        sampled: dict[str, Any] = {} if completion.ids is None else {"ids": completion.ids}
        if completion.fingerprint is not None:
            sampled["fingerprint"] = completion.fingerprint
            self._require_same(name, completion.fingerprint)
        self._files[name].append(
            key,
            {
                "prompt": question.prompt,
                "completion": completion.text,
                "tokens": completion.tokens,
                **sampled,
                "finish": completion.finish,
                "seconds": round(completion.seconds, 4),
            },
        )

    def _require_same(self, name: str, fingerprint: str) -> None:
        """Refuse a server that says it is another one than that of the samples kept."""
        for sample in self._files[name].samples.values():
            if "fingerprint" in sample:
                if sample["fingerprint"] != fingerprint:
                    raise SamplingError(
                        f"{name}: the server says it is {fingerprint!r}, and samples of "
                        f"{sample['fingerprint']!r} are kept: use another --output"
                    )
                return

    def _judge_all(self, arrived: Arrivals) -> None:
        try:
            while (item := arrived.get()) is not None:
                self._judge(*item)
        except BaseException as error:  # raised again by `complete`
            self._failures.append(error)

    def _judge(self, name: str, question: Question, key: Key, text: str) -> None:
        task = self._plans[name].task

        def judged(done: Future[Verdict]) -> None:
            try:
                verdict = done.result()
                fields = {
                    "verdict": str(verdict.outcome),
                    "detail": verdict.detail,
                    "answer": vote(task, text),
                    "verify_seconds": round(verdict.seconds, 4),
                }
                self._files[name].append(key, fields)
                self._watch(name, _correct(verdict.outcome))
            except BaseException as error:  # raised again by `complete`
                self._failures.append(error)
            finally:
                self._judged.release()

        self._judges.verify(task, text, question.row).add_done_callback(judged)
        self._asked += 1

    def _kept(self) -> int:
        return sum(
            "completion" in s for file in self._files.values() for s in file.samples.values()
        )

    def _give_up(self, failure: BaseException) -> None:
        if not isinstance(failure, SamplingError):
            raise failure
        total = sum(len(p.questions) * p.k for p in self._plans.values())
        raise SamplingError(
            f"{failure}\n{self._kept()} of {total} samples are kept; the same command continues "
            "from them"
        ) from failure


def sample_seed(seed: int, benchmark: str, key: Key) -> int:
    """The seed of one sample, whatever else is drawn with it. Below 2**31: servers insist."""
    digest = hashlib.sha256(f"{seed}\0{benchmark}\0{key[0]}\0{key[1]}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _correct(outcome: str) -> bool | None:
    return None if outcome in UNDECIDED else outcome == Outcome.CORRECT
