"""Shapings that compare the completions of a group."""

import torch
from torch import Tensor

from acpo.objectives.shaping import Reducer, Sequences, Shaped, Shaping, score_norm
from acpo.objectives.tokens import select


class Conflict(Shaping):
    """GTPO (trajectory): κ_i (A_i - γ h_i) λ_{i,t}.

    λ doubles the shared prefix and suffix of good answers and drops them from bad ones, so that
    tokens common to both are never pushed both ways. κ filters completions whose mean entropy
    h_i exceeds the limit when the initial policy's did not.
    """

    title = "conflict tokens, entropy filter"
    needs = ("entropy",)
    group_needs = ("tokens",)
    measured = ("initial_entropy",)

    def of_group(self, groups: Sequences) -> Tensor:
        """How often (0, 1 or 2) each token lies in a conflict prefix or suffix of its group.

        A token is in a conflict prefix if it and every token before it also stands at the same
        position in some positive and some negative completion of the group; suffixes count
        positions from the last token.
        """
        assert groups.tokens is not None
        advantages, mask, size = groups.per_token, groups.mask, groups.group_size
        order, back = _compaction(mask)
        compact, valid = groups.tokens.gather(1, order), mask.gather(1, order)
        signs = advantages.gather(1, order)
        prefix = _shared_run(compact, valid, signs, size)
        flip = _right_alignment(valid)
        suffix = _shared_run(compact.gather(1, flip), valid, signs.gather(1, flip), size)
        hits = prefix.int() + suffix.gather(1, flip).int()
        return torch.where(mask & (advantages != 0), hits.gather(1, back), 0)

    def measure(self, entropy: Tensor, mask: Tensor, reduce: Reducer) -> dict[str, float]:
        mask = mask & entropy.isfinite()  # what is broken is for the update to tell
        sums = torch.stack([torch.where(mask, entropy, 0.0).sum(), mask.sum().to(entropy.dtype)])
        total, count = reduce.sum(sums).tolist()
        return {"initial_entropy": total / count} if count else {}

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.entropy is not None and batch.group is not None
        advantages = batch.per_token
        length = batch.mask.sum(1).clamp_min(1)
        mean_entropy = torch.where(batch.mask, batch.entropy, 0.0).sum(1) / length  # [B]
        limit = batch.option("entropy_limit")
        filtered = (mean_entropy > limit) & (batch.option("initial_entropy") < limit)
        shaped = advantages - batch.option("gamma") * mean_entropy[:, None]
        factor = select(advantages > 0, 2.0, 0.0, shaped.dtype).pow(batch.group)
        return Shaped(shaped.masked_fill(filtered[:, None], 0.0) * factor * batch.mask, batch.mask)


class GroupAdvantages(Shaping):
    """A shaping whose `of_group` finds the token advantages themselves."""

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.group is not None
        return Shaped(batch.group.to(batch.advantages.dtype) * batch.mask, batch.mask)


class EntropyReward(GroupAdvantages):
    """GTPO (token entropy): rewards shaped by each token's share of its group's entropy, whitened.

    Good answers gain where they were uncertain, bad ones lose where they were confident. The
    rollout policy's entropy is used, so the result is constant under differentiation.

    Entropies are floored instead of the denominators: with ε in a denominator, a prompt with one
    good answer has shares 1 - O(ε/H), and whitening would blow that artefact up to order one.
    """

    title = "entropy-shaped rewards, whitened"
    group_needs = ("old_entropy",)

    def of_group(self, groups: Sequences) -> Tensor:
        assert groups.old_entropy is not None
        mask, options = groups.mask, groups.options
        order, back = _compaction(mask)
        valid = mask.gather(1, order)
        entropy = groups.old_entropy.detach().double().gather(1, order).clamp_min(1e-8)
        shape = (-1, groups.group_size, mask.shape[1])  # [P, G, T]
        sign = groups.per_token.gather(1, order).view(shape)
        alpha1, alpha2 = float(options["alpha1"]), float(options["alpha2"])
        sets, shaped = [], torch.zeros_like(entropy).view(shape)
        for side, direction, signal in ((sign > 0, 1, entropy), (sign < 0, -1, 1 / entropy)):
            members = valid.view(shape) & side
            signal = torch.where(members, signal.view(shape), 0.0)
            share = members.sum(1, keepdim=True) * signal / signal.sum(1, keepdim=True)
            shaped = torch.where(members, direction * (alpha1 + alpha2 * share), shaped)
            sets.append(members)
        if options["norm"] == "joint":
            sets = [sets[0] | sets[1]]
        whitened = torch.stack([_whiten(shaped, members) for members in sets]).sum(0)
        return whitened.view_as(entropy).gather(1, back).to(groups.old_entropy.dtype)


