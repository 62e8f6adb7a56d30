"""What the tests of whole runs share: small benchmarks, oracles, and the command itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from acpo.evaluate.data import LoadedBenchmark
from acpo.evaluate.judges import gold_completion

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


def oracle(benchmarks: list[LoadedBenchmark]) -> dict[str, str]:
    """Prompt to gold completion."""
    return {
        question.prompt: gold_completion(benchmark.spec.judge, question.row) or ""
        for benchmark in benchmarks
        for question in benchmark.questions
    }


def acpo(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [*ACPO, *map(str, args)]
    environment = {**os.environ, "COLUMNS": "200", **env}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def run_acpo(*args: object) -> Result:
    """Run the command in this process, where everything is imported already."""
    from acpo.cli import app

    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(arg) for arg in args])


def start(*args: object) -> subprocess.Popen:
    """Start the command and leave it running."""
    null = subprocess.DEVNULL
    return subprocess.Popen([*ACPO, *map(str, args)], stdout=null, stderr=null)


def lines(path: Path) -> list[dict]:
    """Whole lines of a sample file, the settings first."""
    text = path.read_bytes()
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def timeless(path: Path) -> list[dict]:
    """A sample file without what differs between two runs of the same samples."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines(path)]
