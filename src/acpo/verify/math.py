"""Math answers to verdicts: exact paths here, everything else to killable workers."""

import atexit
import contextlib
import functools
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from acpo.errors import ACPOError
from acpo.verify import exact
from acpo.verify.extract import extract_answer, extract_gold
from acpo.verify.normalise import balanced, normalise, oversized
from acpo.verify.pool import Pool, available_cores
from acpo.verify.spawner import Spawner, SpawnError
from acpo.verify.verdict import Outcome, Verdict

_WALL_PER_CPU_SECOND = 30.0
# What is left of an answer that was missing before it was made into text.
_NO_GOLD = frozenset({"", "nan", "none", "null", "n/a"})
# A letter or digit that is no part of a command.
_SOMETHING = re.compile(r"(?<![\\a-zA-Z])\w")


class MathJob(NamedTuple):
    """Two normalised answers that only algebra can compare."""

    answer: str
    gold: str


class MathPool(Pool[MathJob]):
    """Math verification by `workers` killable processes, started before the first job.

    Args:
        workers: Worker processes; None for one per CPU core.
        cpu_seconds: CPU time one comparison may use before its worker is killed.
        memory_bytes: Address space of one worker.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        cpu_seconds: float = 2.0,
        memory_bytes: int = 2 << 30,
    ) -> None:
        self._spawner = Spawner(memory_bytes)
        make = functools.partial(_MathWorker, self._spawner, cpu_seconds)
        super().__init__(make, workers or available_cores())

    def verify(self, text: str, gold: str) -> Future[Verdict]:
        """The verdict on `text`, at once where no algebra is needed."""
        decided = decide_without_algebra(text, gold)
        if isinstance(decided, MathJob):
            return self.submit(decided)
        done: Future[Verdict] = Future()
        done.set_result(decided)
        return done

    async def verify_async(self, text: str, gold: str) -> Verdict:
        """The verdict on `text` without blocking the event loop."""
        decided = decide_without_algebra(text, gold)
        return await self.submit_async(decided) if isinstance(decided, MathJob) else decided

    def verify_all(self, pairs: Iterable[tuple[str, str]]) -> list[Verdict]:
        """Verdicts on (text, gold) pairs, in their order."""
        return [future.result() for future in [self.verify(*pair) for pair in pairs]]

    def close(self) -> None:
        super().close()
        self._spawner.close()


def verify_math(text: str, gold: str) -> Verdict:
    """Verify one completion against its gold answer, with this process's shared pool.

    Args:
        text: The completion, as the model wrote it.
        gold: The reference answer alone, without a box around it.
    """
    decided = decide_without_algebra(text, gold)
    if isinstance(decided, MathJob):
        return shared_pool().submit(decided).result()
    return decided


def shared_pool() -> MathPool:
    """The pool that `verify_math` and the reward functions of this process share."""
    return _shared_pool(os.getpid())


@functools.lru_cache(maxsize=1)
def _shared_pool(pid: int) -> MathPool:
    pool = MathPool()
    atexit.register(lambda: pool.close() if os.getpid() == pid else None)
    return pool


def decide_without_algebra(text: str, gold: str) -> Verdict | MathJob:
    """The verdict where strings and exact numbers give it, else the job for a worker."""
    start = time.perf_counter()

    def verdict(outcome: Outcome, detail: str) -> Verdict:
        return Verdict(outcome, detail, time.perf_counter() - start)

    if reason := oversized(gold):
        return verdict(Outcome.UNPARSEABLE_GOLD, f"gold: {reason}")
    answer = extract_answer(text)
    if answer == gold and _SOMETHING.search(gold) and gold.casefold() not in _NO_GOLD:
        return verdict(Outcome.CORRECT, "equal exactly")
    clean_gold = normalise(extract_gold(gold))
    if clean_gold.casefold() in _NO_GOLD:
        return verdict(Outcome.UNPARSEABLE_GOLD, f"the gold answer is {gold[:20]!r}")
    if not balanced(clean_gold):
        return verdict(Outcome.UNPARSEABLE_GOLD, f"gold: unbalanced braces in {gold[:80]!r}")
    if answer is None:
        return verdict(Outcome.INCORRECT, "no answer found")
    if reason := oversized(answer):
        return verdict(Outcome.LIMIT, reason)
    clean = normalise(answer)
    if not clean:
        return verdict(Outcome.INCORRECT, "the answer is empty")
    equal = exact.decide(clean, clean_gold)
    if equal is not None:
        outcome = Outcome.CORRECT if equal else Outcome.INCORRECT
        return verdict(outcome, "equal exactly" if equal else "not equal exactly")
    if not balanced(clean):
        return verdict(Outcome.INCORRECT, "unbalanced braces")
    return MathJob(clean, clean_gold)


class WorkerProcess:
    """One worker process, replaced whenever it dies."""

    def __init__(self, spawner: Spawner, cpu_seconds: float) -> None:
        self._spawner = spawner
        self._cpu_seconds = cpu_seconds
        self._pid = 0
        self._channel: socket.socket | None = None
        with contextlib.suppress(SpawnError):  # the first job asks again, and reports it
            self._connected()

    def ask(self, job: dict[str, Any]) -> Verdict:
        """The worker's verdict on a job, or what became of the worker."""
        line = json.dumps({**job, "cpu_seconds": self._cpu_seconds}).encode() + b"\n"
        for _ in range(2):
            try:
                channel = self._connected()
                channel.sendall(line)
            except SpawnError as error:
                return Verdict(Outcome.INFRA_ERROR, str(error))
            except OSError:  # it retired after its last job; a fresh one takes this one
                self._kill()
                continue
            start = time.perf_counter()
            reply = self._receive(channel)
            if reply is not None:
                if "error" in reply:
                    raise ACPOError(reply["error"])
                return Verdict(Outcome(reply["outcome"]), reply["detail"], reply["seconds"])
            seconds = time.perf_counter() - start
            status = self._kill()
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                continue
            return self._death(status, seconds)
        return Verdict(Outcome.INFRA_ERROR, "two workers in a row ended without an answer")

    def close(self) -> None:
        self._kill()

    def _kill(self) -> int:
        """Kill the worker, if there is one; its wait status."""
        if self._channel is None:
            return 0
        self._channel.close()
        self._channel = None
        return self._spawner.kill(self._pid)

    def _connected(self) -> socket.socket:
        if self._channel is None:
            self._pid, self._channel = self._spawner.spawn()
            self._channel.settimeout(self._cpu_seconds * _WALL_PER_CPU_SECOND)
        return self._channel

    @staticmethod
    def _receive(channel: socket.socket) -> dict | None:
        """The worker's reply, or None when it died or got no CPU for too long."""
        received = b""
        while not received.endswith(b"\n"):
            try:
                chunk = channel.recv(4096)
            except OSError:
                return None
            if not chunk:
                return None
            received += chunk
        return json.loads(received)

    def _death(self, status: int, seconds: float) -> Verdict:
        sent = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if sent == signal.SIGKILL or status == 0:
            return Verdict(Outcome.INFRA_ERROR, "the worker was killed or starved", seconds)
        if sent == signal.SIGPROF:
            detail = f"more than {self._cpu_seconds} s of CPU time"
            return Verdict(Outcome.TIMEOUT, detail, seconds)
        return Verdict(Outcome.LIMIT, "the answer ends its worker", seconds)


class _MathWorker(WorkerProcess):
    """A worker that compares answers."""

    def run(self, job: MathJob) -> Verdict:
        verdict = self.ask(job._asdict())
        if verdict.outcome in (Outcome.TIMEOUT, Outcome.LIMIT):
            # The gold may be what is too hard: it is, if a trivial answer fails in the same way.
            probe = self.ask({"answer": "0", "gold": job.gold})
            if probe.outcome in (Outcome.TIMEOUT, Outcome.LIMIT):
                detail = f"the gold answer itself: {probe.detail}"
                return Verdict(Outcome.UNPARSEABLE_GOLD, detail, verdict.seconds)
        return verdict
