"""A bounded pool that turns jobs into verdicts, from any thread and from asyncio."""

import asyncio
import atexit
import functools
import os
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from acpo.errors import ACPOError
from acpo.linefile import Closing
from acpo.verify.verdict import Verdict

AnyJob = TypeVar("AnyJob")
Made = TypeVar("Made", bound=Closing)

# Long enough that a waiting coroutine costs nothing, short against the cheapest job that can fill
# the queue.
_FULL_QUEUE_POLL_SECONDS = 0.005


def available_cores() -> int:
    """CPU cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def once_per_process(make: Callable[..., Made]) -> Callable[..., Made]:
    """`make`, called once per process (a fork is another) and closed at its end."""
    locks: dict[int, threading.Lock] = {}  # a fork may copy one that is held

    @functools.lru_cache(maxsize=8)
    def made(pid: int, *arguments: Any) -> Made:
        thing = make(*arguments)
        atexit.register(lambda: thing.close() if os.getpid() == pid else None)
        return thing

    def shared(*arguments: Any) -> Made:
        pid = os.getpid()
        with locks.setdefault(pid, threading.Lock()):
            return made(pid, *arguments)

    return shared


class Pool(Closing, Generic[AnyJob]):
    """Threads that each own one worker and take jobs from one bounded queue.

    The time limit of a job starts when its worker takes it: waiting is never billed. When
    `4 * workers` jobs wait, `submit` blocks, so a producer cannot outrun the workers.

    Args:
        make_worker: Makes the context in which one thread has a function that does its jobs.
        workers: Threads; None for one per CPU core.
    """

    def __init__(
        self,
        make_worker: Callable[[], AbstractContextManager[Callable[[AnyJob], Verdict]]],
        workers: int | None = None,
    ) -> None:
        workers = available_cores() if workers is None else workers
        if workers < 1:
            raise ACPOError(f"workers={workers}: a pool needs at least 1 worker")
        self._make_worker = make_worker
        self._queue: queue.Queue[tuple[Future[Verdict], AnyJob] | None] = queue.Queue(4 * workers)
        self._closing = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"acpo-verify-{index}", daemon=True)
            for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def job(self, text: str, reference: Any) -> AnyJob | Verdict:
        """What to ask a worker about `text`, or the verdict where none has to be asked."""
        raise NotImplementedError

    def verify(self, text: str, reference: Any) -> Future[Verdict]:
        """The verdict on `text`, which may come at once."""
        job = self.job(text, reference)
        if not isinstance(job, Verdict):
            return self.submit(job)
        done: Future[Verdict] = Future()
        done.set_result(job)
        return done

    async def verify_async(self, text: str, reference: Any) -> Verdict:
        """The verdict on `text` without ever blocking the event loop."""
        job = self.job(text, reference)
        if isinstance(job, Verdict):
            return job
        while True:
            try:
                future = self.submit(job, wait=False)
                break
            except queue.Full:
                await asyncio.sleep(_FULL_QUEUE_POLL_SECONDS)
        return await asyncio.wrap_future(future)

    def verify_all(self, pairs: Iterable[tuple[str, Any]]) -> list[Verdict]:
        """Verdicts on (text, reference) pairs, in their order."""
        return [future.result() for future in [self.verify(*pair) for pair in pairs]]

    def submit(self, job: AnyJob, *, wait: bool = True) -> Future[Verdict]:
        """Queue one job; while the queue is full, wait, or raise `queue.Full`."""
        if self._closed:
            raise ACPOError("this pool is closed: make a new one")
        future: Future[Verdict] = Future()
        self._queue.put((future, job), block=wait)
        return future

    def close(self) -> None:
        """Finish what is queued, then stop every worker."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def __exit__(self, *error: object) -> None:
        if isinstance(error[1], KeyboardInterrupt):
            self.cancel()
        else:
            self.close()

    def cancel(self) -> None:
        """Drop what is queued and wait for nothing: a running job ends with this process."""
        self._closed = True
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item[0].cancel()

    def _serve(self) -> None:
        with self._make_worker() as run:
            while self._serve_one(run):
                pass

    def _serve_one(self, run: Callable[[AnyJob], Verdict]) -> bool:
        """Whether there was a job. It is let go with this call: a thread that waits holds none."""
        item = self._queue.get()
        if item is None:
            return False
        future, job = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(run(job))
            except BaseException as error:  # handed to whoever asked for the verdict
                future.set_exception(error)
        return True
