"""The processes in which answers meet SymPy. Run as a child, never imported by the parent.

One server process imports math-verify once and forks a worker whenever it is told to, so that a
killed worker is replaced in milliseconds. Every job runs under a CPU timer of the kernel whose
expiry ends the process: no Python code has to run for it, so nothing SymPy does can block it.
"""

import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from acpo.verify.equal import clear_caches, compare
from acpo.verify.evaluate import MAX_BITS, MAX_INTEGER_ARGUMENT, TooLarge
from acpo.verify.spawner import KILL, SPAWN

RECYCLE_AFTER_JOBS = 5_000
RECYCLE_ABOVE_BYTES = 600 << 20

Judge = Callable[[dict[str, Any]], dict[str, Any]]
"""From a job to what is said of it."""

# What a worker inherits ready: mpmath, and math-verify, whose parser learns its grammar as it goes.
_WARM_UP = (
    ("-\\frac{3\\sqrt{2}}{4}", "x+0.5"),
    ("\\sum_{k=1}^{3} \\frac{k}{2}", "3"),
    ("\\int_0^1 x^2 dx", "\\frac{1}{3}"),
    ("\\lim_{x \\to 0} \\frac{\\sin x}{x}", "1"),
    ("2\\begin{pmatrix}1\\\\x\\end{pmatrix}", "\\begin{pmatrix}2\\\\2x\\end{pmatrix}"),
)


def guard_sympy() -> None:
    """Make SymPy refuse powers, factorials and binomials too large to ever be an answer.

    The CPU timer would stop them as well, a second or two later.
    """
    from sympy import Integer, Rational, binomial, factorial

    def power_guard(kind: type) -> None:
        original = kind._eval_power  # type: ignore[attr-defined]

        def guarded(self: Any, exponent: Any) -> Any:
            if isinstance(exponent, Integer):
                bits = max(abs(int(self.p)).bit_length(), int(self.q).bit_length())
                if bits > 1 and abs(int(exponent)) * bits > MAX_BITS:
                    raise TooLarge(f"a power of more than {MAX_BITS} bits")
            return original(self, exponent)

        kind._eval_power = guarded  # type: ignore[attr-defined]

    def eval_guard(function: type, largest: int) -> None:
        original = function.eval.__func__  # type: ignore[attr-defined]

        def guarded(cls: type, *args: Any) -> Any:
            if any(isinstance(arg, Integer) and abs(int(arg)) > largest for arg in args):
                raise TooLarge(f"{function.__name__} of a number above {largest}")
            return original(cls, *args)

        function.eval = classmethod(guarded)  # type: ignore[attr-defined]

    power_guard(Integer)
    power_guard(Rational)
    eval_guard(factorial, MAX_INTEGER_ARGUMENT)
    eval_guard(binomial, MAX_INTEGER_ARGUMENT)


def serve_jobs(channel: socket.socket, judge: Judge) -> None:
    """Answer jobs until the parent closes the channel or this process has grown too old."""
    reader = channel.makefile("rb")
    for _ in range(RECYCLE_AFTER_JOBS):
        line = reader.readline()
        if not line:
            return
        job = json.loads(line)
        before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        signal.setitimer(signal.ITIMER_PROF, job["cpu_seconds"])
        reply = judge(job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before
        channel.sendall(json.dumps({**reply, "seconds": seconds}).encode() + b"\n")
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if peak_kib * 1024 > RECYCLE_ABOVE_BYTES:
            return


def _fork_worker(channel: int, control: socket.socket, memory_bytes: int, judge: Judge) -> int:
    pid = os.fork()
    if pid:
        os.close(channel)
        return pid
    status = 1
    try:
        control.close()
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        # Held until the process ends: a channel closed before would hide its exit status.
        held = socket.socket(fileno=channel)
        serve_jobs(held, judge)
        status = 0
    except (OSError, MemoryError, RecursionError):
        pass
    finally:
        os._exit(status)


def _reap(pid: int) -> int:
    try:
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    except (ProcessLookupError, ChildProcessError):
        return 0


def prepare_server() -> None:
    """Be quiet, and let the CPU timer end whatever is forked from here."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})


def serve_spawns(control_fd: int, memory_bytes: int, judge: Judge) -> None:
    """Say that all is ready; fork and reap workers until the parent closes the channel."""
    control = socket.socket(fileno=control_fd)
    children: set[int] = set()
    try:
        control.sendall(b"ready\n")
        while True:
            select.select([control], [], [])
            message, channels, _, _ = socket.recv_fds(control, 64, 1)
            if not message:
                return
            if message[:1] == SPAWN:
                pid = _fork_worker(channels[0], control, memory_bytes, judge)
                children.add(pid)
                control.sendall(b"%d\n" % pid)
            elif message[:1] == KILL and int(message[1:]) in children:
                children.discard(int(message[1:]))
                control.sendall(b"%d\n" % _reap(int(message[1:])))
    except ConnectionError:  # the parent has ended
        pass
    finally:
        for pid in children:
            _reap(pid)


def main(control_fd: int, memory_bytes: int) -> None:
    """Import and warm math-verify, then serve."""
    prepare_server()
    sys.setrecursionlimit(5_000)
    guard_sympy()
    for answer, gold in _WARM_UP:
        compare(answer, gold)
    clear_caches()
    gc.collect()
    gc.freeze()
    serve_spawns(control_fd, memory_bytes, lambda job: compare(job["answer"], job["gold"]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
