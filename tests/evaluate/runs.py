"""What the tests of whole runs share: small benchmarks, oracles, and the command itself."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

from typer.testing import CliRunner

from acpo.errors import ACPOWarning
from acpo.tasks.grading import gold_completion
from acpo.tasks.questions import Questions

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


def acpo(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command, in this process: importing everything anew would take most of the time."""
    from acpo.cli import app

    runner = CliRunner(env={"COLUMNS": "200", **env})
    with warnings.catch_warnings():
        warnings.simplefilter("default", ACPOWarning)
        done = runner.invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)


def start(*args: object) -> subprocess.Popen:
    """Start the command in a process of its own and leave it running."""
    null = subprocess.DEVNULL
    return subprocess.Popen([*ACPO, *map(str, args)], stdout=null, stderr=null)


def lines(path: Path) -> list[dict]:
    """Whole lines of a sample file, the settings first."""
    text = path.read_bytes()
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def timeless(path: Path) -> list[dict]:
    """A sample file without what differs between two runs of the same samples."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines(path)]
