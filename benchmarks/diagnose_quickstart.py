"""The quickstart model before and after training: `python benchmarks/diagnose_quickstart.py`.

Trains two methods with two seeds each, traces the model as it came and as ACPO left it, and keeps
numbers and figures under results/diagnose/. A run or a trace that is there already is used.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from environment import environment

ROOT = Path(__file__).resolve().parents[1]
TRACE = ["--task", "chain", "--n", "48", "--group", "8", "--max-tokens", "24"]
KEPT = (".csv", ".png", ".md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "diagnose")
    parser.add_argument("--scratch", type=Path, default=Path("runs/diagnose"))
    arguments = parser.parse_args()
    scratch = arguments.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    recipe = os.path.relpath(ROOT / "recipes" / "quickstart.yaml", scratch)
    commands, runs = [], []

    def acpo(*words: str, makes: str) -> None:
        commands.append(" ".join(["acpo", *words]).replace(recipe, "recipes/quickstart.yaml"))
        if not (scratch / makes).exists():
            subprocess.run([sys.executable, "-m", "acpo", *words], cwd=scratch, check=True)

    for method in ("acpo", "sapo"):
        for seed in ("0", "1"):
            run = f"runs/{method}-{seed}"
            runs += ["--runs", run]
            options = ["--method", method, "--seed", seed, "--output_dir", run]
            acpo("train", recipe, *options, makes=f"{run}/report.json")
    for name, model, extra in (
        ("quickstart-before", "package:acpo/tasks/checkpoints/chain", []),
        ("quickstart-after", "runs/acpo-0", runs),
    ):
        trace, output = f"traces/{name}", f"diagnose/{name}"
        acpo("trace", model, *TRACE, "--output", trace, makes=f"{trace}/header.jsonl")
        shutil.rmtree(scratch / output, ignore_errors=True)
        acpo("diagnose", "all", trace, *extra, "--output", output, makes=f"{output}/report.html")
        keep(scratch / output, arguments.out / name)
    record = {"environment": environment("torch", "transformers", "trl", "matplotlib")}
    record["commands"] = commands
    (arguments.out / "quickstart.json").write_text(json.dumps(record, indent=2) + "\n")


def keep(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in sorted(source.iterdir()):
        if file.suffix in KEPT:
            shutil.copy(file, target)


if __name__ == "__main__":
    main()