class ScoreBaseline(GroupAdvantages):
    """A - Σ n A / Σ n over the group: the baseline of least variance, n the score's squared norm.

    Completions of advantage 0 (without a verdict, or of a group that agrees) keep it and count for
    nobody.
    """

    title = "A - Σ n A / Σ n, n the score's squared norm"
    group_needs = ("old_logp", "old_log_pmax")

    def of_group(self, groups: Sequences) -> Tensor:
        assert groups.old_logp is not None and groups.old_log_pmax is not None
        advantages, mask = groups.per_token, groups.mask
        norms = score_norm(groups.old_logp, groups.old_log_pmax, mask)[:, None]
        counted = advantages != 0

        def total(x: Tensor) -> Tensor:
            sums = (x * counted).view(-1, groups.group_size, x.shape[1]).sum((1, 2))
            return sums.repeat_interleave(groups.group_size)[:, None]

        share = mask.sum(1, keepdim=True).clamp_min(1)
        weight = norms.expand_as(advantages) / share
        baseline = total(weight * advantages) / total(weight).clamp_min(1e-12)
        return torch.where(counted, advantages - baseline, 0.0)


def _shared_run(tokens: Tensor, valid: Tensor, advantages: Tensor, group_size: int) -> Tensor:
    t = tokens.view(-1, group_size, tokens.shape[1])  # [P, G, T]
    v = valid.view_as(t)
    sign = advantages.view_as(t)
    shared = torch.ones_like(v)
    for side in (sign > 0, sign < 0):
        member = v & side
        same = (t[:, :, None] == t[:, None]) & member[:, None]  # [P, G, G, T]
        shared &= same.any(2)
    return (shared & v).int().cumprod(-1).bool().view_as(valid)


def _whiten(values: Tensor, members: Tensor) -> Tensor:
    """(x - mean) / std over the members of each prompt; exactly 0 elsewhere and where all agree.

    Without that exception, dividing by std + 1e-8 would blow rounding of equal values up.
    """
    count = members.sum((1, 2), keepdim=True)
    mean = torch.where(members, values, 0.0).sum((1, 2), keepdim=True) / count.clamp_min(1)
    centred = torch.where(members, values - mean, 0.0)
    std = (centred.square().sum((1, 2), keepdim=True) / (count - 1).clamp_min(1)).sqrt()
    apart = ~(std <= 1e-12 * mean.abs())  # true of NaN, which must not become 0
    return torch.where(members & apart, centred / (std + 1e-8), 0.0)


def _compaction(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The permutation that moves each row's valid tokens to the left, and its inverse."""
    order = (~mask).int().argsort(dim=1, stable=True)
    return order, order.argsort(dim=1)


def _right_alignment(valid: Tensor) -> Tensor:
    """Indices that reverse the valid (left-compacted) tokens of each row; its own inverse."""
    length = valid.sum(1, keepdim=True)
    position = torch.arange(valid.shape[1], device=valid.device)[None]
    return torch.where(position < length, length - 1 - position, position)
