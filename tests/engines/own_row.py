"""A row of one's own, as a user would write it."""

import torch

from acpo.objectives import METHODS, Method
from acpo.objectives.shaping import Reducer, Sequences, Shaped, Shaping


class EarlyAndUncertain(Shaping):
    """Reads everything a shaping may: groups, two statistics, and a sum over the mini-batch."""

    title = "early tokens, by how uncertain they are"
    needs = ("entropy", "log_pmax")
    group_needs = ("tokens", "old_entropy")

    def of_group(self, groups: Sequences) -> torch.Tensor:
        size = groups.group_size
        first = groups.tokens.view(-1, size, groups.tokens.shape[1])[..., :1]
        common = (first == first[:, :1]).float().mean((1, 2)).repeat_interleave(size)
        return (groups.old_entropy + common[:, None]) * groups.mask

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        signal = (batch.entropy + batch.group - batch.log_pmax) * batch.mask
        mean = reduce.sum(signal.sum()) / reduce.sum(batch.mask.sum())
        sharpness = float(batch.options["sharpness"])
        weight = torch.sigmoid(sharpness * (signal - mean))
        return Shaped(batch.advantages[:, None] * weight * batch.mask, batch.mask)


OWN = Method(
    "mine",
    "Mine",
    "soft",
    {**METHODS["sapo"].options, "sharpness": 1.0},
    shaping=EarlyAndUncertain(),
)
