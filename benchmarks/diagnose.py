"""What a trace costs: the statistics of its tokens, and reading it.

    python benchmarks/diagnose.py --out results/trace_cost_h200.json        # CUDA, two minutes
    python benchmarks/diagnose.py --cpu --out results/trace_cost_cpu.json   # minutes, 4 GiB

On CUDA: tokens per second and peak memory of `distribution_stats` for a head of H=4096 and
V=151,936 in bfloat16, without and with the five likeliest tokens, against the bare matrix product;
and the error of its columns against float64. On CPU: seconds and peak memory for the paper's
24,086 tokens. Both: reading a trace of a million tokens. Times are medians.
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from environment import environment
from measuring import cuda_milliseconds, cuda_peak_gib, in_own_process

from acpo.head import distribution_stats
from acpo.records import TOKEN_COLUMNS, Trace, TraceWriter

VOCAB, WIDTH = 151_936, 4096
PAPER_TOKENS = 24_086
READ_TOKENS = 1_000_000
NUMBERS = [
    name for name in TOKEN_COLUMNS if name not in ("piece", "top_ids", "top_logps", "top_pieces")
]


def head(rows: int, width: int, device: str, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Hidden states, a head, and tokens drawn from it nine times in ten at its mode."""
    torch.manual_seed(0)
    weight = torch.randn(VOCAB, width, device=device, dtype=dtype) / width**0.5
    tokens = torch.randint(VOCAB, (rows,), device=device)
    lead = 8 + 14 * torch.rand(rows, 1, device=device)
    hidden = (lead * weight[tokens].float() + 0.3 * torch.randn(rows, width, device=device)).to(
        dtype
    )
    strays = torch.rand(rows, device=device) < 0.1
    tokens[strays] = torch.randint(VOCAB, (int(strays.sum()),), device=device)
    return hidden, weight, tokens


def products(hidden: torch.Tensor, weight: torch.Tensor) -> None:
    """The matrix product alone, in the chunks the statistics use."""
    out = torch.empty(8192, VOCAB, device=hidden.device, dtype=torch.float32)
    for part in hidden.split(8192):
        torch.mm(part, weight.t(), out_dtype=torch.float32, out=out[: len(part)])


def measure(rows: int, repeats: int) -> dict[str, Any]:
    hidden, weight, tokens = head(rows, WIDTH, "cuda", torch.bfloat16)
    calls: dict[str, Callable[[], Any]] = {
        "statistics": lambda: distribution_stats(hidden, weight, tokens),
        "with top 5": lambda: distribution_stats(hidden, weight, tokens, top_k=5),
        "matrix product": lambda: products(hidden, weight),
    }
    entry = {}
    for name, call in calls.items():
        taken = cuda_milliseconds(call, repeats)
        entry[name] = {
            "ms": round(taken, 2),
            "tokens_per_second": round(1000 * rows / taken),
            "peak_GiB": round(cuda_peak_gib(call), 3),
        }
        print(f"  N={rows:7d} {name:15s} {json.dumps(entry[name])}", flush=True)
    return entry


def cuda(repeats: int) -> dict[str, Any]:
    table = {}
    for rows in (16_384, 32_768, 65_536, 131_072):
        table[str(rows)] = measure(rows, repeats)
        torch.cuda.empty_cache()
    return {f"H={WIDTH} V={VOCAB} bfloat16": table, "error": accuracy()}


def accuracy() -> dict[str, float]:
    """Largest distance of each column from float64 arithmetic on the same rounded inputs.

    Absolute for logarithms and entropy, relative for the sums.
    """
    hidden, weight, tokens = head(512, WIDTH, "cuda", torch.bfloat16)
    got = distribution_stats(hidden, weight, tokens)
    exact = distribution_stats(hidden.double(), weight.double(), tokens)
    errors = {}
    for name in ("logp", "log_pmax", "entropy", "tail_p2", "tail_p2_logp", "tail_p2_logp2"):
        ours, true = getattr(got, name), getattr(exact, name)
        distance = (ours - true).abs()
        errors[name] = float((distance / true.abs() if name.startswith("tail") else distance).max())
    errors["modes_that_differ"] = int((got.mode != exact.mode).sum())
    print(f"  error {json.dumps(errors)}", flush=True)
    return errors


def cpu_statistics(width: int, rows: int) -> dict[str, Any]:
    hidden, weight, tokens = head(rows, width, "cpu", torch.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    distribution_stats(hidden, weight, tokens, top_k=5)
    taken = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": round(taken, 1),
        "tokens_per_second": round(rows / taken),
        "peak_GiB": round(peak / 2**20, 2),
        "peak_of_inputs_GiB": round(before / 2**20, 2),
        "threads": torch.get_num_threads(),
    }


def reading() -> dict[str, Any]:
    """Seconds to open a trace of a million tokens and have its columns in memory."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path, length, part = Path(folder) / "trace", 500, 100_000
        with TraceWriter(path, {"model": "benchmark"}) as writer:
            for step in range(READ_TOKENS // part):
                rows = [
                    {
                        "prompt_id": str(i // 8),
                        "sample": i % 8,
                        "tokens": length,
                        "completion": "x" * length,
                    }
                    for i in range(part // length)
                ]
                columns: dict[str, Any] = {name: rng.random(part) for name in NUMBERS}
                for name in ("token_id", "start", "end", "mode_id"):
                    columns[name] = rng.integers(0, VOCAB, part)
                columns["is_mode"] = rng.random(part) < 0.9
                columns["piece"] = rng.choice(
                    np.array([b"the", b" cat", b"\xf0\x9f"], dtype=object), part
                )
                columns["top_ids"] = rng.integers(0, VOCAB, (part, 5))
                columns["top_logps"] = -rng.random((part, 5))
                columns["top_pieces"] = rng.choice(np.array([b"a", b"bc"], dtype=object), (part, 5))
                writer.append(rows, columns, step=step)

        def read(*names: str) -> float:
            times = []
            for _ in range(5):
                start = time.perf_counter()
                trace = Trace.open(path)
                assert trace.rollouts.num_rows == READ_TOKENS // length
                table = trace.table(*names)
                for name in names:
                    if name in NUMBERS:
                        table[name].to_numpy().sum()
                times.append(time.perf_counter() - start)
            return round(statistics.median(times), 4)

        size = sum(file.stat().st_size for file in path.iterdir())
        result = {
            "tokens": READ_TOKENS,
            "bytes": size,
            "seconds_every_number": read(*NUMBERS),
            "seconds_every_column": read(*TOKEN_COLUMNS),
        }
    print(f"  reading {json.dumps(result)}", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="write the report here")
    parser.add_argument("--cpu", action="store_true", help="time the CPU path instead")
    parser.add_argument("--width", type=int, default=WIDTH, help="H of the CPU head")
    parser.add_argument("--rows", type=int, default=PAPER_TOKENS, help="tokens of the CPU case")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"environment": environment("torch", "numpy", "pyarrow"), "seed": 0}
    if arguments.cpu:
        width, rows = arguments.width, arguments.rows
        found = in_own_process("diagnose", f"cpu_statistics({width}, {rows})")
        report["statistics"] = {f"N={rows} H={width} V={VOCAB}": found}
        print(json.dumps(report["statistics"]), flush=True)
    else:
        report["statistics"] = cuda(arguments.repeats)
    report["reading"] = reading()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
