"""From one advantage per sequence to one per token, where a method looks at other tokens.

Everything here needs the whole mini-batch. Once token advantages are known, every remaining step
of every method is local to the token (or, for GSPO and GMPO, to its sequence).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives.methods import Method, get_method
from acpo.objectives.tokens import select


def token_advantages(
    method: str | Method,
    *,
    advantages: Tensor,
    mask: Tensor,
    entropy: Tensor | None = None,
    old_entropy: Tensor | None = None,
    tokens: Tensor | None = None,
    group_size: int | None = None,
    log_pmax: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """One advantage per token, `[B, T]`, from one per sequence, `[B]`.

    This is the only step that looks across sequences. Call it on the whole mini-batch; its result
    may be split into micro-batches in any way.

    Args:
        method: a row of `METHODS`.
        advantages: `[B]`, groups consecutive.
        mask: `[B, T]`, true at valid completion tokens.
        entropy: `[B, T]` under the current policy (8020, gtpo).
        old_entropy: `[B, T]` under the rollout policy (gtpo_entropy).
        tokens: `[B, T]` sampled ids (gtpo).
        group_size: completions per prompt (gtpo, gtpo_entropy).
        log_pmax: `[B, T]` log-probability of the current policy's mode (balanced rows).
        **options: the method's options.
    """
    method = get_method(method, **options)
    mask = mask.bool()
    needs: dict[str, dict[str, Any]] = {
        "top_entropy": {"entropy": entropy},
        "conflict": {"entropy": entropy, "tokens": tokens, "group_size": group_size},
        "entropy_reward": {"old_entropy": old_entropy, "group_size": group_size},
        "balance": {"log_pmax": log_pmax},
    }
    needed = needs.get(method.shaping or "", {})
    for name, value in needed.items():
        if value is None:
            raise ACPOError(f"{name} is missing: method {method.name!r} cannot do without it")
    if "group_size" in needed and (not group_size or len(advantages) % group_size):
        raise ACPOError(
            f"group_size={group_size} does not divide the batch of {len(advantages)} sequences"
        )
    if method.shaping == "conflict":
        assert tokens is not None and entropy is not None and group_size is not None
        return conflict_advantages(
            advantages=advantages,
            tokens=tokens,
            mask=mask,
            entropy=entropy,
            group_size=group_size,
            options=method.options,
        )
    if method.shaping == "entropy_reward":
        assert old_entropy is not None and group_size is not None
        return entropy_shaped_advantages(
            advantages=advantages,
            mask=mask,
            old_entropy=old_entropy,
            group_size=group_size,
            options=method.options,
        ).to(advantages.dtype)
    if method.shaping == "balance":
        assert log_pmax is not None
        sums = branch_sums(method, advantages=advantages, mask=mask, log_pmax=log_pmax)
        return balanced_advantages(advantages=advantages, mask=mask, sums=sums)
    if method.shaping == "top_entropy":
        assert entropy is not None
        quantile = float(method.options["top_entropy_quantile"])
        mask = high_entropy_tokens(entropy=entropy, mask=mask, quantile=quantile)
    return advantages[:, None] * mask


LEAST_MEAN_CREDIT = 1e-3
"""Floor of a branch's mean weight: a policy sure of everything is not scaled up without end."""


def branch_sums(method: Method, *, advantages: Tensor, mask: Tensor, log_pmax: Tensor) -> Tensor:
    """`[2, 2]`: Σ ω|A|c and Σ ω|A| of the positive branch, then of the other; add over ranks.

    ω is a token's weight in the mean over its sequence, c its first-order weight.
    """
    valid = mask.to(advantages.dtype)
    share = valid / valid.sum(1, keepdim=True).clamp_min(1)
    size = share * advantages.abs()[:, None]
    positive = (advantages > 0)[:, None].expand_as(mask)
    delta = -torch.expm1(torch.where(mask, log_pmax.detach(), 0.0)).to(size.dtype)
    credit = method.credit.first_order(delta, positive, method.options)
    both = torch.stack([size * credit, size])
    return torch.stack([both[:, positive].sum(1), both[:, ~positive].sum(1)])


def balanced_advantages(*, advantages: Tensor, mask: Tensor, sums: Tensor) -> Tensor:
    """Each branch divided by its mean weight, so that credit moves within a branch only."""
    means = (sums[:, 0] / sums[:, 1].clamp_min(1e-12)).clamp_min(LEAST_MEAN_CREDIT)
    scaled = advantages / torch.where(advantages > 0, means[0], means[1])
    return scaled[:, None] * mask


def high_entropy_tokens(*, entropy: Tensor, mask: Tensor, quantile: float) -> Tensor:
    """80/20: the tokens whose entropy reaches the (1 - quantile)-quantile of all valid tokens."""
    valid = entropy.detach()[mask]
    if valid.numel() == 0:
        return mask
    return mask & (entropy.detach() >= valid_quantile(valid, 1 - quantile))


