"""From completions to verdicts, whatever the grader of a task is."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.linefile import Closing
from acpo.tasks.blame import told
from acpo.tasks.task import CODE, DIGITS, MATH, Row, Task
from acpo.verify.code import CodeBackend, CodePool
from acpo.verify.digits import DigitsPool
from acpo.verify.extract import extract_answer
from acpo.verify.math import MathPool
from acpo.verify.normalise import normalise, oversized
from acpo.verify.pool import once_per_process
from acpo.verify.rewards import completion_text, digits_correct, log_outcomes, math_correct
from acpo.verify.spawner import ProcessPool, Spawner, WorkerProcess
from acpo.verify.verdict import Outcome, Verdict

ROW = "task_row"
"""The column in which training data carry the whole row, as JSON, to the grader."""

_MEMORY_BYTES = 4 << 30


def as_verdict(value: Any) -> Verdict:
    """What a grader returned, as a verdict."""
    if isinstance(value, Verdict):
        return value
    if isinstance(value, (bool, int, float)) or hasattr(value, "__float__"):
        right = float(value) >= 1.0
        return Verdict(Outcome.CORRECT if right else Outcome.INCORRECT, f"score {float(value):g}")
    raise ACPOError(f"a grader returned {value!r}; return True, False, a score or a Verdict")


class GraderPool(ProcessPool[dict[str, Any]]):
    """A grader in processes that can be killed; each finds it again under `task.reference`."""

    def __init__(self, task: Task, workers: int | None = None) -> None:
        server = Spawner("acpo.tasks.graderworker", _MEMORY_BYTES, task.reference, Path.cwd())
        super().__init__(WorkerProcess, server, task.cpu_seconds, workers)

    def job(self, text: str, reference: Row) -> dict[str, Any]:
        return {"completion": text, "row": reference}


class InProcess(Closing):
    """A grader that nothing can hang, called where it is."""

    def __init__(self, task: Task) -> None:
        assert callable(task.grader)
        self._task, self._grade = task, task.grader

    def verify(self, text: str, row: Row) -> Future[Verdict]:
        """The verdict on `text`, at once."""
        start = time.perf_counter()
        done: Future[Verdict] = Future()
        with told(self._task, "grader", self._grade):
            verdict = as_verdict(self._grade(text, row))
        done.set_result(verdict._replace(seconds=time.perf_counter() - start))
        return done

    def close(self) -> None:
        """Nothing was started."""


class Judges(Closing):
    """The graders of a run, each started when first needed.

    Args:
        workers: verdicts at a time; None for one per core.
        code_backend: makes the place where code runs, asked for when code has to; None for the
            sandbox.
    """

    def __init__(
        self, workers: int | None = None, code_backend: Callable[[], CodeBackend] | None = None
    ) -> None:
        self._workers = workers
        self._code_backend = code_backend
        self._pools: dict[str, Any] = {}
        self._starting = threading.Lock()

    def prepare(self, task: Task) -> Any:
        """The grader of a task; asked for early, one that cannot work is known before sampling.

        Raises:
            SandboxUnavailableError: code has to be judged and there is no place to run it.
            ACPOError: a grader that its processes could not find again.
        """
        if callable(task.grader) and task.in_process:
            return InProcess(task)  # nothing to keep, and tasks made in memory may share a name
        if callable(task.grader) and not task.reference:
            raise ACPOError(
                "this task was made in memory, where its grader's processes cannot find it: "
                "declare it in a file and take it from acpo.tasks.get_task('my_tasks.py:NAME'), or "
                "set in_process"
            )
        with self._starting:
            if task.judge not in self._pools:
                self._pools[task.judge] = self._started(task)
            return self._pools[task.judge]

    def verify(self, task: Task, text: str, row: Row) -> Future[Verdict]:
        """The verdict on a completion."""
        given = str(row["answer"]) if task.needs_gold else row
        return self.prepare(task).verify(text, given)

    def _started(self, task: Task) -> Any:
        if task.grader == MATH:
            return MathPool(self._workers)
        if task.grader == DIGITS:
            return DigitsPool()
        if task.grader == CODE:
            return CodePool(self._workers, self._code_backend() if self._code_backend else None)
        return GraderPool(task, self._workers)

    def close(self) -> None:
        self.__exit__(None, None, None)

    def __exit__(self, *error: object) -> None:
        for pool in self._pools.values():
            pool.__exit__(*error)  # which waits for nothing after Ctrl-C


def vote(task: Task, text: str) -> str | None:
    """The answer with which a completion votes; None where it states none, or there are none."""
    if task.needs_gold:
        answer = extract_answer(text)
        if answer and oversized(answer):
            return f"oversized {sha256(answer.encode(errors='replace')).hexdigest()}"
        return normalise(answer)[:200] if answer else None
    if task.extract is None:
        return None
    with told(task, "extract(completion)", task.extract):
        answer = task.extract(text)
    return None if answer is None else str(answer)[:200]


def gold_completion(task: Task, row: Row) -> str | None:
    """A completion that answers with the gold; None where the row has none."""
    if task.gold is not None:
        with told(task, "gold(row)", task.gold):
            gold = task.gold(row)
            if not isinstance(gold, str | None):
                raise ACPOError(f"gold(row) returned {gold!r}; return a completion's text, or None")
        return gold
    if task.needs_gold:
        return f"\\boxed{{{row['answer']}}}"
    if task.grader != CODE:
        return str(row["answer"]) if row.get("answer") not in (None, "") else None
    if "new_solution" in row:
        first = f"{row.get('raw_problem', '')}{row.get('raw_solution', '')}"
        return f"```python\n{first}\n{row['new_problem']}{row['new_solution']}\n```"
    if "canonical_solution" in row:
        return f"```python\n{row.get('prompt', '')}{row['canonical_solution']}\n```"
    return None


def reward_function(task: Task) -> Callable[..., list[float | None]]:
    """The grader of a task as a reward function: 1, 0, or None for what could not be judged."""
    if task.needs_gold:
        return math_correct if task.grader == MATH else digits_correct

    def graded(prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        verdicts = grade_all(task, [completion_text(c) for c in completions], columns[ROW])
        log_outcomes(verdicts, columns.get("log_metric"))
        return [verdict.reward() for verdict in verdicts]

    graded.__name__ = f"{task.name}_reward"
    graded.grader = task.grader  # type: ignore[attr-defined]  # whose code decides the rewards
    return graded


def grade_all(task: Task, texts: Sequence[str], rows: Sequence[str]) -> list[Verdict]:
    """Verdicts on completions whose rows are given as JSON, with this process's shared pool."""
    judges = _shared_judges()
    # Completions of a row come one after the other; a grader of one's own may change what it gets.
    read = lru_cache(maxsize=1)(json.loads) if task.grader == CODE else json.loads
    futures = [judges.verify(task, text, read(row)) for text, row in zip(texts, rows, strict=True)]
    return [future.result() for future in futures]


_shared_judges = once_per_process(Judges)
