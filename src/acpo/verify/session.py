"""One sandboxed process and the lines of JSON that cross its border."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

from acpo.jsonl import json_object
from acpo.verify.cgroup import ControlGroup, parent_group
from acpo.verify.proctree import descendants, kill_children, tree_memory
from acpo.verify.verdict import Outcome

_START_SECONDS = 60.0
_TICK_SECONDS = 0.1
_EXIT_POLL_SECONDS = 0.002
_KILL_SECONDS = 60.0
_STDERR_TAIL = 400
# Processes of bubblewrap itself that stand around the runner.
_BUBBLEWRAPS = 2


@dataclass(frozen=True)
class Limits:
    """What one run of untrusted code may use.

    Attributes:
        cpu_seconds: CPU time of each process, enforced by the kernel.
        wall_seconds: Time from the moment the sandbox is ready, for code that sleeps or waits.
        problem_seconds: Wall time of all runs of one problem together.
        memory_bytes: Address space of each process, and memory of all of them.
        processes: Processes and threads together.
        files: Open files of each process.
        file_bytes: Size of any one file, and of the whole writable /tmp times four.
        output_bytes: Standard output, and any one value that a call returns.
        shared_memory_bytes: Size of /dev/shm; 0 for none. Scripts get `file_bytes`.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    problem_seconds: float = 120.0
    memory_bytes: int = 1 << 30
    processes: int = 32
    files: int = 64
    file_bytes: int = 16 << 20
    output_bytes: int = 1 << 20
    shared_memory_bytes: int = 0

    def rlimits(self) -> dict[str, int]:
        return {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_NOFILE": self.files,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_CORE": 0,
            "RLIMIT_MEMLOCK": 0,
        }


class Launcher(Protocol):
    """How a runner process is started: in a sandbox, or for `--unsafe-local` without one."""

    drops_root: bool

    def command(self, channel: int, limits: Limits) -> tuple[list[str], list[int]]:
        """The command line, and descriptors to pass on (closed here after the start)."""
        ...


