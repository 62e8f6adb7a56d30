"""The benchmark of the sampler runs, tells of every leg, and keeps what it found."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "sampling.py"


def test_every_leg_is_told_and_kept(tmp_path):
    out = tmp_path / "sampling.json"
    sizes = "--rows 3 --group 2 --prompt 5 --tokens 4 --layers 1 --repeats 1 --check-tokens 3"
    command = [sys.executable, str(BENCHMARK), "--out", str(out), *sizes.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    legs = ("measure_static", "measure_generate", "agreement")
    assert [line.partition(",")[0] for line in done.stdout.splitlines()] == list(legs)
    record = json.loads(out.read_text())
    assert record["graphs_and_plain_steps_agree"] is True
    assert len(record["static_seconds"]) == 1 and record["generate_tokens_per_second"] > 0
