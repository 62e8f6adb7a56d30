"""The parent's side of a worker server: start it, ask for workers, have them killed."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from acpo.verify.mathworker import KILL, SPAWN

_START_SECONDS = 120.0
_REPLY_SECONDS = 30.0


class SpawnError(OSError):
    """The worker server could not be started or stopped answering."""


class Spawner:
    """One server process that forks workers. Safe to use from several threads.

    Args:
        memory_bytes: Address space of one worker.
        module: What the server runs.
        arguments: What it is told besides.
    """

    def __init__(
        self,
        memory_bytes: int,
        module: str = "acpo.verify.mathworker",
        arguments: Sequence[str] = (),
    ) -> None:
        self._memory_bytes = memory_bytes
        self._module, self._arguments = module, arguments
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
                return int(self._reply(control)), ours
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
                return int(self._reply(self._control))
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
            arguments = [str(theirs.fileno()), str(self._memory_bytes), *self._arguments]
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        self._control = ours
        ours.settimeout(_START_SECONDS)
        if self._reply(ours) != b"ready":
            raise SpawnError("it ended before it was ready; see its message above")
        ours.settimeout(_REPLY_SECONDS)
        return ours

    @staticmethod
    def _reply(control: socket.socket) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            chunk = control.recv(64)
            if not chunk:
                break
            line += chunk
        return line.strip()

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
