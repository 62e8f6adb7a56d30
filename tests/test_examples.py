"""The examples run as written, and learn."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "loop.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_loop_learns():
    result = run("--steps", "8", "--prompts", "16")
    assert result.returncode == 0, result.stderr[-3000:]
    rewards = [float(x) for x in re.findall(r"reward ([\d.]+)", result.stdout)]
    ratios = re.findall(r"ratio ([\d.]+) to ([\d.]+)", result.stdout)
    assert len(rewards) == 8 and sum(rewards[-3:]) > sum(rewards[:3])
    assert all(float(low) < 1 < float(high) for low, high in ratios), "the second update is off"


def test_rows_that_need_more_than_a_loop_are_named():
    result = run("--method", "8020")
    assert result.returncode == 2 and "looks at the whole batch first" in result.stderr
