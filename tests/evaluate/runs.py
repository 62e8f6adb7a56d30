"""What the tests of whole runs share: small benchmarks, oracles, and the command itself."""

import atexit
import functools
import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from acpo.errors import ACPOWarning
from acpo.tasks.grading import gold_completion
from acpo.tasks.questions import Questions
from acpo.verify.math import MathPool

ACPO = [sys.executable, "-c", "from acpo.cli import app; app()"]
TIMES = ("seconds", "verify_seconds")


def sums(path: Path, count: int) -> Path:
    """A benchmark of `count` additions."""
    rows = [{"problem": f"What is {i} + {i + 1}?", "answer": str(2 * i + 1)} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def add(prompt: str, seed: int) -> str:
    """The right answer to a question of `sums`."""
    left, right = prompt.removeprefix("What is ").split("?")[0].split(" + ")
    return f"So \\boxed{{{int(left) + int(right)}}}."


def oracle(benchmarks: list[Questions]) -> dict[str, str]:
    """Prompt to gold completion."""
    return {
        question.prompt: gold_completion(benchmark.task, question.row) or ""
        for benchmark in benchmarks
        for question in benchmark.questions
    }


class KeptPool(MathPool):
    """Workers that outlive a run: each imports a computer algebra system when it starts."""

    def close(self) -> None:
        """The next run takes them over."""


@functools.cache
def kept_pool() -> KeptPool:
    pool = KeptPool(1)
    atexit.register(MathPool.close, pool)
    return pool


def acpo(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, with the verifier of the run before: what starts anew
    spends most of its time on imports."""
    from acpo.cli import app

    runner = CliRunner(env={"COLUMNS": "200", **env})
    kept = patch("acpo.tasks.grading.MathPool", lambda workers: kept_pool())
    with warnings.catch_warnings(), kept:
        warnings.simplefilter("default", ACPOWarning)
        done = runner.invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)


def start(*args: object) -> subprocess.Popen:
    """Start the command in a process of its own and leave it running."""
    null = subprocess.DEVNULL
    return subprocess.Popen(
        [*ACPO, *map(str, args)],
        stdout=null,
        stderr=null,
        # A shell's background jobs, the tests among them, are deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def lines(path: Path) -> list[dict]:
    """Whole lines of a sample file, the settings first."""
    text = path.read_bytes()
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def timeless(path: Path) -> list[dict]:
    """A sample file without what differs between two runs of the same samples."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines(path)]
