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
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from acpo.compare import plan, store
from acpo.compare.plan import Result, Study, StudyRun
from acpo.compare.report import write_report
from acpo.compare.study_file import DECIDED, read_study
from acpo.compare.summary import summarise
from acpo.errors import ACPOError
from acpo.jsonl import read_json
from acpo.yamlfile import yaml_value

TELL_EVERY = 20.0
"""Seconds between two lines about the runs that are going on."""

SHARED = 0.92
"""Of a GPU's memory, what runs that share it divide; the rest is their CUDA contexts'."""

QUIET = {"TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


def compare(
    path: Path,
    arguments: Sequence[str],
    *,
    output: Path | None,
    workers: int,
    only: Sequence[str],
    stop_after: float | None,
    report_only: bool,
) -> None:
    """Run what is missing of a study and write its report; the options are the command's."""
    study = read_study(path, parse_overrides(arguments))
    folder = output or Path("runs") / "compare" / path.stem
    say: Callable[[str], None] = functools.partial(print, flush=True)
    broken: list[str] = []
    if report_only:
        results = _found(folder, say)
        if not progress(study, results).done:  # and runs of other settings are refused
            raise ACPOError(
                f"{folder} holds no runs of {path.name} to report; set --output to its folder"
            )
    else:
        results, broken = run_missing(
            study, folder, workers=workers, only=only, stop_after=stop_after, say=say
        )
    write_report(summarise(study, results), folder)
    say(
        f"{folder}/report.md, table.tex, page.html, summary.json and figures; {store.RUNS} holds "
        f"{len(results)} runs"
    )
    if broken:
        raise ACPOError(f"{len(broken)} runs could not be made: {'; '.join(broken)}")


def _found(folder: Path, say: Callable[[str], None]) -> dict[str, Result]:
    """Every result there is; a command that is at work there may know more by now, and keeps it."""
    if not (folder / store.LOCK).exists():  # nor make one in a folder that is only read
        return store.merge_results(folder, say)
    try:
        with store.alone(folder):
            return store.merge_results(folder, say)
    except store.Busy:
        return store.read_results(folder, say)


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`--key value` pairs as options."""
    if len(arguments) % 2 or any(not key.startswith("--") for key in arguments[::2]):
        raise ACPOError(f"{' '.join(arguments)!r}: options of the recipe come as --key value")
    names = [key[2:].replace("-", "_") for key in arguments[::2]]
    for name in names:
        if name in DECIDED:
            raise ACPOError(f"--{name} is decided by the study, run by run")
        if names.count(name) > 1:
            raise ACPOError(f"--{name} is given twice; keep one")
    values = zip(names, arguments[1::2], strict=True)
    return {name: yaml_value(text, f"--{name} {text}") for name, text in values}


class Progress(NamedTuple):
    """Where a study, or a part of it, stands."""

    ready: list[StudyRun]  # could start now, most urgent first
    done: int  # runs that have a result
    runs: int  # there will be in all, unless sweeps are extended
    updates_left: int  # of the runs that have no result


def progress(study: Study, results: Mapping[str, Result], only: Sequence[str] = ("*",)) -> Progress:
    """What is done and what can be done next, task by task.

    Of a part, runs that wait for a sweep are not counted: their rate, and so their name, is not
    known before.
    """
    known: list[StudyRun] = []
    pending = pending_updates = 0
    for task in study.tasks:
        runs, unknown = plan.known_runs(study, task, results)
        known += [run for run in runs if any(fnmatch(run.name, one) for one in only)]
        if "*" in only:
            pending, pending_updates = pending + unknown, pending_updates + unknown * task.updates
    ready = [run for run in known if store.result_of(results, run) is None]
    left = sum(run.updates for run in ready) + pending_updates
    return Progress(ready, len(known) - len(ready), len(known) + pending, left)


def run_missing(
    study: Study,
    folder: Path,
    *,
    workers: int,
    only: Sequence[str] = ("*",),
    stop_after: float | None = None,
    say: Callable[[str], None] = print,
) -> tuple[dict[str, Result], list[str]]:
    """Run what is missing of a study, several runs at a time.

    Only runs whose name fits one of the patterns `only` are started, and none after `stop_after`
    seconds. Returned are the results there are now, by run name, and what went wrong with the runs
    that have none.
    """
    running: dict[Future[Any], StudyRun] = {}
    broken: dict[str, str] = {}
    pool = worker_pool(workers, threads=study.threads, launcher=study.launcher)
    with store.alone(folder) as hold, pool as submit:
        results = store.merge_results(folder, say)
        whole, state = progress(study, results), progress(study, results, only)
        say(f"{study.title}: {whole.runs} runs, {whole.done} of them done, {workers} at a time")
        for one in only if "*" not in only else ():
            part = progress(study, results, (one,))
            count = f"{part.runs} runs, {part.done} of them done"
            none = "no run that is done or could start has such a name"
            say(f"--only {one}: {count if part.runs else none}")
        if not whole.ready or not state.runs:
            return results, []
        share = gpu_share(workers, whole.ready)
        clock = _Clock(folder, say)
        while True:
            taken = {*broken, *(run.name for run in running.values())}
            waiting = [run for run in state.ready if run.name not in taken]
            late = stop_after is not None and clock.passed > stop_after
            for run in [] if late else waiting[: workers - len(running)]:
                job = submit(run_one, run, folder, study.threads, study.launcher, share, hold)
                running[job] = run
            if not running:
                break
            ended = wait(running, timeout=TELL_EVERY, return_when=FIRST_COMPLETED).done
            for run, job in [(running.pop(job), job) for job in ended]:
                _keep(run, job, results, broken, folder)
                state = progress(study, results, only)
                clock.tell_end(run, results.get(run.name), running.values(), state)
            if not ended:
                clock.tell_running(running.values(), state)
    say(_end(state, progress(study, results)))
    return results, list(broken.values())


def _end(part: Progress, whole: Progress) -> str:
    if part.done < part.runs:
        return f"{part.runs - part.done} runs left: run the same command again"
    if whole.done < whole.runs:
        others = whole.runs - whole.done
        return f"the runs of --only are done; {others} others of the study are left"
    return "all runs done"


def _keep(
    run: StudyRun,
    job: Future[Any],
    results: dict[str, Result],
    broken: dict[str, str],
    folder: Path,
) -> None:
    """What a run found; one that broke does not end the others."""
    error = job.exception()
    if isinstance(error, BrokenProcessPool):
        raise error
    if isinstance(error, ACPOError):  # a refusal, which the others would meet as well
        raise ACPOError(f"{run.name}: {error}") from error
    if error is not None:
        broken[run.name] = f"{run.name}: {error or type(error).__name__}; see its log.txt"
        return
    results[run.name] = job.result()
    store.write_results(results, folder / store.RUNS)


class _Clock:
    """Tells how far a study is, and estimates what is left from the updates it has made.

    Start runs only evaluate: they say nothing about the length of an update.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say = folder, say
        self.began, self.made = time.monotonic(), 0

    @property
    def passed(self) -> float:
        """Seconds."""
        return time.monotonic() - self.began

    def tell_end(
        self, run: StudyRun, result: Result | None, running: Collection[StudyRun], state: Progress
    ) -> None:
        self.made += run.updates if result and run.phase != plan.START else 0
        if result is None:
            found = "broken, see its log.txt"
        elif result.get("failed"):
            found = "failed"
        elif result.get("accuracy"):
            found = f"accuracy {result['accuracy']['value']:.3f}"
        else:
            found = f"accuracy {plan.sweep_score(result) or 0.0:.3f} in training"
        seconds = f"  {result['seconds']:.1f} s" if result else ""
        self._line(state, sum(self._updates(running)), f"{run.name}  {found}{seconds}")

    def tell_running(self, running: Collection[StudyRun], state: Progress) -> None:
        made = self._updates(running)
        words = [
            f"{run.name} {n}/{run.updates}" if n < run.updates else f"{run.name} measures"
            for run, n in zip(running, made, strict=True)
        ]
        self._line(state, sum(made), "  ".join(words))

    def _updates(self, runs: Collection[StudyRun]) -> list[int]:
        files = [self.folder / "runs" / run.name / store.STEPS for run in runs]
        return [file.read_text().count("\n") if file.exists() else 0 for file in files]

    def _line(self, state: Progress, unfinished: int, words: str) -> None:
        made = self.made + unfinished
        left = (state.updates_left - unfinished) * self.passed / made if made else None
        about = f", about {_told(left)} left" if left is not None else ""
        self.say(f"[{state.done}/{state.runs}] {_told(self.passed)}{about}  {words}")


def _told(seconds: float) -> str:
    """As h:mm:ss, or m:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def gpu_share(workers: int, runs: Sequence[StudyRun]) -> float:
    """The part of a GPU's memory that is a run's own, when several share one."""
    import torch

    gpus = torch.cuda.device_count()
    together = -(-workers // gpus) if gpus else 1
    if together == 1:
        return 1.0
    for run in runs:
        if run.recipe.get("max_tokens_per_pack") is None and not run.recipe.get("use_cpu"):
            raise ACPOError(
                f"{run.name}: {together} runs share a GPU and max_tokens_per_pack is unset, so "
                "each would plan with all of its memory; set it in the study's options"
            )
    return SHARED / together


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
    except KeyboardInterrupt:
        print("waiting for the runs that have begun; press Ctrl-C again to stop them", flush=True)
        try:
            executor.shutdown(wait=True, cancel_futures=True)
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.kill()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _settle(places: Any, parent: int) -> None:
    """In a new worker: its GPU, quiet interrupts, and an end when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    place = places.get()
    if gpu := gpu_of(place):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def gpu_of(place: int) -> str | None:
    """The one GPU, of those there are or were chosen, that a worker gets; None where it is one."""
    import torch

    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()  # which does not start CUDA
    names = list(map(str, range(count))) if chosen is None else chosen.split(",")
    return names[place % len(names)] if len(names) > 1 else None


def run_one(
    run: StudyRun, folder: Path, threads: int, launcher: str | None, share: float, hold: int
) -> Result:
    """One run in this worker, or by a launcher as a command of its own; output in `log.txt`."""
    place = folder / "runs" / run.name
    place.mkdir(parents=True, exist_ok=True)
    if launcher:
        return _launch(run, place, threads, launcher, hold)
    from acpo.compare.execute import execute

    with _output_to(place / "log.txt"):
        try:
            return execute(run, place, threads=threads, gpu_share=share)
        except Exception:
            traceback.print_exc()
            raise


def _launch(run: StudyRun, folder: Path, threads: int, launcher: str, hold: int) -> Result:
    (folder / "spec.json").write_text(json.dumps(run.spec()), encoding="utf-8")
    command = [*shlex.split(launcher), "-m", "acpo.compare.execute", str(folder), str(threads)]
    with (folder / "log.txt").open("ab") as log:
        # It outlives this process, if that is killed, and holds the study's folder until it ends.
        status = subprocess.run(command, stdout=log, stderr=log, pass_fds=(hold,)).returncode
    if status:
        raise RuntimeError(f"the launcher ended with status {status}")
    return read_json(folder / store.RESULT)


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
