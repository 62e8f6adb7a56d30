"""Verdicts per second, beside bare math-verify and bare Python. Writes results/verify.json.

    python benchmarks/verify.py --math500 math500.jsonl --humaneval-pro humaneval_pro.jsonl

Every contender runs in every round, one after the other, so that a busy machine is busy for all;
the table shows the median round.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from acpo.verify import CodePool, MathPool, read_problem
from acpo.verify.code import judge_code
from acpo.verify.sandbox import sandbox

WORKERS = 2
RESULTS = Path(__file__).resolve().parents[1] / "results" / "verify.json"
Pair = tuple[str, str]
ACPO, ALONE, SPREAD = "acpo", "bare, in process", f"bare, {WORKERS} processes"

# Each of these keeps bare math-verify busy beyond its time limit.
KNOWN_HANGS = [
    "10^{10^{10}}",
    "99999999!",
    "9^{9^{9^{9}}}",
    "\\binom{10^9}{5 \\cdot 10^8}",
    "2^{2^{2^{2^{2^{2}}}}}",
]
# And these are stopped by the CPU limit alone.
HARD_HANGS = ["(x+y+z+w)^{900}", "\\sum_{k=1}^{10^9} \\frac{1}{k}"]


WARM_UP = [("\\boxed{x+1}", "1+x")] * 8


def bare(pair: Pair) -> bool:
    """Bare math-verify on one pair, with its own (signal) time limits."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    text, gold = pair
    return verify(parse(f"\\boxed{{{gold}}}"), parse(text))


def boxed(answer: str) -> str:
    return f"Adding both sides gives $\\boxed{{{answer}}}$."


def integer_pairs(count: int) -> list[Pair]:
    rng = random.Random(0)
    golds = [rng.randint(0, 999) for _ in range(count)]
    return [(boxed(str(g + index % 2)), str(g)) for index, g in enumerate(golds)]


