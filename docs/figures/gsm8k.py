"""Draw docs/figures/gsm8k.png: Qwen2.5-Coder-0.5B learning GSM8K, from the runs of the study.

    python docs/figures/gsm8k.py

Each point is the accuracy of one rollout, 512 completions of 64 problems that the run
has not trained on.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results/compare/qwen2.5-0.5b-gsm8k/runs.jsonl"
DRAWN = (("sapo", 3e-6, "-"), ("sapo", 1e-6, "--"), ("acpo", 1e-6, "-"), ("acpo", 3e-6, "--"))
COLOURS = {"sapo": "#777777", "acpo": "#0072B2"}
WINDOW = 3


def curve(method: str, rate: float) -> list[tuple[int, float]]:
    """(update, percent of right answers) of a sweep run, each the mean of up to three rollouts."""
    for line in RUNS.read_text().splitlines():
        run = json.loads(line)
        spec = run["spec"]
        if (spec["phase"], spec["row"], spec["learning_rate"]) == ("sweep", method, rate):
            points = [(point["step"], 100 * point["accuracy"]) for point in run["curve"]]
            recent = [points[max(0, i - WINDOW + 1) : i + 1] for i in range(len(points))]
            return [(part[-1][0], sum(y for _, y in part) / len(part)) for part in recent]
    raise SystemExit(f"no sweep run of {method} at {rate:g} in {RUNS}")


def main() -> None:
    figure, axis = plt.subplots(figsize=(6.4, 3.2))
    for method, rate, style in DRAWN:
        points = curve(method, rate)
        axis.plot(
            *zip(*points, strict=True),
            style,
            color=COLOURS[method],
            linewidth=2,
            label=f"{method.upper()}, learning rate {rate:g}",
        )
    axis.set(
        xlabel="update",
        ylabel="right answers in new problems, %",
        ylim=(0, None),
        title="Qwen2.5-Coder-0.5B on GSM8K: one seed, mean of three rollouts",
    )
    axis.title.set_fontsize(10)
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=160)


if __name__ == "__main__":
    main()
