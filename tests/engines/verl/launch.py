"""Runs a worker program as several processes that find each other over gloo."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(program: str, folder: Path, *, world: int, timeout: float = 240) -> list[Any]:
    """Run `engines.verl.<program>` in `world` processes; what each saved as `rank<i>.pt`."""
    port = str(free_port())
    processes = []
    for rank in range(world):
        env = os.environ | ENVIRONMENT
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, "-m", f"engines.verl.{program}", str(folder)]
        log = (folder / f"{program}{world}_{rank}.log").open("w")
        processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    logs = [(folder / f"{program}{world}_{rank}.log").read_text() for rank in range(world)]
    assert not any(codes), "\n".join(log[-4000:] for log in logs)
    return [
        torch.load(folder / f"{program}{world}_{rank}.pt", weights_only=False)
        for rank in range(world)
    ]