def gold_pairs(path: Path) -> dict[str, list[Pair]]:
    """The golds of MATH500: right answers, wrong ones, both, both with 1% hangs."""
    golds = [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    right = [(boxed(gold), gold) for gold in golds]
    wrong = [(boxed(other), gold) for gold, other in zip(golds, golds[1:] + golds[:1], strict=True)]
    mix = [pair for both in zip(right, wrong, strict=True) for pair in both]

    def hanging(hangs: list[str]) -> list[Pair]:
        pairs = list(mix)
        for index in range(len(mix) // 100):
            pairs.insert(100 * index, (boxed(hangs[index % len(hangs)]), "7"))
        return pairs

    return {
        "right answers": right,
        "wrong answers": wrong,
        "mix": mix,
        "mix with 1% hangs": hanging(KNOWN_HANGS),
        "mix with 1% hangs, CPU limit only": hanging(HARD_HANGS),
    }


def rate(run: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    run()
    return count / (time.perf_counter() - start)


def one_round(pairs: list[Pair], *, bare_too: bool) -> dict[str, float]:
    """Verdicts per second. Pools are new: what other rounds parsed does not help this one."""
    with MathPool(WORKERS) as pool:
        pool.verify_all(WARM_UP)
        rates = {ACPO: rate(lambda: pool.verify_all(pairs), len(pairs))}
    if bare_too:
        rates[ALONE] = rate(lambda: [bare(pair) for pair in pairs], len(pairs))
        with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as processes:
            list(processes.map(bare, WARM_UP))
            rates[SPREAD] = rate(lambda: list(processes.map(bare, pairs, chunksize=8)), len(pairs))
    return rates


def math_rates(workloads: dict[str, list[Pair]], rounds: int) -> dict[str, dict[str, float]]:
    """Verdicts per second of every contender on every workload, median of `rounds`."""
    bare(WARM_UP[0])
    measured = [
        {name: one_round(pairs, bare_too="hangs" not in name) for name, pairs in workloads.items()}
        for _ in range(rounds)
    ]
    return {
        name: {
            contender: statistics.median(run[name][contender] for run in measured)
            for contender in measured[0][name]
        }
        for name in workloads
    }


def code_milliseconds(path: Path, rounds: int) -> dict[str, float]:
    """Median milliseconds per run of a HumanEval Pro reference, and runs per second of a pool."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    jobs = []
    for row in rows:
        raw = row["raw_problem"] + row["raw_solution"]
        jobs.append((f"{raw}\n{row['new_problem']}{row['new_solution']}\n", row))
    backend = sandbox()
    times: dict[str, list[float]] = {"python file.py": [], "python -I -S file.py": [], "acpo": []}
    with tempfile.TemporaryDirectory() as directory:
        for index, (code, row) in enumerate(jobs):
            file = Path(directory) / f"{index}.py"
            file.write_text(f"{code}\n{row['test_code']}")
            problem = read_problem(row)
            runs = {
                "python file.py": lambda f=file: _python([], f),
                "python -I -S file.py": lambda f=file: _python(["-I", "-S"], f),
                "acpo": lambda c=code, p=problem: judge_code(f"```python\n{c}```", p, backend),
            }
            for name, run in runs.items():
                best = min(_seconds(run) for _ in range(rounds))
                times[name].append(1000 * best)
    medians = {name: statistics.median(values) for name, values in times.items()}
    with CodePool(WORKERS, backend) as pool:
        texts = [(f"```python\n{code}```", row) for code, row in jobs]
        medians["acpo pool, runs/s"] = rate(lambda: pool.verify_all(texts), len(texts))
    return medians


def _python(flags: list[str], file: Path) -> None:
    subprocess.run([sys.executable, *flags, str(file)], check=True, stdin=subprocess.DEVNULL)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def hardware() -> dict[str, Any]:
    model = ""
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return {
        "machine": platform.machine(),
        "cpu": model or platform.processor() or "unknown",
        "cores": os.cpu_count(),
        "load average at the start": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    names = ("math-verify", "sympy", "latex2sympy2_extended")
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip()
    return {
        "python": platform.python_version(),
        "bubblewrap": bwrap,
        **{name: importlib.metadata.version(name) for name in names},
    }


def requirements(math: dict[str, dict[str, float]], code: dict[str, float]) -> dict[str, Any]:
    """The numbers the project promises, with whether they hold in this run."""
    integers, mix = math["integers"], math["mix"]
    ratios = {
        "integers: times bare in process": (integers[ACPO] / integers[ALONE], 20.0),
        "mix: times bare in process": (mix[ACPO] / mix[ALONE], 1.0),
        "mix: times bare in 2 processes": (mix[ACPO] / mix[SPREAD], 1.0),
        "mix with 1% hangs: times mix": (math["mix with 1% hangs"][ACPO] / mix[ACPO], 0.8),
    }
    table = {
        name: {"measured": round(value, 2), "required": f">= {bound}", "holds": value >= bound}
        for name, (value, bound) in ratios.items()
    }
    for flags in ("", "-I -S "):
        overhead = code["acpo"] - code[f"python {flags}file.py"]
        table[f"code: ms over python {flags}file.py"] = {
            "measured": round(overhead, 1),
            "required": "<= 60",
            "holds": overhead <= 60,
        }
    return table


def show(math: dict[str, dict[str, float]], code: dict[str, float], held: dict[str, Any]) -> None:
    console = Console()
    table = Table("verdicts/s", *(contenders := (ACPO, ALONE, SPREAD)))
    for name, rates in math.items():
        cells = [f"{rates[c]:,.0f}" if c in rates else "-" for c in contenders]
        table.add_row(name, *cells)
    console.print(table)
    table = Table("code", "")
    for name, value in code.items():
        table.add_row(name if "runs/s" in name else f"{name}, ms", f"{value:.1f}")
    console.print(table)
    table = Table("requirement", "measured", "required", "holds")
    for name, row in held.items():
        table.add_row(name, str(row["measured"]), row["required"], "yes" if row["holds"] else "NO")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--math500", type=Path, required=True)
    parser.add_argument("--humaneval-pro", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    machine = hardware()
    workloads = {"integers": integer_pairs(2000), **gold_pairs(options.math500)}
    math = math_rates(workloads, options.rounds)
    code = code_milliseconds(options.humaneval_pro, options.rounds)
    held = requirements(math, code)
    show(math, code, held)
    report = {
        "command": "python benchmarks/verify.py --math500 math500.jsonl "
        f"--humaneval-pro humaneval_pro.jsonl --rounds {options.rounds}",
        "hardware": machine,
        "versions": versions(),
        "workers": WORKERS,
        "verdicts per second, median of rounds": math,
        "code, median over problems of the best round": code,
        "requirements": held,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
