"""The update benchmark runs, agrees with stock TRL, and records what it did."""

import json
import runpy
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_tiny_benchmark(tmp_path, monkeypatch):
    out, script = tmp_path / "update.json", str(FOLDER / "update.py")
    command = [script, "--tiny", "--out", str(out), "--repeats", "1", "--prompt", "3"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.syspath_prepend(str(FOLDER))
    runpy.run_path(script, run_name="__main__")
    result = json.loads(out.read_text())
    assert result["size"]["prompt"] == 3
    assert len(result["rows"]) == 6 and result["environment"]["packages"]["trl"]
    for row in result["rows"]:
        assert "error" not in row, row
        assert row["gradient_cosine"] > 0.99999
        assert len(row["acpo"]["collector_seconds"]) == 1
        assert row["acpo"]["trained_tokens"] <= row["trl"]["trained_tokens"]
