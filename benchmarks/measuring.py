"""Time and memory of a call, on CUDA or not, how well two gradients agree, and a tokenizer."""

import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
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
        with collector_time() as collected:
            began = clock()
            update()
            times.append(clock() - began)
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


def clock() -> float:
    """Seconds, once the device has done what it was told."""
    if CUDA:
        torch.cuda.synchronize()
    return time.perf_counter()


def cuda_milliseconds(call: Callable[[], Any], repeats: int) -> float:
    """Median of back-to-back calls after half a second of the same, by CUDA's events."""
    start = clock()
    while clock() - start < 0.5:
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def cuda_peak_gib(call: Callable[[], Any]) -> float:
    """Memory a call needs beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def in_own_process(module: str, call: str) -> Any:
    """What a call of a benchmark's returns in a process of its own, whose peak is the call's."""
    place = f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    script = f"{place}; import {module}; print(json.dumps({module}.{call}))"
    command = [sys.executable, "-c", script]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def word_tokenizer(count: int) -> Any:
    """Words w0 (padding), w1 (the end), w2, ..., each a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1")


def release() -> None:
    """Give memory back before the next measurement."""
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.double(), b.double()) / (a.double().norm() * b.double().norm()))
