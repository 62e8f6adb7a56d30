"""Draw docs/figures/credit.png: how far one token moves, under SAPO and under ACPO.

    python docs/figures/credit.py

For a token with probability p at w = 1, the plot shows |∂J/∂log π(y)| / |A| as the closed-form
gradient gives it, for a sampled mode and for a sampled token beside a mode of probability p.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

from acpo.objectives import logit_gradient

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"


def update_size(method: str, p_max: torch.Tensor, advantage: float, aligned: bool) -> torch.Tensor:
    """|∂J/∂log π(y)| / |A| for three-token policies whose mode has probability p_max."""
    rest = 1 - p_max
    probabilities = torch.stack([p_max, 0.6 * rest, 0.4 * rest], -1)[:, None]  # [N, 1, 3]
    token = 0 if aligned else 1
    tokens = torch.full(probabilities.shape[:2], token)
    gradient = logit_gradient(
        method,
        logits=probabilities.log(),
        tokens=tokens,
        old_logp=probabilities[..., token].log(),
        advantages=torch.full((len(p_max),), advantage, dtype=torch.float64),
        mask=torch.ones_like(tokens),
    )
    # The loss averages over the N sequences; ∂z_y of log π(y) is 1 - p(y).
    slope = gradient[:, 0, token] * len(p_max) / (1 - probabilities[:, 0, token])
    return slope.abs()


def main() -> None:
    p_max = torch.linspace(0.41, 0.999, 300, dtype=torch.float64)
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.3), sharey=True)
    for axis, advantage, title in zip(
        axes, (1.0, -1.0), ("good answer (A > 0)", "bad answer (A ≤ 0)"), strict=True
    ):
        for method, colour in (("sapo", GREY), ("acpo", BLUE if advantage > 0 else ORANGE)):
            for aligned, style in ((True, "-"), (False, (0, (2, 3)))):
                size = update_size(method, p_max, advantage, aligned)
                label = f"{method.upper()}, {'sampled the mode' if aligned else 'sampled another'}"
                if method == "sapo":
                    if not aligned:
                        continue
                    label = "SAPO"
                # The dotted line lies on or near the solid one: drawn over it, in black.
                shown = colour if aligned else "#000000"
                axis.plot(p_max, size, linestyle=style, color=shown, label=label, linewidth=2)
        axis.set(title=title, xlabel="probability of the policy's mode")
        axis.legend(frameon=False, fontsize=8, loc="upper right" if advantage > 0 else (0.02, 0.08))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("size of the token's update")
    figure.suptitle("At w = 1, the first update of a rollout, in units of |A|", fontsize=10)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=160)


if __name__ == "__main__":
    main()
