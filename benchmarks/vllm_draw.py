"""The picture of docs/vllm.md: the gap, and accuracy with vLLM's and the static sampler's rollouts.

    python benchmarks/vllm_draw.py --out results/vllm.png

Read are results/vllm_gap.json, results/vllm_train_*.json and the runs of study R with the same rows
and rates. `late` is what the page quotes: mean accuracy of the rollouts of updates 60 to 100, with
a 95% interval over rollouts (one run on vLLM) or over seeds (the static sampler's).
"""

import argparse
import json
from pathlib import Path
from typing import Any

from acpo.compare.statistics import SeedEstimate, mean_over_seeds

RUNS = "compare/qwen2.5-0.5b-gsm8k/runs.jsonl"
LATE = range(60, 101)
COLOURS = {"acpo": "#cc3311", "sapo": "#0077bb"}


def trained(results: Path) -> dict[str, dict[str, Any]]:
    """Runs on vLLM by row, each with the static sampler's runs of the row at the same rate."""
    lines = (results / RUNS).read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    found = {}
    for path in sorted(results.glob("vllm_train_*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        rate = record["learning_rate"]
        found[record["method"]] = {
            "rate": rate,
            "vllm": [(entry["update"], entry["reward"]) for entry in record["curve"]],
            "static": [
                [(entry["step"], entry["accuracy"]) for entry in run["curve"]]
                for run in runs
                if (run["spec"]["phase"], run["spec"]["task"]) == ("study", "four")
                and (run["spec"]["row"], run["spec"]["learning_rate"]) == (record["method"], rate)
            ],
        }
    return found


def late(curves: list[list[tuple[int, float]]]) -> SeedEstimate:
    """Over seeds where there are several curves, over rollouts where there is one."""
    values = [[accuracy for update, accuracy in curve if update in LATE] for curve in curves]
    means = [sum(row) / len(row) for row in values]
    return mean_over_seeds(means if len(means) > 1 else values[0])


def draw(results: Path, out: Path) -> None:
    from matplotlib.figure import Figure

    gap = json.loads((results / "vllm_gap.json").read_text(encoding="utf-8"))
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    edges, counts = gap["histogram"]["edges"], gap["histogram"]["counts"]
    last = max(place for place, count in enumerate(counts) if count)
    shares = [100 * count / sum(counts) for count in counts[: last + 1]]
    left.bar(range(len(shares)), shares, width=1, align="edge", color="#4477aa", edgecolor="white")
    marked = range(1, len(shares) + 1, 2)
    left.set_xticks(marked, [f"{edges[place]:g}" for place in marked])
    left.set_xlabel("difference of log-probabilities, vLLM and trainer")
    left.set_ylabel("tokens, percent")
    for row, run in trained(results).items():
        colour = COLOURS[row]
        for seed, curve in enumerate(run["static"]):
            label = f"{row}, sampler: static, {len(run['static'])} seeds" if seed == 0 else None
            short = [(update, 100 * share) for update, share in curve if update <= LATE[-1]]
            right.plot(*zip(*short, strict=True), color=colour, alpha=0.3, lw=1, label=label)
        points = [(update, 100 * share) for update, share in run["vllm"]]
        right.plot(*zip(*points, strict=True), color=colour, lw=2, label=f"{row}, vLLM")
    right.set_xlabel("update")
    right.set_ylabel("right answers in the rollout, percent")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("results/vllm.png"))
    args = parser.parse_args()
    for row, run in trained(args.results).items():
        print(row, run["rate"], "vllm", late([run["vllm"]]), "static", late(run["static"]))
    draw(args.results, args.out)


if __name__ == "__main__":
    main()
