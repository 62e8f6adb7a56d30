"""The update benchmark runs, agrees with stock TRL, and records what it did."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tiny_benchmark(tmp_path):
    out = tmp_path / "update.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "update.py"), "--tiny", "--out", str(out)]
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command += ["--repeats", "1", "--prompt", "3"]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=600)
    result = json.loads(out.read_text())
    assert result["size"]["prompt"] == 3
    assert len(result["rows"]) == 6 and result["environment"]["packages"]["trl"]
    for row in result["rows"]:
        assert "error" not in row, row
        assert row["gradient_cosine"] > 0.99999
        assert len(row["acpo"]["collector_seconds"]) == 1
        assert row["acpo"]["trained_tokens"] <= row["trl"]["trained_tokens"]
