"""The benchmark of a whole step runs every engine at hand on the same lengths, and adds up."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from transformers.generation.continuous_batching import ContinuousBatchingManager

from acpo.sampling import StaticSampler

ROOT = Path(__file__).parents[2]


def test_a_tiny_step(tmp_path, monkeypatch):
    out, script = tmp_path / "step.json", str(ROOT / "benchmarks" / "step.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for patched, name in ((StaticSampler, "sample"), (ContinuousBatchingManager, "add_request")):
        monkeypatch.setattr(patched, name, getattr(patched, name))  # every engine changes both
    start = subprocess.run

    def run(command, **options):
        """TRL's engines in this process; ours in its own."""
        if script not in command or "acpo-static" in command:
            return start(command, **options)
        monkeypatch.setattr(sys, "argv", command[1:])
        return runpy.run_path(script, run_name="__main__")

    monkeypatch.setattr(subprocess, "run", run)
    for engines in (["trl-generate"], ["acpo-static", "trl-vllm"]):  # the second adds to the first
        command = [script, "--tiny", "--out", str(out), "--engines", *engines]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(script, run_name="__main__")
    rows = {row["engine"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["trl-generate", "trl-vllm", "acpo-static"]
    stock, ours = rows["trl-generate"], rows["acpo-static"]
    for row in (stock, ours):
        assert sum(row["parts"].values()) == pytest.approx(row["seconds"], abs=0.01)
        assert all(row["parts"][part] > 0 for part in ("sampling", "rewards", "update"))
        assert row["environment"]["date"] and 0 < row["reward"] < 1
    assert stock["mean_length"] == ours["mean_length"], "the lengths are imposed"
