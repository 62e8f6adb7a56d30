"""Conducts a study: sweep, choice, runs, in an order that leaves whole seeds behind."""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from acpo.compare import plan
from acpo.compare.plan import START, STUDY, SWEEP, Result, Run
from acpo.compare.pool import run_here, run_launched, worker_pool
from acpo.compare.settings import Study
from acpo.compare.warmstart import prepare_start

PHASES = (SWEEP, START, STUDY)


class State(NamedTuple):
    """Where a study stands.

    Attributes:
        results: by run name.
        ready: runs that could start now, most urgent first.
        total: runs there will be in all.
    """

    results: dict[str, Result]
    ready: list[Run]
    total: int


def survey(study: Study, folder: Path, results: dict[str, Result] | None = None) -> State:
    """What is done and what can be done next.

    Sweeps come first, since study runs wait for them; then starts; then study runs seed by seed,
    so that an interrupted study has whole seeds, which can be compared, rather than whole rows.
    """
    first = [*plan.sweep_runs(study), *plan.start_runs(study)]
    if results is None:
        results = plan.read_results(folder, first)
    rows = [(task, row) for task in study.tasks for row in task.rows]
    later: list[tuple[int, Run]] = []
    for task, row in rows:
        choice = plan.choose(study, task, row, results)
        if choice is not None:
            later += plan.study_runs(study, task, row, choice.learning_rate)
    for _, run in later:
        if run.name not in results:
            found = plan.finished(folder, run)
            if found is not None:
                results[run.name] = found
    urgent = [*first, *(run for _, run in sorted(later, key=lambda pair: pair[0]))]
    total = len(first) + sum(len(task.seeds) * len(task.rows) for task in study.tasks)
    return State(results, [run for run in urgent if run.name not in results], total)


def conduct(
    study: Study,
    folder: Path,
    *,
    workers: int,
    stop_after: float | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Result]:
    """Run what is missing of a study.

    Args:
        study: what to run.
        folder: where runs are kept; finished ones are not run again.
        workers: runs at a time.
        stop_after: seconds after which no further run is started.
        say: takes a line of progress.

    Returns:
        The results there are now, by run name.
    """
    began = time.monotonic()
    state = survey(study, folder)
    done = len(state.results)
    say(f"{study.title}: {state.total} runs, {done} of them done, {workers} at a time")
    if not state.ready:
        return state.results
    clock = _Clock(began, state.total, done, workers)
    running: dict[Future[Any], Run] = {}
    with worker_pool(workers, threads=study.threads, launcher=study.launcher) as submit:
        model = prepare_start(study, folder, submit, say)

        def start(run: Run) -> None:
            place = folder / "runs" / run.name
            if study.launcher:
                job = submit(run_launched, run, place, model, study.threads, study.launcher)
            else:
                job = submit(run_here, run, place, model, study.threads)
            running[job] = run

        while True:
            late = stop_after is not None and time.monotonic() - began > stop_after
            active = {run.name for run in running.values()}
            waiting = [run for run in state.ready if run.name not in active]
            for run in [] if late else waiting[: workers - len(running)]:
                start(run)
            if not running:
                break
            for job in wait(running, return_when=FIRST_COMPLETED).done:
                run = running.pop(job)
                state.results[run.name] = job.result()
                say(clock.line(run, state.results[run.name]))
            state = survey(study, folder, state.results)
    missing = state.total - len(state.results)
    say(f"{missing} runs left: run the same command again" if missing else "all runs done")
    return state.results


class _Clock:
    """Progress of the whole study, with an estimate of what is left."""

    def __init__(self, began: float, total: int, done: int, workers: int) -> None:
        self.began, self.total, self.done, self.workers = began, total, done, workers
        self.spent: list[float] = []

    def line(self, run: Run, result: Result) -> str:
        self.done += 1
        self.spent.append(result["seconds"])
        left = (self.total - self.done) * sum(self.spent) / len(self.spent) / self.workers
        passed = time.monotonic() - self.began
        if result.get("failed"):
            found = "failed"
        elif result.get("accuracy"):
            found = f"accuracy {result['accuracy']['value']:.3f}"
        else:
            found = f"accuracy {plan.sweep_score(result) or 0.0:.3f} in training"
        return (
            f"[{self.done:>{len(str(self.total))}}/{self.total}] {_minutes(passed)}, about "
            f"{_minutes(left)} left  {run.name}  {found}  {result['seconds']:.1f} s"
        )


def _minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
