"""The parent's side of worker processes: their server, one worker, and a pool of them."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from acpo.errors import ACPOError
from acpo.linefile import Closing
from acpo.verify.pool import AnyJob, Pool
from acpo.verify.verdict import Outcome, Verdict

SPAWN, KILL = b"S", b"K"
_WALL_PER_CPU_SECOND = 30.0
_START_SECONDS = 120.0
_REPLY_SECONDS = 30.0


class SpawnError(OSError):
    """The worker server could not be started or stopped answering."""


class Spawner:
    """One server process, of `module`, that forks workers. Safe to use from several threads."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._module, self._arguments = module, [str(argument) for argument in arguments]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def spawn(self) -> tuple[int, socket.socket]:
        """A fresh worker: its process id and the channel its jobs go through."""
        ours, theirs = socket.socketpair()
        with self._lock:
            try:
                control = self._running()
                socket.send_fds(control, [SPAWN], [theirs.fileno()])
                return int(_read_line(control)), ours
            except (OSError, ValueError) as error:
                ours.close()
                self._stop()
                raise SpawnError(f"the worker server failed: {error}") from error
            finally:
                theirs.close()

    def kill(self, pid: int) -> int:
        """Kill and reap worker `pid`; its wait status as `os.waitpid` gives it."""
        with self._lock:
            if self._control is None:
                return 0
            try:
                self._control.sendall(KILL + str(pid).encode())
                return int(_read_line(self._control))
            except (OSError, ValueError):
                self._stop()
                return 0

    def close(self) -> None:
        """Stop the server; it takes every worker with it."""
        with self._lock:
            self._stop()

    def _running(self) -> socket.socket:
        if self._control is not None and self._process and self._process.poll() is None:
            return self._control
        self._stop()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(theirs.fileno()), *self._arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(_START_SECONDS)
        if _read_line(ours) != b"ready\n":
            raise SpawnError("it ended before it was ready; see its message above")
        ours.settimeout(_REPLY_SECONDS)
        return ours

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _read_line(channel: socket.socket) -> bytes:
    """Up to the next end of a line, or to the end of what is said."""
    line = b""
    while not line.endswith(b"\n") and (chunk := channel.recv(4096)):
        line += chunk
    return line


def _receive(channel: socket.socket) -> dict[str, Any] | None:
    """A worker's reply, or None when it died or got no CPU for too long."""
    with contextlib.suppress(OSError):
        line = _read_line(channel)
        return json.loads(line) if line.endswith(b"\n") else None
    return None


class WorkerProcess(Closing):
    """One worker process, replaced whenever it dies."""

    def __init__(self, spawner: Spawner, cpu_seconds: float) -> None:
        self._spawner = spawner
        self._cpu_seconds = cpu_seconds
        self._pid = 0
        self._channel: socket.socket | None = None
        with contextlib.suppress(SpawnError):  # the first job asks again, and reports it
            self._connected()

    def __call__(self, job: Any) -> Verdict:
        """The worker's verdict on a job, a dictionary, or what became of the worker."""
        whole = {**job, "cpu_seconds": self._cpu_seconds}
        line = json.dumps(whole, default=str).encode() + b"\n"
        for is_last in (False, True):
            try:
                channel = self._connected()
                channel.sendall(line)
            except SpawnError as error:
                return Verdict(Outcome.INFRA_ERROR, str(error))
            except OSError:  # it retired after its last job; a fresh one takes this one
                self._kill()
                continue
            start = time.perf_counter()
            reply = _receive(channel)
            if reply is not None:
                if "error" in reply:
                    raise ACPOError(reply["error"])
                return Verdict(Outcome(reply["outcome"]), reply["detail"], reply["seconds"])
            seconds = time.perf_counter() - start
            status = self._kill()
            retired = os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
            if retired and is_last:  # a fresh one, so the job made it leave
                return Verdict(Outcome.LIMIT, "the answer ends its worker", seconds)
            if not retired:
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

    def _death(self, status: int, seconds: float) -> Verdict:
        sent = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if sent == signal.SIGKILL or status == 0:
            return Verdict(Outcome.INFRA_ERROR, "the worker was killed or starved", seconds)
        if sent == signal.SIGPROF:
            detail = f"more than {self._cpu_seconds} s of CPU time"
            return Verdict(Outcome.TIMEOUT, detail, seconds)
        return Verdict(Outcome.LIMIT, "the answer ends its worker", seconds)


class ProcessPool(Pool[AnyJob]):
    """A pool whose workers are processes, and the server that forks them."""

    def __init__(
        self,
        kind: type[WorkerProcess],
        spawner: Spawner,
        cpu_seconds: float,
        workers: int | None,
    ) -> None:
        self._spawner = spawner
        super().__init__(functools.partial(kind, spawner, cpu_seconds), workers)

    def close(self) -> None:
        super().close()
        self._spawner.close()
