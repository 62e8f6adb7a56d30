"""Which verifier decides on a completion, and what counts as the same answer in a vote."""

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from acpo.evaluate.benchmarks import Judge
from acpo.verify.code import Backend, CodePool
from acpo.verify.extract import extract_answer
from acpo.verify.math import MathPool
from acpo.verify.normalise import normalise
from acpo.verify.verdict import Verdict

Row = dict[str, Any]


class Judges:
    """The verifiers of a run, each started when first needed.

    Args:
        workers: Verifications at a time; None for one per core.
        code_backend: Makes the place where code runs, asked for when code has to.
    """

    def __init__(
        self, workers: int | None = None, code_backend: Callable[[], Backend] | None = None
    ) -> None:
        self._workers = workers
        self._code_backend = code_backend
        self._math: MathPool | None = None
        self._code: CodePool | None = None

    def prepare(self, judge: Judge) -> None:
        """Start a verifier, so that one that cannot work is known before anything is drawn.

        Raises:
            SandboxUnavailableError: Code has to be judged and there is no place to run it.
        """
        if judge is Judge.MATH:
            self._math = self._math or MathPool(self._workers)
        elif self._code is None:
            place = self._code_backend() if self._code_backend else None
            self._code = CodePool(self._workers, place)

    def verify(self, judge: Judge, text: str, row: Row) -> Future[Verdict]:
        """The verdict on a completion."""
        self.prepare(judge)
        if judge is Judge.MATH:
            assert self._math is not None
            return self._math.verify(text, str(row["answer"]))
        assert self._code is not None
        return self._code.verify(text, row)

    def close(self) -> None:
        for pool in (self._math, self._code):
            if pool is not None:
                pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def vote(judge: Judge, text: str) -> str | None:
    """The answer with which a completion votes; None where it states none, and for code."""
    if judge is Judge.CODE:
        return None
    answer = extract_answer(text)
    return normalise(answer)[:200] if answer else None


def gold_completion(judge: Judge, row: Row) -> str | None:
    """A completion that answers with the gold; None for code without a reference solution."""
    if judge is Judge.MATH:
        return f"\\boxed{{{row['answer']}}}"
    if "new_solution" in row:
        first = f"{row.get('raw_problem', '')}{row.get('raw_solution', '')}"
        return f"```python\n{first}\n{row['new_problem']}{row['new_solution']}\n```"
    if "canonical_solution" in row:
        return f"```python\n{row.get('prompt', '')}{row['canonical_solution']}\n```"
    return None
