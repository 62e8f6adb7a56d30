"""From token statistics to objectives, losses and closed-form gradients.

Every method's per-token objective is J = A · f(w) · c - penalty - β · KL, and its gradient with
respect to the scaled logits z = logits / T is

    a (e_y - p) + b m (e_{v*} - p) + h (-p ⊙ (log p + H)) + Σ_k t_k (e_k - p),    m = p_max,

k over the likeliest tokens, in rows that look at them. `token_coefficients` gives J, a, b, h and t
in closed form; `token_objective` gives J for autograd.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives.batch import Batch, check_gradient_paths, prepare_batch, row_and_batch
from acpo.objectives.credit import Credit, credit_multipliers
from acpo.objectives.gates import GATES, Gated, SequenceMean, TokenInputs
from acpo.objectives.method import Method
from acpo.objectives.methods import get_method
from acpo.objectives.metrics import Tally, tally_tokens
from acpo.objectives.tokens import TokenStats


class TokenObjective(NamedTuple):
    """Per-token objective J (0 where masked; maximise it) and scalar metrics."""

    value: Tensor
    metrics: dict[str, Tensor]


class TokenCoefficients(NamedTuple):
    """Closed form of every token: J and the scalars of its logit gradient (see the module text).

    `top` is t, one number more per likely token; None in rows without.
    """

    value: Tensor
    a: Tensor
    b: Tensor
    h: Tensor
    top: Tensor | None = None


def aggregation_weights(
    method: str | Method,
    mask: Tensor,
    *,
    num_sequences: int | float | None = None,
    num_tokens: int | float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Weights `[B, T]` such that loss = -Σ weights · J, with the mask folded in.

    Args:
        method: a row of `METHODS`.
        mask: `[B, T]`.
        num_sequences: sequences in the whole mini-batch, if this is a part of it.
        num_tokens: valid tokens in the whole mini-batch, likewise.
        dtype: of the result.
    """
    valid, method = mask.to(dtype), get_method(method)
    if method.aggregation == "token_mean":
        total = valid.sum() if num_tokens is None else num_tokens
        return valid / torch.as_tensor(total, dtype=dtype, device=valid.device).clamp_min(1)
    each = valid / sequence_divisors(method, valid)
    return each / (mask.shape[0] if num_sequences is None else num_sequences)


def sequence_divisors(method: Method, valid: Tensor) -> Tensor | float:
    """What the sum over a sequence's tokens is divided by: its length, or a constant."""
    if method.aggregation != "fixed_length":
        return valid.sum(1, keepdim=True).clamp_min(1)
    longest = method.options["max_length"]
    if longest is None:
        raise ACPOError(
            f"max_length is missing: method {method.name!r} divides by the longest completion "
            "allowed; set it to the generation limit"
        )
    return float(longest)


def evaluate_tokens(method: Method, inputs: TokenInputs) -> tuple[Gated, Credit]:
    """Gate f(w) and credit c of every token; advantages already per token."""
    return GATES[method.gate].apply(inputs), credit_multipliers(method.credit, inputs)


def objective_value(advantages: Tensor, gated: Gated, credit: Credit) -> Tensor:
    """J before the KL term."""
    value = advantages * gated.value * credit.value
    return value if gated.penalty is None else value - gated.penalty


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """The k3 estimate of KL(π || π_ref): e^d - d - 1 with d = log π_ref - log π."""
    d = ref_logp - logp
    return d.exp() - d - 1


def kl_ratio(method: Method, log_ratio: Tensor, sequence_mean: SequenceMean) -> Tensor:
    """The importance ratio that corrects a KL estimate: each token's, or that of its sequence."""
    return (sequence_mean(log_ratio) if GATES[method.gate].one_ratio else log_ratio).exp()


def token_coefficients(
    method: Method, inputs: TokenInputs, *, ref_logp: Tensor | None = None, beta: float = 0.0
) -> TokenCoefficients:
    """J and its gradient scalars (a, b, h, t) for every token, in closed form."""
    advantages = inputs.advantages
    with torch.no_grad():
        gated, credit = evaluate_tokens(method, inputs)
        value = objective_value(advantages, gated, credit)
        a = advantages * gated.slope * credit.value
        if gated.penalty_slope is not None:
            a = a - gated.penalty_slope
        signal = advantages * gated.value * credit.slope  # dJ/dS
        none = torch.zeros_like(signal)
        b, h = none, none
        if method.credit.signal == "delta":  # ∇δ = -m (e_v* - p)
            b = -signal
        elif method.credit.signal == "entropy":  # ∇ē = ∇H / H_max
            assert inputs.entropy_max is not None
            h = signal / inputs.entropy_max
        if beta:
            assert ref_logp is not None
            value = value - beta * kl_penalty(inputs.logp, ref_logp)
            a = a - beta * (1 - (ref_logp - inputs.logp).exp())
        top = None
        if gated.top_slope is not None:
            each = advantages * gated.top_slope * credit.value / method.candidates
            top = each[..., None].expand(*each.shape, method.candidates)
        return TokenCoefficients(value, a, b, h, top)


def token_objective(
    method: str | Method,
    *,
    stats: TokenStats,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    ref_logp: Tensor | None = None,
    beta: float = 0.0,
    entropy_max: Tensor | float | None = None,
    marks: Tensor | None = None,
    top_logp: Tensor | None = None,
    **rest: Any,
) -> TokenObjective:
    """Per-token objective of any method, differentiable through `stats`.

    Args:
        method: a row of `METHODS`.
        stats: `[B, T]` statistics of the current policy.
        old_logp: `[B, T]` log-probabilities under the rollout policy.
        advantages: `[B]`, or `[B, T]` as `shape_tokens` returns them: final.
        mask: `[B, T]`, true at valid completion tokens.
        ref_logp: `[B, T]` log-probabilities under the reference policy, for `beta`.
        beta: weight of the KL penalty.
        entropy_max: H_max of the Shannon rows, if this is a part of a larger mini-batch.
        marks: `[B, T]` as `shape_tokens` returns them, beside its advantages.
        top_logp: `[B, T]` mean log-probability of the K likeliest tokens; simko only.
        **rest: what `shape_tokens` takes of the rollout (`tokens`, `group_size`, `old_entropy`,
            `old_log_pmax`), where the row needs it, and the row's options, e.g. `tau_pos`.
    """
    row, rollout = row_and_batch(method, rest)
    batch = prepare_batch(
        row,
        stats=stats,
        old_logp=old_logp,
        advantages=advantages,
        mask=mask,
        ref_logp=ref_logp,
        beta=beta,
        entropy_max=entropy_max,
        shaped=advantages.dim() == 2,
        marks=marks,
        top_logp=top_logp,
        **rollout,
    )
    check_gradient_paths(row, stats, top_logp)
    return batch_objective(batch, beta)


def batch_objective(batch: Batch, beta: float = 0.0) -> TokenObjective:
    """The objective of a batch that was checked and shaped."""
    gated, credit = evaluate_tokens(batch.method, batch.inputs)
    value = objective_value(batch.inputs.advantages, gated, credit)
    if beta and batch.ref_logp is not None:
        value = value - beta * kl_penalty(batch.inputs.logp, batch.ref_logp)
    tallies = tally_tokens(batch.method, batch.inputs, batch.mask, gated, credit)
    return TokenObjective(torch.where(batch.mask, value, 0.0), Tally.means(tallies))
