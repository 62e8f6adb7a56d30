"""Pools: order, backpressure, threads, asyncio, and workers that die."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from acpo.errors import ACPOError
from acpo.linefile import Closing
from acpo.verify import MathPool, Outcome, Verdict
from acpo.verify.mathworker import serve_spawns
from acpo.verify.pool import Pool, once_per_process
from acpo.verify.proctree import children, descendants

SLOW = ("\\boxed{\\int (x+y+z+w)^{900} dx}", "x+1")


class Counting(Closing):
    """A worker that records how many jobs run at once."""

    running = 0
    most = 0
    lock = threading.Lock()

    def __call__(self, job):
        with Counting.lock:
            Counting.running += 1
            Counting.most = max(Counting.most, Counting.running)
        time.sleep(0.01)
        with Counting.lock:
            Counting.running -= 1
        if isinstance(job, BaseException):
            raise job
        return Verdict(Outcome.CORRECT, str(job))

    def close(self):
        pass


def test_results_keep_their_order_and_workers_their_number():
    with Pool(Counting, 3) as pool:
        futures = [pool.submit(number) for number in range(60)]
        details = [future.result().detail for future in futures]
    assert details == [str(index) for index in range(60)]
    assert Counting.most == 3


def test_submit_blocks_when_the_queue_is_full():
    gate = threading.Event()

    class Waiting(Counting):
        def __call__(self, job):
            gate.wait(10)
            return super().__call__(job)

    submitted = []
    with Pool(Waiting, 1) as pool:
        thread = threading.Thread(
            target=lambda: [submitted.append(pool.submit(n)) for n in range(20)]
        )
        thread.start()
        time.sleep(0.3)
        waiting = len(submitted)
        gate.set()
        thread.join(10)
        assert len(submitted) == 20
    assert waiting <= 6


def test_async_submission_never_blocks_the_loop():
    async def main(pool):
        beats = 0

        async def heart():
            nonlocal beats
            while True:
                await asyncio.sleep(0.005)
                beats += 1

        pulse = asyncio.create_task(heart())
        verdicts = await asyncio.gather(*(pool.verify_async(n, None) for n in range(100)))
        pulse.cancel()
        return verdicts, beats

    class AnyPool(Pool):
        def job(self, text, reference):
            return text

    with AnyPool(Counting, 2) as pool:
        verdicts, beats = asyncio.run(main(pool))
    assert [verdict.detail for verdict in verdicts] == [str(n) for n in range(100)]
    assert beats > 10


def test_a_bug_reaches_the_caller_and_not_the_neighbours():
    with Pool(Counting, 1) as pool:
        broken, fine = pool.submit(ZeroDivisionError()), pool.submit("fine")
        assert fine.result().correct
        with pytest.raises(ZeroDivisionError):
            broken.result()


def test_closed_and_empty_pools_are_refused():
    pool = Pool(Counting, 1)
    pool.close()
    pool.close()
    with pytest.raises(ACPOError, match="make a new one"):
        pool.submit(1)
    with pytest.raises(ACPOError, match="workers=0"):
        Pool(Counting, 0)


@pytest.fixture
def processes():
    """What the test started: (servers, workers). Other tests of this process may have more."""
    before = set(descendants(os.getpid()))

    def started() -> tuple[list[int], list[int]]:
        servers = [pid for pid in children(os.getpid()) if pid not in before]
        return servers, [worker for server in servers for worker in children(server)]

    return started


def test_a_worker_killed_from_outside_is_an_infra_error_and_replaced(processes):
    with MathPool(1) as pool:
        assert pool.verify("\\boxed{x+x}", "2x").result().correct
        future = pool.verify(*SLOW)
        time.sleep(0.5)
        [worker] = processes()[1]
        os.kill(worker, signal.SIGKILL)
        verdict = future.result(timeout=30)
        assert verdict.outcome is Outcome.INFRA_ERROR
        assert verdict.reward() is None
        assert pool.verify("\\boxed{x+x}", "2x").result().correct


def test_a_dead_server_is_started_again(processes):
    with MathPool(1) as pool:
        assert pool.verify("\\boxed{x+x}", "2x").result().correct
        [server] = processes()[0]
        os.kill(server, signal.SIGKILL)
        outcomes = [pool.verify("\\boxed{x+x}", "2x").result().outcome for _ in range(3)]
        assert outcomes[-1] is Outcome.CORRECT
        assert set(outcomes) <= {Outcome.CORRECT, Outcome.INFRA_ERROR}


def test_many_threads_share_one_pool(pool):
    found = []

    def ask(number):
        text = f"\\boxed{{{number}x+{number}}}"
        found.append(pool.verify(text, f"{number}(x+1)").result().correct)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2, 42)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 40


def test_math_pool_from_asyncio(pool):
    async def main():
        jobs = [(f"\\boxed{{{n}x+{n}}}", f"{n}(x+1)") for n in range(2, 42)]
        return await asyncio.gather(*(pool.verify_async(*job) for job in jobs))

    assert all(verdict.correct for verdict in asyncio.run(main()))


def test_closing_leaves_no_process(processes):
    with MathPool(2) as pool:
        pool.verify("\\boxed{x+x}", "2x").result()
        servers, workers = processes()
        assert len(servers) == 1
        assert workers
    assert not [pid for pid in (*servers, *workers) if os.path.exists(f"/proc/{pid}")]


def test_workers_die_with_their_parent():
    """Even a parent killed without warning leaves nothing behind, hang included."""
    script = (
        "import os, time\nfrom acpo.verify import MathPool\n"
        "pool = MathPool(1, cpu_seconds=60.0)\n"
        "pool.verify('\\\\boxed{x+x}', '2x').result()\n"
        f"pool.verify({SLOW[0]!r}, {SLOW[1]!r})\n"
        "time.sleep(0.3)\nprint('up', flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"up\n"
    children = descendants(parent.pid)[1:]
    assert len(children) >= 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{p}") for p in children):
        time.sleep(0.05)
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def test_shared_pool_survives_a_fork():
    """A forked data loader must not talk to its parent's workers."""
    script = (
        "import os\nfrom acpo.verify import verify_math\n"
        "assert verify_math('\\\\boxed{x+x}', '2x').correct\n"
        "pid = os.fork()\n"
        "ok = verify_math('\\\\boxed{x+x}', '2x').correct\n"
        "if pid == 0: os._exit(0 if ok else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and ok\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_a_thread_that_waits_holds_no_job():
    """Rows of code problems may be large, and a machine have many threads."""
    job = threading.Event()
    kept = weakref.ref(job)
    with Pool(lambda: nullcontext(lambda job: Verdict(Outcome.CORRECT)), 2) as made:
        assert made.submit(job).result().correct
        del job
        deadline = time.monotonic() + 10
        while kept() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert kept() is None


def test_threads_that_ask_at_once_share_one_pool():
    made = []

    class Slow(Closing):
        def __init__(self):
            time.sleep(0.05)
            made.append(self)

        def close(self):
            pass

    shared = once_per_process(Slow)
    with ThreadPoolExecutor(8) as threads:
        got = set(threads.map(lambda _: shared(), range(8)))
    assert got == set(made) and len(made) == 1


def test_a_worker_server_whose_parent_ended_ends_without_a_word():
    """It printed a traceback into the terminal in which somebody had pressed Ctrl-C."""
    ours, theirs = socket.socketpair()
    ours.close()
    serve_spawns(theirs.detach(), 1 << 30, lambda job: None)
