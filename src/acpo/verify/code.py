"""Code completions to verdicts: a backend runs them, this side compares."""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from acpo.verify.compare import matches
from acpo.verify.extract import defines, extract_code
from acpo.verify.pool import Pool, once_per_process
from acpo.verify.problem import CodeProblem, ProblemError, read_problem
from acpo.verify.rewrite import Case
from acpo.verify.sandbox import Execution, ProgramRun, Reply, sandbox
from acpo.verify.session import Limits
from acpo.verify.verdict import Outcome, Verdict

MAX_CODE_CHARS = 100_000
AnyProblem = CodeProblem | Mapping[str, Any]
CodeJob = tuple[str, AnyProblem]


class CodeBackend(Protocol):
    """Where solutions run. It returns what they did, and never learns what was expected."""

    limits: Limits

    def run_calls(
        self, sources: Sequence[str], expressions: Sequence[str], accept: Callable[[Reply], bool]
    ) -> Execution: ...

    def run_program(self, source: str, stdin: bytes, within: float) -> ProgramRun: ...

    def run_asserts(
        self, sources: Sequence[str], test: dict[str, Any], nonce: str
    ) -> Execution: ...


class CodePool(Pool[CodeJob]):
    """Code verification, `workers` sandboxes at a time, each made for one solution.

    Args:
        workers: Sandboxes at a time; None for one per CPU core.
        backend: Where they run; None for bubblewrap on this machine.

    Raises:
        SandboxUnavailableError: No backend was given and bubblewrap does not work here.
    """

    def __init__(self, workers: int | None = None, backend: CodeBackend | None = None) -> None:
        place, read = backend or sandbox(), _ReadOnce()

        def judge(job: CodeJob) -> Verdict:
            return judge_code(*job, place, read)

        super().__init__(lambda: nullcontext(judge), workers)

    def job(self, text: str, reference: AnyProblem) -> CodeJob:
        return text, reference


