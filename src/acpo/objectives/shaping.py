"""From one advantage per sequence to one per token, where a row looks at other tokens.

A shaping is one object, and engines know none of them by name. What it needs of other sequences
reaches it in two steps. `of_group` sees whole groups of completions once, when a rollout is
complete. `shape` sees one mini-batch and, through a `Reducer`, sums over whoever shares it: nobody
in `dense_loss`, the processes of a trainer, verl's data-parallel group. After that, every
remaining step of every row is local to the token (or, for GSPO and GMPO, to its sequence).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from acpo.objectives.credit import CreditRule
from acpo.objectives.tokens import select


class Reducer(Protocol):
    """How parts of one mini-batch learn of each other."""

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the parts."""
        ...

    def maximum(self, x: Tensor) -> Tensor:
        """Elementwise maximum over the parts."""
        ...

    def gather(self, values: Tensor) -> Tensor:
        """One-dimensional values of all parts, of whatever lengths."""
        ...


class Alone:
    """The reducer of a mini-batch that is all in one place."""

    def sum(self, x: Tensor) -> Tensor:
        return x

    def maximum(self, x: Tensor) -> Tensor:
        return x

    def gather(self, values: Tensor) -> Tensor:
        return values


class Groups(NamedTuple):
    """Whole groups of completions, `[B, T]`, the rows of a group consecutive.

    Attributes:
        advantages: `[B]`.
        mask: true at valid completion tokens.
        group_size: completions per prompt.
        options: the method's.
        tokens: sampled ids.
        old_entropy: entropies under the rollout policy.
    """

    advantages: Tensor
    mask: Tensor
    group_size: int
    options: Mapping[str, Any]
    tokens: Tensor | None = None
    old_entropy: Tensor | None = None


class Sequences(NamedTuple):
    """A mini-batch, or this process's part of it, `[B, T]`.

    Attributes:
        advantages: `[B]`.
        mask: true at valid completion tokens.
        credit, options: the method's.
        entropy, log_pmax: under the current policy, detached.
        group: what `of_group` found.
    """

    advantages: Tensor
    mask: Tensor
    credit: CreditRule
    options: Mapping[str, Any]
    entropy: Tensor | None = None
    log_pmax: Tensor | None = None
    group: Tensor | None = None


class Shaped(NamedTuple):
    """`[B, T]` token advantages, and which tokens are trained on at all."""

    advantages: Tensor
    trained: Tensor


class Shaping:
    """Every token gets its sequence's advantage. Rows that do otherwise override this.

    Attributes:
        title: what it does to tokens, in a few words.
        needs: statistics of the current policy `shape` reads: "entropy", "log_pmax".
        group_needs: what `of_group` reads: "tokens", "old_entropy". Empty: groups do not matter.
        measured: options that are measured on the first rollout unless set.
    """

    title: str = ""
    needs: tuple[str, ...] = ()
    group_needs: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()

    def of_group(self, groups: Groups) -> Tensor:
        """A `[B, T]` column that `shape` reads later, from whole groups."""
        raise NotImplementedError

    def measure(self, entropy: Tensor, mask: Tensor, reduce: Reducer) -> dict[str, float]:
        """Values of the `measured` options, from the first rollout's entropies."""
        return {}

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        """Token advantages of a mini-batch; the same however it is split."""
        return Shaped(batch.advantages[:, None] * batch.mask, batch.mask)


class TopEntropy(Shaping):
    """80/20: only tokens whose entropy reaches the (1 - quantile)-quantile of all valid tokens."""

    title = "top 20% entropy tokens"
    needs = ("entropy",)

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.entropy is not None
        everyone = reduce.gather(batch.entropy[batch.mask])
        trained = batch.mask
        if everyone.numel():
            quantile = 1 - float(batch.options["top_entropy_quantile"])
            trained = trained & (batch.entropy >= valid_quantile(everyone, quantile))
        return Shaped(batch.advantages[:, None] * trained, trained)


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

    def of_group(self, groups: Groups) -> Tensor:
        """How often (0, 1 or 2) each token lies in a conflict prefix or suffix of its group.

        A token is in a conflict prefix if it and every token before it also stands at the same
        position in some positive and some negative completion of the group; suffixes count
        positions from the last token.
        """
        assert groups.tokens is not None
        advantages, mask, size = groups.advantages, groups.mask, groups.group_size
        order, back = _compaction(mask)
        compact, valid = groups.tokens.gather(1, order), mask.gather(1, order)
        prefix = _shared_run(compact, valid, advantages, size)
        flip = _right_alignment(valid)
        suffix = _shared_run(compact.gather(1, flip), valid, advantages, size)
        hits = prefix.int() + suffix.gather(1, flip).int()
        return torch.where(mask & (advantages != 0)[:, None], hits.gather(1, back), 0)

    def measure(self, entropy: Tensor, mask: Tensor, reduce: Reducer) -> dict[str, float]:
        sums = torch.stack([torch.where(mask, entropy, 0.0).sum(), mask.sum().to(entropy.dtype)])
        total, count = reduce.sum(sums).tolist()
        return {"initial_entropy": total / max(count, 1.0)}

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.entropy is not None and batch.group is not None
        options, advantages = batch.options, batch.advantages
        length = batch.mask.sum(1).clamp_min(1)
        mean_entropy = torch.where(batch.mask, batch.entropy, 0.0).sum(1) / length  # [B]
        limit = float(options["entropy_limit"])
        filtered = (mean_entropy > limit) & (float(options["initial_entropy"]) < limit)
        shaped = torch.where(filtered, 0.0, advantages - float(options["gamma"]) * mean_entropy)
        factor = select(advantages > 0, 2.0, 0.0, shaped.dtype)[:, None]
        return Shaped(shaped[:, None] * factor.pow(batch.group) * batch.mask, batch.mask)


