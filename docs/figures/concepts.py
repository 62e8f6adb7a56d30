"""Draw the pictures of docs/concepts.md: delta, branch, gate and row.

python docs/figures/concepts.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from acpo.objectives import METHODS, group_advantages

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#999999"


def save(figure: plt.Figure, name: str) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(FOLDER / f"concept-{name}.png", dpi=130)


def delta() -> None:
    """Two distributions over five tokens, sure and unsure."""
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.2), sharey=True)
    for axis, p in zip(
        axes, ((0.9, 0.05, 0.03, 0.01, 0.01), (0.4, 0.3, 0.2, 0.06, 0.04)), strict=True
    ):
        axis.bar("abcde", p, color=[BLUE, *[GREY] * 4])
        axis.set(title=f"p_max = {p[0]:.1f},  δ = {1 - p[0]:.1f}", ylim=(0, 1), xlabel="next token")
    axes[0].set_ylabel("probability")
    save(figure, "delta")


def branch() -> None:
    """Advantages of a group of eight completions, three of them right."""
    rewards = [1.0, 0, 0, 1, 0, 0, 1, 0]
    advantages = group_advantages(rewards, group_size=8)
    figure, axis = plt.subplots(figsize=(6.4, 2.2))
    axis.bar(range(1, 9), advantages, color=[BLUE if a > 0 else ORANGE for a in advantages])
    axis.axhline(0, color="#000000", linewidth=0.8)
    axis.set(xlabel="completion of one prompt", ylabel="advantage A", xticks=range(1, 9))
    axis.set_title("right: positive branch (blue); wrong: non-positive branch (orange)", fontsize=9)
    save(figure, "branch")


def gate() -> None:
    """How much of the gradient each gate lets through, for A > 0."""
    w = torch.linspace(0.4, 2.0, 400)
    epsilon = METHODS["grpo"].options["epsilon_high"]
    tau = METHODS["sapo"].options["tau_pos"]
    sigma = torch.sigmoid(tau * (w - 1))
    figure, axis = plt.subplots(figsize=(6.4, 2.4))
    axis.plot(w, (w <= 1 + epsilon).float(), color=GREY, label=f"clip, 1 + {epsilon:g} (GRPO)")
    axis.plot(w, 4 * sigma * (1 - sigma), color=BLUE, label="soft (SAPO, ACPO)")
    axis.set(xlabel="importance ratio w", ylabel="slope f'(w), A > 0", ylim=(0, 1.1))
    axis.legend(frameon=False, fontsize=8)
    save(figure, "gate")


def row() -> None:
    """A row: four parts, and what ACPO and SAPO put there."""
    figure, axis = plt.subplots(figsize=(6.4, 1.7))
    axis.axis("off")
    cells = [
        ["", "advantage A", "gate f(w)", "credit c", "average"],
        ["sapo", "group", "soft", "1", "within sequences"],
        ["acpo", "group", "soft", "2+δ | 1-δ, routed", "within sequences"],
        ["grpo", "group", "clip", "1", "within sequences"],
        ["dapo", "group", "clip higher", "1", "all tokens alike"],
    ]
    table = axis.table(cells, loc="center", cellLoc="left", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.scale(1, 1.4)
    save(figure, "row")


if __name__ == "__main__":
    for draw in (delta, branch, gate, row):
        draw()
