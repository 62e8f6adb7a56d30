"""Math answers to verdicts: exact paths here, everything else to killable workers."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from acpo.verify import exact
from acpo.verify.extract import extract_answer, extract_gold
from acpo.verify.normalise import balanced, normalise, oversized
from acpo.verify.pool import once_per_process
from acpo.verify.shape import shape
from acpo.verify.spawner import ProcessPool, Spawner, WorkerProcess
from acpo.verify.verdict import Outcome, Verdict

_MEMORY_BYTES = 2 << 30
# What is left of an answer that was missing before it was made into text.
_NO_GOLD = frozenset({"", "nan", "inf", "-inf", "none", "null", "n/a"})
# A letter or digit that is no part of a command.
_SOMETHING = re.compile(r"(?<![\\a-zA-Z])\w")
_GROUP_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


class MathJob(NamedTuple):
    """Two normalised answers that only algebra can compare."""

    answer: str
    gold: str


class MathPool(ProcessPool[MathJob]):
    """Math verification by `workers` killable processes, started before the first job.

    Args:
        workers: Worker processes; None for one per CPU core.
        cpu_seconds: CPU time one comparison may use before its worker is killed.
    """

    def __init__(self, workers: int | None = None, *, cpu_seconds: float = 2.0) -> None:
        server = Spawner("acpo.verify.mathworker", _MEMORY_BYTES)
        super().__init__(_MathWorker, server, cpu_seconds, workers)

    def job(self, text: str, reference: str) -> MathJob | Verdict:
        return decide_without_algebra(text, reference)


shared_pool = once_per_process(MathPool)
"""The pool that `verify_math` and the reward functions of this process share."""


def verify_math(text: str, gold: str) -> Verdict:
    """Verify one completion, as the model wrote it, against its gold answer alone."""
    decided = decide_without_algebra(text, gold)
    if isinstance(decided, MathJob):
        return shared_pool().submit(decided).result()
    return decided


def decide_without_algebra(text: str, gold: str) -> Verdict | MathJob:
    """The verdict where strings and exact numbers give it, else the job for a worker."""
    try:
        return _decide(text, gold)
    except RecursionError:
        # The caller's stack is nearly used up: a thread has one of its own.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_decide, text, gold).result()


def _decide(text: str, gold: str) -> Verdict | MathJob:
    start = time.perf_counter()

    def verdict(outcome: Outcome, detail: str) -> Verdict:
        return Verdict(outcome, detail, time.perf_counter() - start)

    stated = extract_gold(gold)
    if reason := oversized(stated):
        return verdict(Outcome.UNPARSEABLE_GOLD, f"gold: {reason}")
    answer = extract_answer(text)
    if answer == stated and _SOMETHING.search(stated) and stated.casefold() not in _NO_GOLD:
        return verdict(Outcome.CORRECT, "equal exactly")
    clean_gold = normalise(stated)
    if clean_gold.casefold() in _NO_GOLD:
        return verdict(Outcome.UNPARSEABLE_GOLD, f"the gold answer is {gold[:20]!r}")
    if clean_gold != stated and (reason := oversized(clean_gold)):
        return verdict(Outcome.UNPARSEABLE_GOLD, f"gold: {reason}")
    if not balanced(clean_gold):
        return verdict(Outcome.UNPARSEABLE_GOLD, f"gold: unbalanced braces in {gold[:80]!r}")
    if answer is None:
        return verdict(Outcome.INCORRECT, "no answer found")
    if reason := oversized(answer):
        return verdict(Outcome.LIMIT, reason)
    clean = _read(answer, clean_gold)
    if not clean:
        return verdict(Outcome.INCORRECT, "the answer is empty")
    if clean != answer and (reason := oversized(clean)):
        return verdict(Outcome.LIMIT, reason)
    equal = exact.decide(clean, clean_gold)
    if equal is not None:
        outcome = Outcome.CORRECT if equal else Outcome.INCORRECT
        return verdict(outcome, "equal exactly" if equal else "not equal exactly")
    if not balanced(clean):
        return verdict(Outcome.INCORRECT, "unbalanced braces")
    return MathJob(clean, clean_gold)


def _read(answer: str, clean_gold: str) -> str:
    """`answer` normalised; commas that could group digits separate where the gold has parts."""
    clean = normalise(answer)
    if "," in answer and shape(clean_gold).items and not shape(clean).items:
        return normalise(_GROUP_COMMA.sub(", ", answer))
    return clean


class _MathWorker(WorkerProcess):
    """A worker that compares answers."""

    def __call__(self, job: MathJob) -> Verdict:
        verdict = super().__call__(job._asdict())
        if verdict.outcome in (Outcome.TIMEOUT, Outcome.LIMIT):
            # The gold may be what is too hard: it is, if a trivial answer fails in the same way.
            probe = super().__call__({"answer": "0", "gold": job.gold})
            if probe.outcome in (Outcome.TIMEOUT, Outcome.LIMIT):
                detail = f"the gold answer itself: {probe.detail}"
                return Verdict(Outcome.UNPARSEABLE_GOLD, detail, verdict.seconds)
        return verdict