class EntropyReward(Shaping):
    """GTPO (token entropy): rewards shaped by each token's share of its group's entropy, whitened.

    Good answers gain where they were uncertain, bad ones lose where they were confident. The
    rollout policy's entropy is used, so the result is constant under differentiation.

    Entropies are floored instead of the denominators: with ε in a denominator, a prompt with one
    good answer has shares 1 - O(ε/H), and whitening would blow that artefact up to order one.
    """

    title = "entropy-shaped rewards, whitened"
    group_needs = ("old_entropy",)

    def of_group(self, groups: Groups) -> Tensor:
        """The token advantages themselves."""
        assert groups.old_entropy is not None
        mask, options = groups.mask, groups.options
        order, back = _compaction(mask)
        valid = mask.gather(1, order)
        entropy = groups.old_entropy.detach().double().gather(1, order).clamp_min(1e-8)
        shape = (-1, groups.group_size, mask.shape[1])  # [P, G, T]
        sign = groups.advantages.view(-1, groups.group_size, 1)
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

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.group is not None
        return Shaped(batch.group.to(batch.advantages.dtype) * batch.mask, batch.mask)


class Balance(Shaping):
    """Each branch divided by its mean first-order weight, so that credit moves within it only.

    The mean of c over a branch is Σ ω|A|c / Σ ω|A| with ω a token's weight in the mean over its
    sequence; `LEAST` bounds it, so that a policy sure of everything is not scaled up without end.
    """

    title = "each branch divided by its mean weight"
    needs = ("log_pmax",)
    LEAST = 1e-3

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.log_pmax is not None
        advantages, mask = batch.advantages, batch.mask
        valid = mask.to(advantages.dtype)
        share = valid / valid.sum(1, keepdim=True).clamp_min(1)
        size = share * advantages.abs()[:, None]
        positive = (advantages > 0)[:, None].expand_as(mask)
        delta = -torch.expm1(torch.where(mask, batch.log_pmax, 0.0)).to(size.dtype)
        credit = batch.credit.first_order(delta, positive, batch.options)
        both = torch.stack([size * credit, size])
        sums = reduce.sum(torch.stack([both[:, positive].sum(1), both[:, ~positive].sum(1)]))
        means = (sums[:, 0] / sums[:, 1].clamp_min(1e-12)).clamp_min(self.LEAST)
        scaled = advantages / torch.where(advantages > 0, means[0], means[1])
        return Shaped(scaled[:, None] * mask, mask)


def valid_quantile(values: Tensor, q: float) -> Tensor:
    """torch.quantile (linear interpolation) without its limit of 2^24 elements."""
    ordered = values.sort().values
    position = q * (ordered.numel() - 1)
    low = int(position)
    high = min(low + 1, ordered.numel() - 1)
    return torch.lerp(ordered[low], ordered[high], position - low)


def _shared_run(tokens: Tensor, valid: Tensor, advantages: Tensor, group_size: int) -> Tensor:
    t = tokens.view(-1, group_size, tokens.shape[1])  # [P, G, T]
    v = valid.view_as(t)
    sign = advantages.view(-1, group_size, 1)
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
    return torch.where(std > 1e-12 * mean.abs(), centred / (std + 1e-8), 0.0)


def _compaction(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The permutation that moves each row's valid tokens to the left, and its inverse."""
    order = (~mask).int().argsort(dim=1, stable=True)
    return order, order.argsort(dim=1)


def _right_alignment(valid: Tensor) -> Tensor:
    """Indices that reverse the valid (left-compacted) tokens of each row; its own inverse."""
    length = valid.sum(1, keepdim=True)
    position = torch.arange(valid.shape[1], device=valid.device)[None]
    return torch.where(position < length, length - 1 - position, position)
