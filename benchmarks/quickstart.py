"""The quickstart on five seeds: `python benchmarks/quickstart.py --out results/quickstart.json`."""

import argparse
import json
import os
import statistics
from pathlib import Path

from environment import environment

from acpo.train.launch import train

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "quickstart.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--scratch", default="runs/quickstart-seeds")
    arguments, overrides = parser.parse_known_args()
    runs = []
    for seed in arguments.seeds:
        folder = f"{arguments.scratch}/{seed}"
        load = os.getloadavg()[0]
        train(
            ROOT / "recipes" / "quickstart.yaml",
            ["--seed", str(seed), "--output_dir", folder, *overrides],
        )
        run = json.loads(Path(folder, "report.json").read_text())
        run["recipe"] = "recipes/quickstart.yaml"
        run["gain_points"] = round(100 * (run["after"]["value"] - run["before"]["value"]), 1)
        run["load_before"] = round(load, 2)
        runs.append(run)
        write(arguments.out, runs)


def write(path: Path, runs: list[dict]) -> None:
    gains = [run["gain_points"] for run in runs]
    record = {
        "environment": environment("torch", "transformers", "trl"),
        "gain_points": {"min": min(gains), "mean": round(statistics.mean(gains), 1)},
        "train_seconds_max": max(run["train_seconds"] for run in runs),
        "train_cpu_seconds_max": max(run["train_cpu_seconds"] for run in runs),
        "runs": runs,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
