"""What verdicts cost, beside bare math-verify and bare Python. Writes results/verify.json.

    python benchmarks/verify.py --math500 math500.jsonl --humaneval-pro humaneval_pro.jsonl

Math is counted in verdicts per second of CPU time, of all processes that take part: wall time on a
shared machine measures the neighbours. Two busy workers do twice that in a second on two idle
cores. Pools are new in every round and warm up on the first half of the golds; the second half is
measured, so nobody has seen its strings before. Code is wall time, each run the best of its rounds.
Beside the rates stand the verdicts of both on the hand-judged pairs of tests/verify/pairs.txt.
"""

import argparse
import json
import os
import platform
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from environment import environment
from rich.console import Console
from rich.table import Table

from acpo.verify import MathPool, read_problem
from acpo.verify.code import judge_code
from acpo.verify.extract import extract_answer
from acpo.verify.math import MathJob
from acpo.verify.proctree import descendants
from acpo.verify.sandbox import sandbox

WORKERS = 2
CODE_ROUNDS = 9
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "verify.json"
PAIRS = ROOT / "tests" / "verify" / "test_pairs.py"
Pair = tuple[str, str]
ACPO, ALONE, SPREAD = "acpo", "bare, 1 process", f"bare, {WORKERS} processes"

# Each of these keeps bare math-verify busy beyond its time limit.
KNOWN_HANGS = [
    "10^{10^{10}}",
    "99999999!",
    "9^{9^{9^{9}}}",
    "\\binom{10^9}{5 \\cdot 10^8}",
    "2^{2^{2^{2^{2^{2}}}}}",
]
# And these are stopped by the CPU limit alone.
HARD_HANGS = ["\\int (x+y+z+w)^{900} dx", "\\sum_{k=1}^{10^9} \\frac{1}{k}"]


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


def mixed(golds: list[str]) -> list[Pair]:
    """Every gold once against itself and once against the next one."""
    pairs = []
    for gold, other in zip(golds, golds[1:] + golds[:1], strict=True):
        pairs += [(boxed(gold), gold), (boxed(other), gold)]
    return pairs


def gold_pairs(golds: list[str]) -> dict[str, list[Pair]]:
    """Right answers, wrong ones, both, both with 1% hangs."""
    mix = mixed(golds)

    def hanging(hangs: list[str]) -> list[Pair]:
        pairs = list(mix)
        for index in range(len(mix) // 100):
            pairs.insert(100 * index, (boxed(hangs[index % len(hangs)]), "7"))
        return pairs

    return {
        "right answers": mix[::2],
        "wrong answers": mix[1::2],
        "mix": mix,
        "mix with 1% hangs": hanging(KNOWN_HANGS),
        "mix with 1% hangs, CPU limit only": hanging(HARD_HANGS),
    }


def cpu_seconds() -> float:
    """CPU time so far of this process and everything below it, the dead included."""
    ticks = 0
    for pid in descendants(os.getpid())[1:]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def rate(run: Callable[[], Any], count: int) -> float:
    """Verdicts per second of CPU time."""
    start = cpu_seconds()
    run()
    return count / (cpu_seconds() - start)


def bare_rate(processes: int, pairs: list[Pair], warm_up: list[Pair]) -> float:
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(bare, warm_up, chunksize=8))
        return rate(lambda: list(pool.map(bare, pairs, chunksize=8)), len(pairs))


def one_round(pairs: list[Pair], warm_up: list[Pair], *, bare_too: bool) -> dict[str, float]:
    """Verdicts per second of CPU time, of every contender."""
    with MathPool(WORKERS) as pool:
        # As jobs for the workers, so that they warm up on what the others warm up on.
        wait([pool.submit(MathJob(extract_answer(text) or "", gold)) for text, gold in warm_up])
        rates = {ACPO: rate(lambda: pool.verify_all(pairs), len(pairs))}
    if bare_too:
        rates[ALONE] = bare_rate(1, pairs, warm_up)
        rates[SPREAD] = bare_rate(WORKERS, pairs, warm_up)
    return rates


def math_rates(
    workloads: dict[str, list[Pair]], warm_up: list[Pair], rounds: int
) -> dict[str, dict[str, float]]:
    """Rates of every contender on every workload, median of `rounds`."""
    measured = [
        {
            name: one_round(pairs, warm_up, bare_too="hangs" not in name)
            for name, pairs in workloads.items()
        }
        for _ in range(rounds)
    ]
    return {
        name: {
            contender: statistics.median(run[name][contender] for run in measured)
            for contender in measured[0][name]
        }
        for name in workloads
    }


