"""How far a sampler's probabilities are from the trainer's on the same tokens, and what it does.

A rollout engine draws from μ, the trainer computes π on the same weights: kernels, batching and
rounding differ. The update takes its statistics from the trainer's pass alone, so the gap enters by
which tokens were drawn, which importance ratios repair, and by what a row decides from them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives.gates import TokenInputs, segment_mean
from acpo.objectives.loss import evaluate_tokens, token_coefficients
from acpo.objectives.methods import Method, get_method
from acpo.objectives.tokens import TokenStats

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
TOLERANCES = (1e-6, 1e-3, 1e-2, 3e-2)


def sampler_gap(
    *,
    sampler: TokenStats,
    trainer: TokenStats,
    advantages: Tensor,
    mask: Tensor,
    methods: Sequence[str] = ("grpo", "sapo", "acpo"),
    clip_max: float = 3.0,
) -> dict[str, Any]:
    """Everything there is to say of the gap on one rollout, as numbers that JSON holds.

    Args:
        sampler: `[B, T]` statistics as the sampler told them; its entropy is not read.
        trainer: `[B, T]` statistics of the same tokens in the trainer's pass.
        advantages: `[B]`.
        mask: `[B, T]`, true at sampled tokens; those the sampler could not score are left out.
        methods: rows whose credit and update are compared; they must need no whole batch.
        clip_max: the cap of the correction (`vllm_importance_sampling_clip_max`).
    """
    mask = mask & sampler.logp.isfinite()
    if not mask.any():
        raise ACPOError("mask is false wherever logp is finite: there are no tokens to compare")
    log_w = torch.where(mask, trainer.logp - sampler.logp, 0.0).double()
    sequence = log_w.sum(1).exp()
    return {
        "tokens": int(mask.sum()),
        "sequences": len(mask),
        "difference": {"mean": float(log_w[mask].abs().mean()), **_spread(log_w[mask].abs())},
        "kl": float(-log_w[mask].mean()),
        "w": _spread(log_w[mask].exp()),
        "sequence_w": {
            "mean": float(sequence.mean()),
            "error": float(sequence.std() / len(sequence) ** 0.5) if len(sequence) > 1 else None,
            "over_cap": float((sequence > clip_max).double().mean()),
            "effective_share": float(sequence.sum() ** 2 / sequence.square().sum() / len(sequence)),
            **_spread(sequence),
        },
        "mode": _modes(sampler, trainer, mask),
        "rows": {
            name: _row(get_method(name), sampler, trainer, advantages, mask, clip_max)
            for name in methods
        },
    }


def _spread(x: Tensor) -> dict[str, float]:
    ordered = x.double().sort().values
    last = len(ordered) - 1
    return {f"q{100 * q:g}": float(ordered[round(q * last)]) for q in QUANTILES}


def _modes(sampler: TokenStats, trainer: TokenStats, mask: Tensor) -> dict[str, Any]:
    """Tokens that are the mode to one and not to the other, and what a wider tie would mend."""
    lost = mask & sampler.is_mode & ~trainer.is_mode
    won = mask & ~sampler.is_mode & trainer.is_mode
    apart = mask & ~sampler.is_mode & ~trainer.is_mode
    margin = trainer.log_pmax.exp() - trainer.logp.exp()
    total = mask.sum()
    return {
        "aligned_sampler": float((mask & sampler.is_mode).sum() / total),
        "aligned_trainer": float((mask & trainer.is_mode).sum() / total),
        "aligned_to_mismatched": float(lost.sum() / total),
        "mismatched_to_aligned": float(won.sum() / total),
        "lost_margin": _spread(margin[lost]) if lost.any() else None,
        "align_tol": {
            f"{tolerance:g}": {
                "mended": float((margin[lost] <= tolerance).double().mean()) if lost.any() else 0.0,
                "swallowed": float(
                    (apart & (margin <= tolerance)).sum() / apart.sum().clamp_min(1)
                ),
            }
            for tolerance in TOLERANCES
        },
    }


def _row(
    method: Method,
    sampler: TokenStats,
    trainer: TokenStats,
    advantages: Tensor,
    mask: Tensor,
    clip_max: float,
) -> dict[str, float]:
    """What one row's credit and logit gradient change by, were they not the trainer's."""
    if method.needs_whole_batch or method.credit.signal == "entropy":
        raise ACPOError(f"method {method.name!r} looks at whole batches; compare another")
    rows, _ = mask.nonzero(as_tuple=True)
    per_token = advantages[rows].double()
    ours, theirs = (
        TokenStats(x.logp[mask].double(), x.log_pmax[mask].double(), x.is_mode[mask], entropy)
        for entropy in [trainer.entropy[mask].double()]
        for x in (trainer, sampler)
    )
    sequence = torch.where(mask, trainer.logp - sampler.logp, 0.0).double().sum(1).exp()
    kept = torch.where(sequence > clip_max, 0.0, sequence)[rows]

    def evaluated(stats: TokenStats, old: Tensor) -> tuple[Tensor, Tensor]:
        inputs = TokenInputs(stats, old, per_token, segment_mean(rows), method.options)
        _, credit = evaluate_tokens(method, inputs)
        found = token_coefficients(method, inputs)
        mode = found.b * stats.log_pmax.exp()  # of v*, which is the token itself where aligned
        at_token = found.a + torch.where(stats.is_mode, mode, 0.0)
        return credit.value, torch.stack([at_token, torch.where(stats.is_mode, 0.0, mode)])

    credit, update = evaluated(ours, ours.logp)
    other_credit, by_sampler = evaluated(theirs, theirs.logp)
    _, by_ratio = evaluated(ours, theirs.logp)
    size = update.norm().clamp_min(1e-30)
    return {
        "credit_change": float((other_credit - credit).abs().mean()),
        "update_change_sampler_statistics": float((by_sampler - update).norm() / size),
        "update_change_sampler_ratio": float((by_ratio - update).norm() / size),
        "update_change_correction": float((kept * update - update).norm() / size),
    }
