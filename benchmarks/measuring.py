"""Time and memory of one update, on CUDA or not, and how well two gradients agree."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

CUDA = torch.cuda.is_available()


def timed(
    update: Callable[[], None], *, repeats: int, prepare: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Median seconds, those of Python's garbage collector, and peak memory.

    `prepare` comes before each and is not counted.
    """
    times, collecting = [], []
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats):
        prepare()
        synchronize()
        with collector_time() as collected:
            began = time.perf_counter()
            update()
            synchronize()
            times.append(time.perf_counter() - began)
        collecting.append(sum(collected))
    peak = torch.cuda.max_memory_allocated() / 2**30 if CUDA else None
    return {
        "seconds": statistics.median(times),
        "runs": times,
        "collector_seconds": collecting,
        "peak_gib": peak,
    }


@contextmanager
def collector_time() -> Iterator[list[float]]:
    """Seconds of each garbage collection inside the block."""
    found: list[float] = []
    began = 0.0

    def watch(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            found.append(time.perf_counter() - began)

    gc.callbacks.append(watch)
    try:
        yield found
    finally:
        gc.callbacks.remove(watch)


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def release() -> None:
    """Give memory back before the next measurement."""
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.double(), b.double()) / (a.double().norm() * b.double().norm()))
