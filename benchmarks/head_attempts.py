"""Three ways to bring the head nearer to its floor, timed beside it in one run on CUDA.

    python benchmarks/head_attempts.py --out results/head_attempts_h200.json

- chunks: smaller chunks of logits, down to one that fits the cache whole;
- capped: the row kernel on fewer programs, each of which takes row after row, so that all rows in
  flight stay in the cache between the two readings of their logits;
- streams: the row step of a chunk under the products of the chunk before, on a stream of its own.

What wins moves into `acpo.head`; what does not, stays here as a figure.
"""

import argparse
import importlib.util
import inspect
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from environment import environment

from acpo.head import fused, products, triton
from acpo.head.kernels import rows as kernels
from head import VOCAB, Data, Trial, floor, ours

SHAPES = ((8192, 4096), (16384, 1024))
CHUNKS = (64, 128, 512, 2048, 4096, 8192)
CAPS = ((132, "half"), (99, "half"), (66, "half"), (66, "all"), (44, "all"))
OWN_LAUNCH = kernels.row_kernel


def capped_kernel(keep: str) -> Any:
    """The row kernel in a loop over rows; `keep`: how much of a row the cache is asked to hold."""
    text = inspect.getsource(kernels)
    text = text.replace("def row_kernel(\n", "def one_row(\n    row,\n", 1)
    text = text.replace("    row = tl.program_id(0).to(tl.int64)\n", "", 1)
    if keep == "all":
        text = text.replace("half = tl.cdiv(V, 2 * BLOCK) * BLOCK", "half = 0", 1)
    names = [
        "Z",
        "z_stride",
        "G",
        "g_stride",
        "TOKEN",
        "stats",
        "c",
        "columns",
        "numbers",
        "V",
        "scaling",
        "align_tol",
    ]
    constants = ["STAGES", "KIND", "SOFTCAP", "BLOCK"]
    given = "".join(f"    {n},\n" for n in names) + "    count,\n"
    given += "".join(f"    {n}: tl.constexpr,\n" for n in constants)
    passed = ", ".join(["tl.full((), 0, tl.int64) + row", *names, *constants])
    text += f"\n\n@triton.jit\ndef row_kernel(\n{given}):\n"
    text += "    for row in range(tl.program_id(0), count, tl.num_programs(0)):\n"
    text += f"        one_row({passed})\n"
    path = Path(tempfile.mkdtemp()) / f"capped_{keep}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.row_kernel


class Capped:
    """Stands in for the row kernel."""

    def __init__(self, programs: int, keep: str) -> None:
        self.programs, self.kernel = programs, capped_kernel(keep)

    def __getitem__(self, grid: tuple[int]) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            self.kernel[(min(self.programs, grid[0]),)](*args, grid[0], **options)

        return launch


def streamed_pass(
    head: products.Head, step: Any, wanted: products.Wanted, *, sparse: bool = False
) -> products.Gradients:
    """`run_pass` with two buffers: rows of one chunk run under the products of another."""
    gradients = products.Gradients(head, wanted, sparse=sparse)
    main, other = torch.cuda.current_stream(), side_stream()
    rows, size = head.hidden.shape[0], head.chunk_rows()
    buffers = [
        head.hidden.new_empty(size, head.weight.shape[0], dtype=head.logits_dtype) for _ in range(2)
    ]
    with torch.autocast("cuda", enabled=False):
        waiting: tuple[slice, Any, torch.cuda.Event] | None = None
        for index, start in enumerate(range(0, rows, size)):
            span = slice(start, min(start + size, rows))
            raw = buffers[index % 2][: span.stop - start]
            products.matmul(head.hidden[span], head.weight.t(), raw)
            ready, done = torch.cuda.Event(), torch.cuda.Event()
            ready.record(main)
            with torch.cuda.stream(other):
                other.wait_event(ready)
                gradient = step(raw, span)
                done.record(other)
            if waiting is not None:
                main.wait_event(waiting[2])
                gradients.add(waiting[0], waiting[1])
            waiting = (span, gradient, done)
        assert waiting is not None
        main.wait_event(waiting[2])
        gradients.add(waiting[0], waiting[1])
    return gradients


STREAM: list[torch.cuda.Stream] = []


def side_stream() -> torch.cuda.Stream:
    if not STREAM:
        STREAM.append(torch.cuda.Stream(priority=-1))
    return STREAM[0]


def with_kernel(kernel: Any) -> None:
    triton.row_kernel = kernel


def with_pass(run: Any) -> None:
    fused.run_pass = run


def attempt(data: Data, name: str, repeats: int, **settings: Any) -> dict[str, Any]:
    """Time, and whether the gradient is that of the head as it is."""
    kernel, run = triton.row_kernel, fused.run_pass
    trial = Trial(data, ours(**settings))
    try:
        trial.call()
        found = [trial.hidden.grad.clone(), trial.weight.grad.clone()]
        ms = trial.milliseconds(repeats)
        with_kernel(OWN_LAUNCH), with_pass(products.run_pass)
        plain = Trial(data, ours())
        plain.call()
        pairs = zip(found, (plain.hidden.grad, plain.weight.grad), strict=True)
        apart = max(float((a - b).float().norm() / b.float().norm()) for a, b in pairs)
    except Exception as error:  # an attempt that fails is a line of the report
        return {"attempt": name, "error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        with_kernel(kernel), with_pass(run)
    return {"attempt": name, "ms": ms, "gradient_apart": apart}


def attempts(rows: int, width: int, repeats: int) -> list[dict[str, Any]]:
    data = Data.make(rows, width, VOCAB, "cuda", torch.bfloat16)
    bare = Trial(data, floor)
    floors = [bare.milliseconds(repeats)]
    found = [attempt(data, "as it is", repeats)]
    for size in CHUNKS:
        found.append(
            attempt(data, f"chunks of {size} rows", repeats, logits_bytes=size * VOCAB * 4)
        )
    for programs, keep in CAPS:
        with_kernel(Capped(programs, keep))
        found.append(attempt(data, f"capped at {programs}, keeps {keep}", repeats))
    with_kernel(OWN_LAUNCH)
    with_pass(streamed_pass)
    for size in (2048, 4096):
        chunk = {"logits_bytes": size * VOCAB * 4}
        found.append(attempt(data, f"streams, chunks of {size}", repeats, **chunk))
        for programs in (33, 66):
            with_kernel(Capped(programs, "all"))
            name = f"streams, chunks of {size}, capped at {programs}"
            found.append(attempt(data, name, repeats, **chunk))
            with_kernel(OWN_LAUNCH)
    with_pass(products.run_pass)
    found.append(attempt(data, "as it is, again", repeats))
    floors.append(bare.milliseconds(repeats))
    for one in found:
        if "ms" in one:
            one["times_floor"] = round(one["ms"] / statistics.mean(floors), 3)
        print(f"  {json.dumps(one)}", flush=True)
    return [{"attempt": "floor", "ms": floors}, *found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    report: dict[str, Any] = {"environment": environment("torch", "triton")}
    for rows, width in SHAPES:
        print(f"N={rows} H={width}", flush=True)
        report[f"N={rows} H={width}"] = attempts(rows, width, args.repeats)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