def valid_quantile(values: Tensor, q: float) -> Tensor:
    """torch.quantile (linear interpolation) without its limit of 2^24 elements."""
    ordered = values.sort().values
    position = q * (ordered.numel() - 1)
    low = int(position)
    high = min(low + 1, ordered.numel() - 1)
    return torch.lerp(ordered[low], ordered[high], position - low)


def conflict_advantages(
    *,
    advantages: Tensor,
    tokens: Tensor,
    mask: Tensor,
    entropy: Tensor,
    group_size: int,
    options: Mapping[str, Any],
) -> Tensor:
    """GTPO (trajectory): κ_i (A_i - γ h_i) λ_{i,t}.

    λ doubles the shared prefix and suffix of good answers and drops them from bad ones, so that
    tokens common to both are never pushed both ways. κ filters completions whose mean entropy
    h_i exceeds the limit when the initial policy's did not.
    """
    hits = conflict_hits(advantages=advantages, tokens=tokens, mask=mask, group_size=group_size)
    return shape_conflicts(
        advantages=advantages, hits=hits, mask=mask, entropy=entropy, options=options
    )


def shape_conflicts(
    *,
    advantages: Tensor,
    hits: Tensor,
    mask: Tensor,
    entropy: Tensor,
    options: Mapping[str, Any],
) -> Tensor:
    """GTPO's advantages once the conflicts (`conflict_hits`) are known; local to each sequence."""
    mean_entropy = _sequence_mean(entropy.detach(), mask)  # [B]
    limit = float(options["entropy_limit"])
    filtered = (mean_entropy > limit) & (float(options["initial_entropy"]) < limit)
    shaped = torch.where(filtered, 0.0, advantages - float(options["gamma"]) * mean_entropy)
    factor = select(advantages > 0, 2.0, 0.0, shaped.dtype)[:, None]
    return shaped[:, None] * factor.pow(hits) * mask


def conflict_hits(*, advantages: Tensor, tokens: Tensor, mask: Tensor, group_size: int) -> Tensor:
    """How often (0, 1 or 2) each token lies in a conflict prefix or suffix of its group.

    A token is in a conflict prefix if it and every token before it also stands at the same
    position in some positive and some negative completion of the group; suffixes count positions
    from the last token.
    """
    order, back = _compaction(mask)
    compact, valid = tokens.gather(1, order), mask.gather(1, order)
    prefix = _shared_run(compact, valid, advantages, group_size)
    flip = _right_alignment(valid)
    suffix = _shared_run(compact.gather(1, flip), valid, advantages, group_size)
    hits = prefix.int() + suffix.gather(1, flip).int()
    return torch.where(mask & (advantages != 0)[:, None], hits.gather(1, back), 0)


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


def entropy_shaped_advantages(
    *,
    advantages: Tensor,
    mask: Tensor,
    old_entropy: Tensor,
    group_size: int,
    options: Mapping[str, Any],
) -> Tensor:
    """GTPO (token entropy): rewards shaped by each token's share of the group's entropy, whitened.

    Good answers gain where they were uncertain, bad ones lose where they were confident. The
    rollout policy's entropy is used, so the result is constant under differentiation.

    Entropies are floored instead of the denominators: with ε in a denominator, a prompt with one
    good answer has shares 1 - O(ε/H), and whitening would blow that artefact up to order one.
    """
    order, back = _compaction(mask)
    valid = mask.gather(1, order)
    entropy = old_entropy.detach().double().gather(1, order).clamp_min(1e-8)
    shape = (-1, group_size, mask.shape[1])  # [P, G, T]
    sign = advantages.view(-1, group_size, 1)
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
    return whitened.view_as(entropy).gather(1, back).to(old_entropy.dtype)


def _whiten(values: Tensor, members: Tensor) -> Tensor:
    """(x - mean) / std over the members of each prompt; 0 elsewhere."""
    count = members.sum((1, 2), keepdim=True)
    mean = torch.where(members, values, 0.0).sum((1, 2), keepdim=True) / count.clamp_min(1)
    centred = torch.where(members, values - mean, 0.0)
    std = (centred.square().sum((1, 2), keepdim=True) / (count - 1).clamp_min(1)).sqrt()
    return torch.where(count > 1, centred / (std + 1e-8), 0.0)


def _sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1).clamp_min(1)


def _compaction(mask: Tensor) -> tuple[Tensor, Tensor]:
    """The permutation that moves each row's valid tokens to the left, and its inverse."""
    order = (~mask).int().argsort(dim=1, stable=True)
    return order, order.argsort(dim=1)


def _right_alignment(valid: Tensor) -> Tensor:
    """Indices that reverse the valid (left-compacted) tokens of each row; its own inverse."""
    length = valid.sum(1, keepdim=True)
    position = torch.arange(valid.shape[1], device=valid.device)[None]
    return torch.where(position < length, length - 1 - position, position)
