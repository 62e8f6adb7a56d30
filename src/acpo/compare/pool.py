"""Runs in parallel: long-lived worker processes, or one launched command per run."""

import contextlib
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from acpo.compare.plan import RESULT, Run
from acpo.errors import ACPOError

Work = Callable[[Run, Path, str | None], dict[str, Any]]

QUIET = {"TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


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


def run_here(run: Run, folder: Path, model: str | None, threads: int) -> dict[str, Any]:
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
    run: Run, folder: Path, model: str | None, threads: int, launcher: str
) -> dict[str, Any]:
    """One run as `LAUNCHER -m acpo.compare.worker FOLDER`, its output in `log.txt`."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text(json.dumps(run.spec()), encoding="utf-8")
    command = [*shlex.split(launcher), "-m", "acpo.compare.worker", str(folder)]
    command += ["--threads", str(threads), *(["--model", model] if model else [])]
    with (folder / "log.txt").open("ab") as log:
        status = subprocess.run(command, stdout=log, stderr=log).returncode
    if status:
        raise ACPOError(f"{run.name}: the launcher ended with status {status}; see its log.txt")
    return json.loads((folder / RESULT).read_text(encoding="utf-8"))
