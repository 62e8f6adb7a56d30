"""What tells whether training works, because the loss of the soft-gated rows does not."""

from typing import NamedTuple

import torch
from torch import Tensor

from acpo.objectives.credit import Credit
from acpo.objectives.gates import Gated, TokenInputs
from acpo.objectives.method import Method
from acpo.objectives.tokens import TokenStats


class Tally(NamedTuple):
    """A sum and a count: means that add up exactly over micro-batches and ranks."""

    total: Tensor
    number: Tensor

    @staticmethod
    def means(tallies: dict[str, "Tally"]) -> dict[str, Tensor]:
        """NaN where nothing was counted."""
        return {name: t.total / t.number for name, t in tallies.items()}


def tally_tokens(
    method: Method, inputs: TokenInputs, mask: Tensor, gated: Gated, credit: Credit
) -> dict[str, Tally]:
    """Sums and counts over valid tokens, any shape.

    `reversed` is the share of aligned positive tokens whose update lowers their own probability;
    `credit/...` is the mean multiplier; `update/...` the mean of |∂J/∂log π(y)| by branch.
    """
    stats = inputs.stats
    with torch.no_grad():
        delta = -torch.expm1(stats.log_pmax)
        positive, negative = mask & inputs.positive, mask & ~inputs.positive
        local = gated.slope * credit.value
        if method.credit.signal == "delta":  # on aligned tokens δ moves with -p
            proxy = torch.where(stats.is_mode, -gated.value * credit.slope * stats.logp.exp(), 0.0)
            local = local + proxy
        update = (inputs.advantages * local).abs()

        def over(where: Tensor, x: Tensor) -> Tally:
            return Tally(torch.where(where, x, 0).sum(dtype=torch.float32), where.sum())

        return {
            "aligned": over(mask, stats.is_mode),
            "entropy": over(mask, stats.entropy),
            "entropy/positive": over(positive, stats.entropy),
            "entropy/nonpositive": over(negative, stats.entropy),
            "delta": over(mask, delta),
            "delta/positive": over(positive, delta),
            "delta/nonpositive": over(negative, delta),
            "credit/positive": over(positive, credit.value),
            "credit/nonpositive": over(negative, credit.value),
            "update/positive": over(positive, update),
            "update/nonpositive": over(negative, update),
            "reversed": over(positive & stats.is_mode, local < 0),
            "saturated": over(mask, gated.saturated),
            "ratio": over(mask, inputs.ratio),
        }


def mode_exposed(*, sampling_logp: Tensor, stats: TokenStats, mask: Tensor) -> Tensor:
    """The share of tokens that are nearer to the trainer's mode than their own gap is wide.

    Such a token is mismatched for the trainer and may have been the sampler's mode. The tokens that
    go the other way are as many, if the gap has no preferred side.
    """
    margin = stats.log_pmax - stats.logp
    near = ~stats.is_mode & (margin < (stats.logp - sampling_logp).abs())
    return (near & mask).sum() / mask.sum().clamp_min(1)
