"""Runs a worker program as several processes that find each other over gloo.

`python -m engines.verl.launch PROGRAM FOLDER WORLD...` is the parent of the ranks: importing verl
takes longer than most of what they do, so that one process imports it and forks them.
"""

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

TESTS = Path(__file__).resolve().parents[2]

ENVIRONMENT = {
    "VERL_USE_EXTERNAL_MODULES": "engines.verl.cpu_platform",
    "VERL_PLATFORM": "cpu",
    # verl registers its engines for GPUs only; they run on a CPU all the same.
    "VERL_ENGINE_DEVICE": "cuda",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(TESTS)])),
    "PYTHONWARNINGS": "ignore",
}


def free_port() -> int:
    """Below those the kernel hands out, so that nobody is given it before it is bound."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


STALLED = 300.0
"""Seconds without progress after which processes wait for each other for ever."""
WORK = 1800.0
"""Processor seconds after which they run in a circle."""


def work(processes: list[subprocess.Popen[bytes]]) -> float:
    """Processor seconds of those that run; on a busy machine they pass more slowly."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(process.pid)
            for running in (parent, *parent.children()):
                times = running.cpu_times()
                total += times.user + times.system
    return total


def wait_for(
    processes: list[subprocess.Popen[bytes]],
    progress: Callable[[], float] | None = None,
    *,
    stalled: float = STALLED,
    limit: float = WORK,
) -> list[int]:
    """Exit statuses, when all have ended or one has failed.

    Args:
        processes: one group.
        progress: a number that grows as long as something happens (default: their work).
        stalled: seconds without progress that are an error.
        limit: what the number may reach.
    """
    done, since = -1.0, time.monotonic()
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):  # the others would wait for it
            break
        now = progress() if progress else work(processes)
        if now - done > 0.05:
            done, since = now, time.monotonic()
        waited = time.monotonic() - since
        assert waited < stalled, f"no progress for {waited:.0f} s, after {done:.0f}"
        assert done < limit, f"not done after {done:.0f}"
        time.sleep(0.2)
    return [process.poll() or 0 for process in processes]


def run_ranks(
    program: str, folder: Path, *worlds: int, modules: tuple[str, ...] = ()
) -> dict[int, list[Any]]:
    """Run `engines.verl.<program>`; what each process saved, by the number of processes.

    Args:
        program: the module's name.
        folder: of its job, its log and its results.
        worlds: how many processes, once for each number.
        modules: imported by verl before it loads plugins.
    """
    env = os.environ | ENVIRONMENT
    env["VERL_USE_EXTERNAL_MODULES"] = ",".join([env["VERL_USE_EXTERNAL_MODULES"], *modules])
    command = [sys.executable, "-m", "engines.verl.launch", program, str(folder)]
    command += map(str, worlds)
    file = folder / f"{program}.log"
    with file.open("w") as log:
        parent = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        (code,) = wait_for([parent])
    finally:
        parent.kill()
    assert not code, file.read_text()[-8000:]
    return {
        world: [
            torch.load(folder / f"{program}{world}_{rank}.pt", weights_only=False)
            for rank in range(world)
        ]
        for world in worlds
    }


def run_rank(rank: int, main: Callable[[Path], None], folder: Path, world: int, port: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    main(folder)


if __name__ == "__main__":
    program, folder, *worlds = sys.argv[1:]
    main = importlib.import_module(f"engines.verl.{program}").main
    for world in map(int, worlds):
        torch.multiprocessing.start_processes(
            run_rank,
            args=(main, Path(folder), world, str(free_port())),
            nprocs=world,
            start_method="fork",
        )