class SessionEnded(Exception):
    """The process is gone or has to go. Carries the verdict that follows."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail


class SiblingEnded(SessionEnded):
    """Another session of the same run has to go."""


class Session:
    """A started runner. Everything it says is untrusted data.

    Until it has said that it is ready no untrusted code has run, so a failure before that is the
    machine's and one after it the solution's: code cannot ask for an `infra_error`.
    """

    def __init__(
        self,
        launcher: Launcher,
        limits: Limits,
        job: dict[str, Any],
        stdin: bytes | None = None,
        siblings: Sequence["Session"] = (),
    ) -> None:
        self._limits = limits
        self._siblings = siblings
        self._next_look = time.monotonic() + _TICK_SECONDS
        self._group: ControlGroup | None = None
        self._buffer = b""
        self.output = bytearray()
        self.started = time.monotonic()
        self._deadline = self.started + _START_SECONDS
        uid = (1 << 30) + secrets.randbelow(1 << 29) if launcher.drops_root else None
        job = {**job, "limits": {"rlimits": limits.rlimits(), "uid": uid}}
        try:
            self._launch(launcher, job, stdin)
        except OSError as error:
            raise SessionEnded(
                Outcome.INFRA_ERROR, f"the sandbox did not start: {error}"
            ) from error
        self.started = time.monotonic()
        self._deadline = self.started + limits.wall_seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one message and wait for the answer to it."""
        self.send(message)
        return self.receive()

    def send(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            self._channel.settimeout(self._look())
            try:
                data = data[self._channel.send(data) :]
            except TimeoutError:
                continue
            except OSError:  # `receive` finds out why nobody reads any more
                return

    def receive(self) -> dict[str, Any]:
        """The next message. Raises SessionEnded when there will be none."""
        while b"\n" not in self._buffer:
            if len(self._buffer) > self._limits.output_bytes:
                raise SessionEnded(Outcome.LIMIT, "a value larger than output_bytes")
            chunk = self._wait_for_bytes()
            if not chunk:
                raise self._ended()
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return json_object(line)
        except ValueError:
            raise SessionEnded(Outcome.INCORRECT, "a message that is not one") from None

    def finish(self) -> tuple[int, str]:
        """Wait for the process to end by itself: its exit status and the error it reported."""
        reported = b""
        while chunk := self._wait_for_bytes():
            reported = (reported + chunk)[:_STDERR_TAIL]
        while (status := self._status()) is None:
            self._look()
            time.sleep(_EXIT_POLL_SECONDS)
        self._drain()
        outcome, detail = _explain(status, self._limits, self.seconds)
        if outcome is not Outcome.INCORRECT:
            raise SessionEnded(outcome, detail)
        return status, reported.decode(errors="replace").strip()

    def close(self) -> None:
        """Kill whatever is left, and return when it is gone."""
        if self._status() is None and kill_children(self._process.pid):
            # The kernel ends a namespace before its first process counts as dead, and bubblewrap
            # ends after that: when it has been waited for, nothing is left.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_KILL_SECONDS)
        if self._process.returncode is None:
            # The group id stays ours until its leader is reaped, so kill first, then wait.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._group is not None:
            self._group.close()
        self._channel.close()
        if self._stdout is not None:
            self._stdout.close()

    def _launch(self, launcher: Launcher, job: dict[str, Any], stdin: bytes | None) -> None:
        """Start the process, send it its job and hear that it is ready."""
        ours, theirs = socket.socketpair()
        self._channel = ours
        with theirs, _read_only(stdin) as feed, tempfile.TemporaryFile() as errors:
            command, extra = launcher.command(theirs.fileno(), self._limits)
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=feed,
                    stdout=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                    stderr=errors,
                    pass_fds=[theirs.fileno(), *extra],
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
            finally:
                for descriptor in extra:
                    os.close(descriptor)
            theirs.close()
            self._stdout = self._process.stdout
            if self._stdout is not None:
                os.set_blocking(self._stdout.fileno(), False)
                # The runner may be another user, and /dev/stdout is opened like a file.
                os.fchmod(self._stdout.fileno(), 0o666)
            try:
                ready = self.request(job) == {"ready": True}
                why = "it said something else"
                if ready:
                    self._confine()
                    self.send({})
            except SiblingEnded:  # untrusted code is at fault, not the machine
                self.close()
                raise
            except SessionEnded as ended:
                ready, why = False, ended.detail
            if not ready:
                self.close()
                errors.seek(0)
                tail = errors.read()[-_STDERR_TAIL:].decode(errors="replace").strip()
                detail = f"the sandbox did not start: {tail or why}"
                raise SessionEnded(Outcome.INFRA_ERROR, detail)

    def _confine(self) -> None:
        """Put the processes, of which none has run untrusted code yet, into a group of their own.

        Without one, `_look` adds up what they use.
        """
        if (parent := parent_group()) is None:
            return
        try:
            processes = self._limits.processes + _BUBBLEWRAPS
            group = ControlGroup(parent, self._limits.memory_bytes, processes)
        except OSError:
            return
        try:
            group.add(descendants(self._process.pid))
            self._group = group
        except OSError:
            group.close()

    def _wait_for_bytes(self) -> bytes:
        """Some bytes of the channel, b"" at its end; limits are watched meanwhile."""
        while True:
            self._channel.settimeout(self._look())
            try:
                return self._channel.recv(1 << 16)
            except TimeoutError:
                if self._status() is not None:
                    return b""
            except ConnectionError:
                return b""

    def _look(self) -> float:
        """Hold the limits, of every session of this run. Seconds until the next look."""
        self._drain()
        now = time.monotonic()
        if now >= self._deadline:
            raise SessionEnded(Outcome.TIMEOUT, f"more than {self._limits.wall_seconds} s")
        if now >= self._next_look:
            self._watch_memory()
            try:
                for session in self._siblings:
                    session._watch_memory()
            except SessionEnded as ended:
                raise SiblingEnded(ended.outcome, ended.detail) from None
            self._next_look = time.monotonic() + _TICK_SECONDS
        return max(0.001, min(_TICK_SECONDS, self._deadline - now))

    def _drain(self) -> None:
        """Take what standard output holds, so that a full pipe never blocks honest code."""
        if self._stdout is None:
            return
        while chunk := self._stdout.read(1 << 16):
            self.output += chunk
            if len(self.output) > self._limits.output_bytes:
                raise SessionEnded(Outcome.LIMIT, "more standard output than output_bytes")

    def _watch_memory(self) -> None:
        if self._group is None and tree_memory(self._process.pid) > self._limits.memory_bytes:
            raise SessionEnded(Outcome.LIMIT, "more resident memory than memory_bytes")

    def _status(self) -> int | None:
        """The exit status as `Popen.returncode` writes it, without reaping; None while it runs."""
        state = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def _ended(self) -> SessionEnded:
        """Why the process closed its channel without an answer."""
        patience = time.monotonic() + 10.0
        while (status := self._status()) is None and time.monotonic() < patience:
            self._look()
            time.sleep(_EXIT_POLL_SECONDS)
        return SessionEnded(*_explain(status, self._limits, self.seconds))


def _explain(status: int | None, limits: Limits, seconds: float) -> tuple[Outcome, str]:
    if status is None:
        return Outcome.INCORRECT, "it closed the channel"
    sent = -status if status < 0 else status - 128
    if sent == signal.SIGXCPU or (sent == signal.SIGKILL and seconds >= limits.cpu_seconds):
        return Outcome.TIMEOUT, f"more than {limits.cpu_seconds} s of CPU time"
    if sent in (signal.SIGKILL, signal.SIGXFSZ):
        return Outcome.LIMIT, f"ended by {signal.Signals(sent).name}"
    if sent in {int(known) for known in signal.Signals}:
        return Outcome.INCORRECT, f"ended by {signal.Signals(sent).name}"
    return Outcome.INCORRECT, f"it exited with status {status} before every call was answered"


@contextlib.contextmanager
def _read_only(data: bytes | None) -> Iterator[IO[bytes] | int]:
    """`data` as something to read and not to write; nothing to read for None."""
    if data is None:
        yield subprocess.DEVNULL
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        os.chmod(file.name, 0o444)  # the runner may be another user, and opens /dev/stdin
        readable = open(file.name, "rb")  # noqa: SIM115 (closed below)
    with readable:
        yield readable
