"""Draw docs/figures/gsm8k.png: Qwen2.5-Coder-0.5B learning GSM8K, from the runs of the study.

    python docs/figures/gsm8k.py

Left, the final runs: four seeds of each row at the rate its sweep chose, and at 1e-6 (dashed).
Right, sweep runs at two rates. A point is the accuracy of up to five rollouts, each 512 completions
of 64 problems that the run has not trained on; the bands reach from the lowest to the highest seed.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
RUNS = [ROOT / f"results/compare/qwen2.5-0.5b-gsm8k{end}/runs.jsonl" for end in ("", "-slow")]
FINAL = (
    *(("grpo", 3e-6, "-"), ("sapo", 3e-6, "-")),
    *(("grpo", 1e-6, "--"), ("sapo", 1e-6, "--"), ("acpo", 1e-6, "--")),
)
SWEPT = (("sapo", 3e-6, "-"), ("acpo", 3e-6, "-"), ("sapo", 1e-6, "--"), ("acpo", 1e-6, "--"))
COLOURS = {"sapo": "#777777", "acpo": "#0072B2", "grpo": "#D55E00"}
WINDOW = 5


def curves(phase: str, method: str, rate: float) -> tuple[list[int], list[list[float]]]:
    """Updates, and per run the percent of right answers there, each the mean of recent rollouts."""
    updates, found = [], []
    lines = [line for file in RUNS for line in file.read_text(encoding="utf-8").splitlines()]
    for run in {run["run"]: run for run in map(json.loads, lines)}.values():
        spec = run["spec"]
        kind = (spec["task"], spec["phase"], spec["row"], spec["learning_rate"])
        if kind == ("four", phase, method, rate):
            updates = [point["step"] for point in run["curve"]]
            shares = [100 * point["accuracy"] for point in run["curve"]]
            recent = [shares[max(0, i - WINDOW + 1) : i + 1] for i in range(len(shares))]
            found.append([sum(part) / len(part) for part in recent])
    if not found:
        raise SystemExit(f"no {phase} run of {method} at {rate:g} in {RUNS[0]} or {RUNS[1]}")
    return updates, found


def main() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.2), sharey=True)
    for method, rate, style in FINAL:
        updates, runs = curves("study", method, rate)
        at = list(zip(*runs, strict=True))
        label = f"{method.upper()}, learning rate {rate:g}"
        mean = [sum(values) / len(values) for values in at]
        left.plot(updates, mean, style, color=COLOURS[method], linewidth=2, label=label)
        low, high = [min(values) for values in at], [max(values) for values in at]
        left.fill_between(updates, low, high, color=COLOURS[method], alpha=0.2, linewidth=0)
    for method, rate, style in SWEPT:
        updates, (run,) = curves("sweep", method, rate)
        label = f"{method.upper()}, learning rate {rate:g}"
        right.plot(updates, run, style, color=COLOURS[method], linewidth=2, label=label)
    left.set(ylabel="right answers in new problems, %", ylim=(0, None), title="four seeds")
    right.set(title="sweep, one seed")
    for axis in (left, right):
        axis.set_xlabel("update")
        axis.title.set_fontsize(10)
        axis.legend(frameon=False, fontsize=8, loc="lower left")
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=160)


if __name__ == "__main__":
    main()
