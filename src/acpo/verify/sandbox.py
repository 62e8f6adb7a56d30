"""Where solutions run: bubblewrap, or, asked for by name, this machine unprotected."""

import functools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from acpo.errors import ACPOError, ACPOWarning
from acpo.linefile import Closing
from acpo.verify import runner
from acpo.verify.seccomp import seccomp_filter
from acpo.verify.session import Launcher, Limits, Session, SessionEnded, SiblingEnded
from acpo.verify.verdict import Outcome

RUNNER = Path(runner.__file__)
OLDEST_BWRAP = (0, 8, 0)
INSTALL = "install it with `apt-get install bubblewrap` (or dnf, pacman, apk)"
_RUNNER_INSIDE = "/runner.py"
_TMP_PER_FILE = 4
_STARTS = 3
LOADED = {"loaded": True}
_PROBE = "import collections, heapq, itertools, math, re, typing"
_LIBRARY_ROOTS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")


class SandboxUnavailableError(ACPOError):
    """Untrusted code cannot be confined on this machine."""


Reply = dict[str, Any]


class Execution(NamedTuple):
    """What became of a solution: what it said last, and why it ended early if it did.

    `calls` counts those that a test in `assert_mode` made; None where no test ran.
    """

    reply: Reply | None
    ended: SessionEnded | None
    seconds: float
    calls: int | None = None


class ProgramRun(NamedTuple):
    """What one run of a script printed, and how it ended."""

    output: bytes
    status: int
    error: str
    ended: SessionEnded | None
    seconds: float


class LocalBackend:
    """Runs solutions on this machine through a `Launcher`."""

    def __init__(self, launcher: Launcher, limits: Limits | None = None) -> None:
        self._launcher = launcher
        self.limits = limits or Limits()

    def run_calls(
        self, sources: Sequence[str], expressions: Sequence[str], accept: Callable[[Reply], bool]
    ) -> Execution:
        """Load `sources` into one namespace, then evaluate expressions in it, one by one.

        Every reply goes to `accept` and is not kept; where that says no, the rest is left out.
        """
        ended = None
        with _Sessions(self._launcher, self.limits) as sessions:
            try:
                session = sessions.open({"mode": "calls", "sources": list(sources)})
                reply = session.receive()
                if reply != LOADED:
                    accept(reply)
                    expressions = ()
                for expression in expressions:
                    if not accept(session.request({"expression": expression})):
                        break
            except SessionEnded as error:
                ended = error
            return Execution(None, ended, sessions.seconds)

    def run_program(self, source: str, stdin: bytes, within: float) -> ProgramRun:
        """Run `source` as a script, for `within` seconds at most."""
        limits = replace(
            self.limits,
            wall_seconds=min(self.limits.wall_seconds, within),
            shared_memory_bytes=self.limits.file_bytes,
        )
        with _Sessions(self._launcher, limits) as sessions:
            try:
                session = sessions.open({"mode": "program", "sources": [source]}, stdin)
                status, error = session.finish()
            except SessionEnded as ended:
                return ProgramRun(b"", 1, "", ended, sessions.seconds)
            return ProgramRun(bytes(session.output), status, error, None, sessions.seconds)

    def run_asserts(self, sources: Sequence[str], test: dict[str, Any], nonce: str) -> Execution:
        """Run a test in a sandbox of its own, the solution in another, and carry the calls."""
        calls: int | None = None
        with _Sessions(self._launcher, self.limits) as sessions:
            try:
                solution = sessions.open({"mode": "calls", "sources": list(sources)})
                message = solution.receive()
                if message == LOADED:
                    tester = sessions.open({"mode": "asserts", "nonce": nonce, **test})
                    message, calls = tester.receive(), 0
                    while "call" in message:
                        calls += 1
                        message = tester.request(solution.request(message))
            except SessionEnded as ended:
                return Execution(None, ended, sessions.seconds)
            return Execution(message, None, sessions.seconds, calls)


class _Sessions(Closing):
    """The sessions of one run, closed together."""

    def __init__(self, launcher: Launcher, limits: Limits) -> None:
        self._launcher = launcher
        self._limits = limits
        self._opened: list[Session] = []

    def open(self, job: dict[str, Any], stdin: bytes | None = None) -> Session:
        """A started session. No untrusted code has run in one that failed to start: try again."""
        for attempt in range(_STARTS):
            try:
                session = Session(self._launcher, self._limits, job, stdin, self._opened)
                self._opened.append(session)
                return session
            except SessionEnded as ended:
                if attempt == _STARTS - 1 or isinstance(ended, SiblingEnded):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    @property
    def seconds(self) -> float:
        return self._opened[0].seconds if self._opened else 0.0

    def close(self) -> None:
        for session in self._opened:
            session.close()


