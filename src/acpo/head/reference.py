"""The head by dense autograd: materialise the logits, apply the definition. Slow and obvious."""

import torch
from torch import Tensor

from acpo.head.lookup import LanguageModelHead
from acpo.head.terms import TokenTerms
from acpo.objectives import TokenStats, stats_from_logits
from acpo.objectives.gates import GATES, SequenceMean
from acpo.objectives.loss import evaluate_tokens, kl_penalty, objective_value
from acpo.objectives.tokens import mean_top_logp, scaled_log_probs


def reference_stats(
    hidden: Tensor,
    head: LanguageModelHead | Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    align_tol: float = 1e-6,
) -> TokenStats:
    """`token_stats` from `[N, V]` logits, differentiable in every field but `is_mode`."""
    logits = LanguageModelHead.of(head).logits(hidden)
    return stats_from_logits(
        logits=logits, tokens=tokens, temperature=temperature, align_tol=align_tol
    )


def reference_policy_loss(
    hidden: Tensor, head: LanguageModelHead | Tensor, terms: TokenTerms
) -> Tensor:
    """`fused_policy_loss` from `[N, V]` logits."""
    assert terms.weights is not None
    valid = terms.weights != 0

    def sequence_mean(x: Tensor, *, total: bool = False) -> Tensor:
        assert terms.sequence_ids is not None
        found = torch.zeros_like(x)
        for sequence in terms.sequence_ids.unique():
            members = (terms.sequence_ids == sequence) & valid
            found = torch.where(members, x[members].sum() if total else x[members].mean(), found)
        return found

    terms.stats = reference_stats(
        hidden, head, terms.tokens, temperature=terms.temperature, align_tol=terms.align_tol
    )
    top_logp = None
    if terms.method.candidates:
        log_probs = scaled_log_probs(LanguageModelHead.of(head).logits(hidden), terms.temperature)
        top_logp = mean_top_logp(log_probs, terms.method.candidates, terms.tokens)
    return loss_from_stats(terms, terms.stats, sequence_mean, top_logp)


def loss_from_stats(
    terms: TokenTerms,
    stats: TokenStats,
    sequence_mean: SequenceMean,
    top_logp: Tensor | None = None,
) -> Tensor:
    """The loss by autograd through differentiable statistics; every term of it."""
    assert terms.advantages is not None and terms.weights is not None
    method, entropy_max = terms.method, terms.entropy_max
    if entropy_max is None and method.credit.signal == "entropy":
        valid = terms.weights != 0
        entropy_max = torch.where(valid, stats.entropy.detach(), 0.0).max().clamp_min(1e-8)
    old_logp = stats.logp.detach() if terms.old_logp is None else terms.old_logp
    gated, credit = evaluate_tokens(
        method,
        stats=stats,
        old_logp=old_logp,
        advantages=terms.advantages,
        sequence_mean=sequence_mean,
        entropy_max=entropy_max,
        marks=terms.marks,
        top_logp=top_logp,
    )
    value = objective_value(terms.advantages, gated, credit)
    if terms.beta:
        assert terms.ref_logp is not None
        kl = kl_penalty(stats.logp, terms.ref_logp)
        if terms.corrects_kl:
            log_ratio = stats.logp - old_logp
            shared = GATES[method.gate].one_ratio
            kl = kl * (sequence_mean(log_ratio) if shared else log_ratio).exp()
        value = value - terms.beta * kl
    loss = -(terms.weights * value).sum()
    if terms.entropy_weights is not None:
        loss = loss - (terms.entropy_weights * stats.entropy).sum()
    return loss
