"""Runs a study: what is missing of it, several runs at a time, then its report."""

import contextlib
import functools
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from acpo.compare import plan, store
from acpo.compare.plan import Result, Study, StudyRun
from acpo.compare.report import write_report
from acpo.compare.study_file import parse_overrides, read_study
from acpo.compare.summary import summarise
from acpo.compare.warmstart import prepare_start
from acpo.errors import ACPOError

QUIET = {"TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


def compare(
    path: Path,
    arguments: Sequence[str],
    *,
    output: Path | None,
    workers: int,
    stop_after: float | None,
    report_only: bool,
) -> None:
    """Run what is missing of a study and write its report.

    Args:
        path: the study.
        arguments: `--key value` pairs: recipe options for every run.
        output: the study's folder; `runs/compare/<name of the study>` when unset.
        workers: runs at a time.
        stop_after: seconds after which no further run is started.
        report_only: run nothing; read the runs there are, or `runs.jsonl` where they are not kept.
    """
    study = read_study(path, parse_overrides(arguments))
    folder = output or Path("runs") / "compare" / path.stem
    say: Callable[[str], None] = functools.partial(print, flush=True)
    raw = folder / "runs.jsonl"
    if report_only and raw.is_file() and not (folder / "runs").is_dir():
        results = store.read_raw(raw)
    elif report_only:
        results = progress(study, folder).results
    else:
        results = run_missing(study, folder, workers=workers, stop_after=stop_after, say=say)
    words = ["acpo", "compare", str(path), *arguments, "--workers", str(workers)]
    summary = summarise(study, results, command=" ".join(words))
    write_report(summary, folder)
    store.write_raw(results, raw)
    say(
        f"{folder}/report.md, table.tex, page.html, summary.json and figures; runs.jsonl holds "
        f"{len(results)} runs"
    )


class Progress(NamedTuple):
    """Where a study stands.

    Attributes:
        results: by run name.
        ready: runs that could start now, most urgent first.
        total: runs there will be in all.
    """

    results: dict[str, Result]
    ready: list[StudyRun]
    total: int


def progress(study: Study, folder: Path, results: dict[str, Result] | None = None) -> Progress:
    """What is done and what can be done next.

    Sweeps come first, since study runs wait for them; then starts; then study runs seed by seed,
    so that an interrupted study has whole seeds, which can be compared, rather than whole rows.
    """
    first = [*plan.sweep_runs(study), *plan.start_runs(study)]
    if results is None:
        results = store.read_results(folder, first)
    rows = [(task, row) for task in study.tasks for row in task.rows]
    later: list[tuple[int, StudyRun]] = []
    for task, row in rows:
        choice = plan.choose(study, task, row, results)
        if choice is not None:
            later += plan.study_runs(study, task, row, choice.learning_rate)
    for _, run in later:
        if run.name not in results:
            found = store.finished(folder, run)
            if found is not None:
                results[run.name] = found
    urgent = [*first, *(run for _, run in sorted(later, key=lambda pair: pair[0]))]
    total = len(first) + sum(len(task.seeds) * len(task.rows) for task in study.tasks)
    return Progress(results, [run for run in urgent if run.name not in results], total)


def run_missing(
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
    state = progress(study, folder)
    done = len(state.results)
    say(f"{study.title}: {state.total} runs, {done} of them done, {workers} at a time")
    if not state.ready:
        return state.results
    clock = _Clock(began, state.total, done, workers)
    running: dict[Future[Any], StudyRun] = {}
    with worker_pool(workers, threads=study.threads, launcher=study.launcher) as submit:
        model = prepare_start(study, folder, submit, say)

        def start(run: StudyRun) -> None:
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
            state = progress(study, folder, state.results)
    missing = state.total - len(state.results)
    say(f"{missing} runs left: run the same command again" if missing else "all runs done")
    return state.results


class _Clock:
    """Progress of the whole study, with an estimate of what is left."""

    def __init__(self, began: float, total: int, done: int, workers: int) -> None:
        self.began, self.total, self.done, self.workers = began, total, done, workers
        self.spent: list[float] = []

    def line(self, run: StudyRun, result: Result) -> str:
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


@contextlib.contextmanager
def worker_pool(
    workers: int, *, threads: int, launcher: str | None
) -> Iterator[Callable[..., Future[Any]]]:
    """Yields `submit(function, *arguments)`.

    Processes live as long as the study, so that libraries are imported once per worker. With a
    launcher, a run is a command of its own and workers are only threads that wait for it.
    """
    if launcher:
        executor: Executor = ThreadPoolExecutor(workers)
    else:
        os.environ.update(QUIET)
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is first imported
            os.environ[name] = str(threads)
        context = multiprocessing.get_context("spawn")
        places = context.Queue()
        for place in range(workers):
            places.put(place)
        executor = ProcessPoolExecutor(
            workers, context, initializer=_settle, initargs=(places, os.getpid())
        )
    try:
        yield executor.submit
    except BrokenProcessPool as error:
        raise ACPOError(
            "a worker died, probably for lack of memory; use fewer --workers and run the same "
            "command again: finished runs are kept"
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _settle(places: Any, parent: int) -> None:
    """In a new worker: its GPU, quiet interrupts, and an end when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place, count = places.get(), _gpus()
    if count > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(place % count)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _gpus() -> int:
    """GPUs to share out; none where the user has chosen some. Does not start CUDA."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return 0
    import torch

    return torch.cuda.device_count()


def run_here(run: StudyRun, folder: Path, model: str | None, threads: int) -> dict[str, Any]:
    """One run in this worker process, its output in `log.txt`."""
    from acpo.compare.execute import execute

    folder.mkdir(parents=True, exist_ok=True)
    with _output_to(folder / "log.txt"):
        return execute(run, folder, threads=threads, model=model)


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def run_launched(
    run: StudyRun, folder: Path, model: str | None, threads: int, launcher: str
) -> dict[str, Any]:
    """One run as `LAUNCHER -m acpo.compare.execute FOLDER`, its output in `log.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(run.spec()), encoding="utf-8")
    command = [*shlex.split(launcher), "-m", "acpo.compare.execute", str(folder)]
    command += ["--threads", str(threads), *(["--model", model] if model else [])]
    with (folder / "log.txt").open("ab") as log:
        status = subprocess.run(command, stdout=log, stderr=log).returncode
    if status:
        raise ACPOError(f"{run.name}: the launcher ended with status {status}; see its log.txt")
    return json.loads((folder / store.RESULT).read_text(encoding="utf-8"))