def bare_whole(pair: Pair) -> bool:
    """Bare math-verify on a whole completion, as its documentation calls it."""
    from math_verify import parse, verify

    text, gold = pair
    return verify(parse(f"${gold}$"), parse(text))


def agreement() -> dict[str, Any]:
    """How often acpo and bare math-verify judge the pairs as the hand does."""
    pairs = runpy.run_path(str(PAIRS))["read"]("pairs.txt")
    jobs = [(pair.text, pair.gold) for pair in pairs]
    with MathPool(WORKERS) as pool:
        verdicts = {ACPO: [verdict.correct for verdict in pool.verify_all(jobs)]}
    verdicts["bare math-verify"] = [bare_whole(job) for job in jobs]
    table: dict[str, Any] = {"pairs": len(pairs), "right": sum(pair.right for pair in pairs)}
    for name, given in verdicts.items():
        both = list(zip(pairs, given, strict=True))
        wrong = [(pair.kind, pair.right) for pair, found in both if found is not pair.right]
        table[name] = {
            "as judged by hand": len(pairs) - len(wrong),
            "right answers missed": sum(right for _, right in wrong),
            "wrong answers accepted": sum(not right for _, right in wrong),
            "classes with a wrong answer accepted": len(
                {kind for kind, right in wrong if not right}
            ),
        }
    return table


def code_milliseconds(path: Path) -> dict[str, float]:
    """Median wall milliseconds per run of 41 HumanEval Pro references."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    jobs = []
    for row in rows[::4]:
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
                best = min(_seconds(run) for _ in range(CODE_ROUNDS))
                times[name].append(1000 * best)
    return {name: statistics.median(values) for name, values in times.items()}


def _python(flags: list[str], file: Path) -> None:
    subprocess.run([sys.executable, *flags, str(file)], check=True, stdin=subprocess.DEVNULL)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    """Where it is measured, and what the sandbox is made of."""
    bwrap = subprocess.run(["bwrap", "--version"], capture_output=True, text=True).stdout.strip()
    found = environment("math-verify", "sympy", "latex2sympy2_extended")
    return {**found, "kernel": platform.release(), "bubblewrap": bwrap}


def requirements(math: dict[str, dict[str, float]], code: dict[str, float]) -> dict[str, Any]:
    """The numbers the project promises, with whether they hold in this run."""
    integers, golds, mix = math["integers"], math["right answers"], math["mix"]
    wrong = math["wrong answers"]
    # On two cores both pools do twice their rate per CPU second, one process does it once.
    ratios = {
        "integers: times bare in 1 process": (integers[ACPO] / integers[ALONE], 20.0),
        "golds against themselves: times bare in 1 process": (golds[ACPO] / golds[ALONE], 1.0),
        "wrong answers: times bare in 1 process": (wrong[ACPO] / wrong[ALONE], 1.0),
        "mix on 2 cores: times bare in 1 process": (2 * mix[ACPO] / mix[ALONE], 1.0),
        "mix on 2 cores: times bare in 2 processes": (mix[ACPO] / mix[SPREAD], 1.0),
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
    table = Table("verdicts per CPU second", *(contenders := (ACPO, ALONE, SPREAD)))
    for name, rates in math.items():
        cells = [f"{rates[c]:,.0f}" if c in rates else "-" for c in contenders]
        table.add_row(name, *cells)
    console.print(table)
    table = Table("code", "ms")
    for name, value in code.items():
        table.add_row(name, f"{value:.1f}")
    console.print(table)
    table = Table("requirement", "measured", "required", "holds")
    for name, row in held.items():
        table.add_row(name, str(row["measured"]), row["required"], "yes" if row["holds"] else "NO")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--math500", type=Path, required=True)
    parser.add_argument("--humaneval-pro", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    where = machine()
    code = code_milliseconds(options.humaneval_pro)
    golds = [json.loads(line)["answer"] for line in options.math500.read_text().splitlines()]
    half = len(golds) // 2
    workloads = {"integers": integer_pairs(1000), **gold_pairs(golds[half:])}
    math = math_rates(workloads, mixed(golds[:half]), options.rounds)
    held = requirements(math, code)
    show(math, code, held)
    report = {
        "environment": where,
        "workers": WORKERS,
        "verdicts per second of CPU time, median of rounds": math,
        f"code, wall ms, median over problems of the best of {CODE_ROUNDS}": code,
        "requirements": held,
        "hand-judged pairs (tests/verify/pairs.txt)": agreement(),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
