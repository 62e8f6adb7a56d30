"""How much good and bad answers weigh against each other: weights by sign, and a fixed share."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from acpo.objectives.shaping import Reducer
from acpo.objectives.tokens import select

LEAST_MEAN = 1e-3
"""Bounds a branch's mean weight, so that a policy sure of everything is not scaled up without end.
"""


def sign_weighted(advantages: Tensor, options: Mapping[str, Any]) -> Tensor:
    """A times `positive_weight` where A > 0, `nonpositive_weight` elsewhere."""
    weights = float(options["positive_weight"]), float(options["nonpositive_weight"])
    if weights == (1.0, 1.0):
        return advantages
    return advantages * select(advantages > 0, *weights, advantages.dtype)


def share_controlled(
    advantages: Tensor,
    *,
    share: float | str,
    credit: Tensor,
    mask: Tensor,
    by_sequence: bool,
    reduce: Reducer,
) -> Tensor:
    """Advantages scaled by branch, so that good answers make up `share` of the update at w = 1.

    With ω a token's weight in the loss, a branch's update is Σ ω|A|c and its advantages weigh
    Σ ω|A|. Each branch is divided by its mean c, so that credit moves within it only, and then
    multiplied so that the good answers have their share of what all advantages weigh. "advantages"
    leaves that share as the advantages have it: one half, where groups are whole and centred. A
    mini-batch of one branch keeps its weight.

    Args:
        advantages: `[B, T]`.
        share: in (0, 1], or "advantages".
        credit: `[B, T]`, what tokens are multiplied by at w = 1.
        mask: `[B, T]`.
        by_sequence: whether ω is one over the length of the sequence, or the same for all tokens.
        reduce: sums over the mini-batch.
    """
    weight = mask.to(advantages.dtype)
    if by_sequence:
        weight = weight / weight.sum(1, keepdim=True).clamp_min(1)
    size = weight * advantages.abs()
    positive = advantages > 0
    both = torch.stack([size * credit, size])
    sums = reduce.sum(torch.stack([both[:, positive].sum(1), both[:, ~positive].sum(1)]))
    mass = sums[:, 1]
    means = (sums[:, 0] / mass.clamp_min(1e-12)).clamp_min(LEAST_MEAN)
    scaled = advantages / torch.where(positive, means[0], means[1])
    if isinstance(share, str) or not bool((mass > 0).all()):
        return scaled
    targets = mass.sum() * mass.new_tensor([share, 1 - share])
    factors = targets / mass
    return scaled * torch.where(positive, factors[0], factors[1])