class _ReadOnce:
    """`read_problem`, once for all completions of a row that come one after the other.

    The last row is kept, with what was read of it.

    Parsing tests of 66 kB takes 0.4 s, and some hundred times the memory of their text.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: tuple[Any, Any] = (None, None)

    def __call__(self, row: Mapping[str, Any]) -> CodeProblem:
        with self._lock:
            if self._read[0] is not row:
                self._read = row, read_problem(row)
            problem: CodeProblem = self._read[1]
            return problem


shared_pool = once_per_process(CodePool)
"""The pool that `verify_code` and the reward functions of this process share."""


def verify_code(text: str, problem: AnyProblem) -> Verdict:
    """Verify one completion against a problem or a dataset row, with this process's shared pool.

    Raises:
        SandboxUnavailableError: bubblewrap does not work here.
    """
    return shared_pool().verify(text, problem).result()


def judge_code(
    text: str,
    problem: AnyProblem,
    backend: CodeBackend,
    read: Callable[[Mapping[str, Any]], CodeProblem] = read_problem,
) -> Verdict:
    """Extract the program of `text`, run it on `backend`, compare what came back."""
    if not isinstance(problem, CodeProblem):
        try:
            problem = read(problem)
        except ProblemError as error:
            return Verdict(Outcome.UNPARSEABLE_GOLD, str(error))
    code = extract_code(text, problem.entry_point)
    if code is None:
        return Verdict(Outcome.INCORRECT, "no code found")
    if len(code) > MAX_CODE_CHARS:
        return Verdict(Outcome.LIMIT, f"{len(code)} characters, more than {MAX_CODE_CHARS}")
    if problem.stdio:
        return _judge_program(code, problem, backend)
    continues = code.lstrip("\r\n")[:1] in (" ", "\t")
    if defines(code, problem.entry_point or "") and not continues:
        sources = [problem.prelude, code]
    else:
        sources = [f"{problem.prompt.rstrip()}\n{code}"]
    if problem.assert_mode:
        return _judge_asserts(sources, problem, backend)
    return _judge_calls(sources, problem, backend)


def _judge_calls(sources: list[str], problem: CodeProblem, backend: CodeBackend) -> Verdict:
    cases = iter(problem.cases)
    answered = 0
    failure: Verdict | None = None

    def accept(reply: Reply) -> bool:
        nonlocal answered, failure
        failure = _failure(reply, next(cases))
        answered += failure is None
        return failure is None

    run = backend.run_calls(sources, [case.expression for case in problem.cases], accept)
    if failure is not None:
        return failure._replace(seconds=run.seconds)
    if run.ended is not None:
        return Verdict(run.ended.outcome, run.ended.detail, run.seconds)
    if answered != len(problem.cases):
        detail = f"{answered} of {len(problem.cases)} calls answered"
        return Verdict(Outcome.INCORRECT, detail, run.seconds)
    return Verdict(Outcome.CORRECT, f"{answered} calls", run.seconds)


def _failure(reply: Reply, case: Case) -> Verdict | None:
    """Why `reply` does not pass `case`; None when it does."""
    expression = case.expression[:120]
    if "value" not in reply:
        error = str(reply.get("error", "no value"))[:200]
        outcome = Outcome.LIMIT if error.startswith("MemoryError") else Outcome.INCORRECT
        return Verdict(outcome, f"{expression}: {error}")
    tolerances = {"rel_tol": case.rel_tol, "abs_tol": case.abs_tol}
    if matches(reply["value"], case.expected, case.rule, **tolerances):
        return None
    return Verdict(Outcome.INCORRECT, f"wrong value for {expression}")


def _judge_program(code: str, problem: CodeProblem, backend: CodeBackend) -> Verdict:
    seconds = 0.0
    limit = backend.limits.problem_seconds
    for case in problem.stdio:
        if seconds >= limit:
            return Verdict(Outcome.TIMEOUT, f"more than {limit} s for all runs together", seconds)
        stdin = case.stdin.encode(errors="surrogatepass")
        run = backend.run_program(code, stdin, limit - seconds)
        seconds += run.seconds
        if run.ended is not None:
            return Verdict(run.ended.outcome, run.ended.detail, seconds)
        if run.status != 0:
            detail = f"exit status {run.status} {run.error}".strip()
            return Verdict(Outcome.INCORRECT, detail, seconds)
        if not _same_output(run.output, case.stdout):
            return Verdict(Outcome.INCORRECT, "wrong output", seconds)
    return Verdict(Outcome.CORRECT, f"{len(problem.stdio)} runs", seconds)


def _same_output(output: bytes, expected: str) -> bool:
    """Equal line by line, up to spaces at the end of a line and empty lines at the end."""
    try:
        printed = output.decode()
    except UnicodeDecodeError:
        return False

    def lines(text: str) -> list[str]:
        return [line.rstrip(" \t\r") for line in text.rstrip().split("\n")]

    return lines(printed) == lines(expected)


def _judge_asserts(sources: list[str], problem: CodeProblem, backend: CodeBackend) -> Verdict:
    nonce = secrets.token_hex(16)
    test = {
        "prelude": problem.prelude,
        "names": [problem.entry_point],
        "test": problem.assert_source,
    }
    run = backend.run_asserts(sources, test, nonce)
    if run.ended is not None:
        return Verdict(run.ended.outcome, f"assert_mode: {run.ended.detail}", run.seconds)
    said = run.reply or {}
    reason = "passed" if "passed" in said else str(said.get("failed", said.get("error")))[:200]
    if run.calls == 0:
        detail = f"assert_mode: the test never called {problem.entry_point}: {reason}"
        return Verdict(Outcome.UNPARSEABLE_GOLD, detail, run.seconds)
    if said == {"passed": nonce}:
        return Verdict(Outcome.CORRECT, "assert_mode", run.seconds)
    return Verdict(Outcome.INCORRECT, f"assert_mode: {reason}", run.seconds)