class BubblewrapLauncher:
    """Starts runners in fresh namespaces; docs/verify.md says what that holds and what not."""

    def __init__(self) -> None:
        self._bwrap = _find_bwrap()
        self.drops_root = os.geteuid() == 0

    def command(self, channel: int, limits: Limits) -> tuple[list[str], list[int]]:
        extra = []
        seccomp = []
        if program := seccomp_filter():
            descriptor = os.memfd_create("seccomp")
            os.write(descriptor, program)
            os.lseek(descriptor, 0, os.SEEK_SET)
            extra.append(descriptor)
            seccomp = ["--seccomp", str(descriptor)]
        if self.drops_root:
            # Root is not bound by RLIMIT_NPROC, so the runner gives root up. It needs these two.
            identity = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            identity = ["--unshare-user", "--disable-userns", "--uid", "65534", "--gid", "65534"]
        writable = ["--size", str(limits.file_bytes * _TMP_PER_FILE), "--perms", "1777"]
        shared = []
        if size := limits.shared_memory_bytes:
            shared = ["--size", str(size), "--perms", "1777", "--tmpfs", "/dev/shm"]
        command = [
            self._bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
            "--unshare-cgroup-try", "--die-with-parent", "--new-session", *identity,
            *_python_mounts(), "--ro-bind", str(RUNNER), _RUNNER_INSIDE, "--proc", "/proc",
            "--dev", "/dev", *writable, "--tmpfs", "/tmp", *shared, "--remount-ro", "/dev",
            "--remount-ro", "/", "--hostname", "sandbox", "--clearenv", "--chdir", "/tmp", *seccomp,
            "--", _interpreter(), "-I", "-S", "-B", _RUNNER_INSIDE, str(channel),
        ]  # fmt: skip
        return command, extra


class UnsafeLauncher:
    """Starts runners as plain processes: rlimits stand between them and this machine."""

    drops_root = False

    def command(self, channel: int, limits: Limits) -> tuple[list[str], list[int]]:
        return [sys.executable, "-I", "-S", "-B", str(RUNNER), str(channel)], []


def sandbox(limits: Limits | None = None) -> LocalBackend:
    """The bubblewrap sandbox of this machine.

    Raises:
        SandboxUnavailableError: bubblewrap is missing, too old, or not allowed to work.
    """
    launcher = BubblewrapLauncher()
    _probe(launcher)
    return LocalBackend(launcher, limits)


def unsafe_local(limits: Limits | None = None) -> LocalBackend:
    """No sandbox at all. Model output runs with your rights: only for code you trust."""
    warnings.warn(
        "unsafe_local runs model output on this machine with your user's rights: it can read and "
        "delete your files and use the network",
        ACPOWarning,
        stacklevel=2,
    )
    return LocalBackend(UnsafeLauncher(), limits)


def _interpreter() -> str:
    """The real interpreter: a virtual environment holds links to it."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


@functools.cache
def _python_mounts() -> tuple[str, ...]:
    """Read-only binds of the interpreter, its standard library and the shared libraries."""
    python = _interpreter()
    wanted = dict.fromkeys([*_LIBRARY_ROOTS, "/etc/ld.so.cache", "/usr/share/zoneinfo"])
    if python.startswith("/nix/"):
        wanted["/nix/store"] = None
    stdlib = Path(sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}))
    for path in (stdlib.parent, Path(sys.base_prefix, "lib"), python):
        if not any(str(path).startswith(f"{root}/") for root in wanted):
            wanted[str(path)] = None
    mounts: list[str] = []
    for path in wanted:
        if os.path.islink(path) and path in _LIBRARY_ROOTS:
            mounts += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            # bubblewrap makes missing parents for their owner alone; the runner is someone else.
            for parent in reversed(Path(path).parents[:-1]):
                mounts += ["--perms", "0755", "--dir", str(parent)]
            mounts += ["--ro-bind", os.path.realpath(path), path]
    for path in _installed_packages(tuple(wanted)):
        mounts += ["--tmpfs", path, "--remount-ro", path]
    return tuple(mounts)


def _installed_packages(mounted: Sequence[str]) -> list[str]:
    """The folders of installed packages below what is mounted; an empty one hides each."""
    found = []
    for root in mounted:
        for pattern in ("", "python3*/", "*/python3*/"):
            for name in ("site-packages", "dist-packages"):
                found += [str(path) for path in Path(root).glob(pattern + name) if path.is_dir()]
    resolved = {os.path.realpath(path): path for path in found if path.startswith("/")}
    return sorted(path for path in resolved.values() if not os.path.islink(path))


def _find_bwrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxUnavailableError(
            f"bubblewrap (bwrap) is not installed; model output is not run without it: {INSTALL}"
        )
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    version = tuple(int(part) for part in re.findall(r"\d+", said)[:3])
    if version < OLDEST_BWRAP:
        oldest = ".".join(map(str, OLDEST_BWRAP))
        raise SandboxUnavailableError(f"{path} is {said.strip()!r}; {oldest} or newer is needed")
    return path


def _probe(launcher: BubblewrapLauncher) -> None:
    """One empty run, so that a sandbox that cannot work is refused before the first job."""
    try:
        session = Session(launcher, Limits(), {"mode": "calls", "sources": [_PROBE]})
        loaded = session.receive()
        session.close()
        if loaded != LOADED:
            raise SessionEnded(Outcome.INFRA_ERROR, f"its Python is not whole: {loaded}")
    except SessionEnded as ended:
        raise SandboxUnavailableError(
            f"bubblewrap cannot start a sandbox here ({ended.detail}). User namespaces may be off: "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu) or "
            "`sysctl user.max_user_namespaces=10000`; in Docker, run with --privileged or "
            "--security-opt seccomp=unconfined --cap-add SYS_ADMIN"
        ) from None
