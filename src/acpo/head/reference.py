"""The head by dense autograd: materialise the logits, apply the definition. Slow and obvious."""

from typing import Any

import torch
from torch import Tensor

from acpo.head.projection import Projection
from acpo.objectives import Method, TokenStats, get_method, stats_from_logits
from acpo.objectives.loss import evaluate_tokens, kl_penalty


def reference_stats(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    align_tol: float = 1e-6,
) -> TokenStats:
    """`token_stats` from `[N, V]` logits, differentiable in every field but `is_mode`."""
    logits = hidden @ weight.t()
    if bias is not None:
        logits = logits + bias
    z = Projection(temperature, softcap, logit_scale).scaled(logits)
    return stats_from_logits(logits=z, tokens=tokens, align_tol=align_tol)


def reference_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    old_logp: Tensor | None,
    advantages: Tensor,
    weights: Tensor,
    method: str | Method = "acpo",
    sequence_ids: Tensor | None = None,
    entropy_max: Tensor | float | None = None,
    ref_logp: Tensor | None = None,
    beta: float = 0.0,
    entropy_weights: Tensor | None = None,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    **options: Any,
) -> tuple[Tensor, TokenStats]:
    """`fused_policy_loss` from `[N, V]` logits; arguments alike."""
    method = get_method(method, **options)
    stats = reference_stats(
        hidden,
        weight,
        tokens,
        bias=bias,
        temperature=temperature,
        softcap=softcap,
        logit_scale=logit_scale,
        align_tol=float(method.options["align_tol"]),
    )
    valid = weights != 0
    if entropy_max is None and "entropy_norm" in method.options:
        norm = method.options["entropy_norm"]
        entropy_max = stats.entropy.detach()[valid].max() if norm == "batch_max" else float(norm)

    def sequence_mean(x: Tensor) -> Tensor:
        assert sequence_ids is not None
        mean = torch.zeros_like(x)
        for sequence in sequence_ids.unique():
            members = (sequence_ids == sequence) & valid
            mean = torch.where(members, x[members].mean(), mean)
        return mean

    gated, credit = evaluate_tokens(
        method,
        stats=stats,
        old_logp=stats.logp.detach() if old_logp is None else old_logp,
        advantages=advantages,
        sequence_mean=sequence_mean,
        entropy_max=entropy_max,
    )
    value = advantages * gated.value * credit.value
    if beta:
        assert ref_logp is not None
        value = value - beta * kl_penalty(stats.logp, ref_logp)
    loss = -(weights * value).sum()
    if entropy_weights is not None:
        loss = loss - (entropy_weights * stats.entropy).sum()
    return loss, stats
