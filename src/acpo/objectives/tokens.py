"""What the objectives need to know about one token under the current policy."""

from typing import NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError


class TokenStats(NamedTuple):
    """Statistics of the policy at each sampled token; all of one shape, `[B, T]` or `[N]`.

    Attributes:
        logp: log π(y) of the sampled token y, differentiable.
        log_pmax: log π(v*) of the policy mode v*. Equal to `logp` where `is_mode`.
        is_mode: whether y is the mode. A tie within `align_tol` counts, and then v* := y.
        entropy: Shannon entropy in nats.
    """

    logp: Tensor
    log_pmax: Tensor
    is_mode: Tensor
    entropy: Tensor


def select(condition: Tensor, yes: float, no: float, dtype: torch.dtype) -> Tensor:
    """`yes` where the condition holds, else `no`; torch.where would round both to float32."""
    chosen = torch.full_like(condition, no, dtype=dtype)
    return chosen.masked_fill_(condition, yes)


def scaled_log_probs(logits: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / T) over the last dimension, in float32 or better."""
    if not temperature > 0:
        raise ACPOError(
            f"temperature={temperature} must be positive; use the temperature the rollouts were "
            "sampled with (1.0 in the paper)"
        )
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return torch.log_softmax(wide / temperature, dim=-1)


def is_policy_mode(logp: Tensor, log_pmax: Tensor, align_tol: float) -> Tensor:
    """Whether the sampled token is the mode: p_max - p_y <= align_tol."""
    return log_pmax.exp() - logp.exp() <= align_tol


def likeliest(logits: Tensor, count: int, tokens: Tensor) -> Tensor:
    """`[..., count]` ids of the likeliest tokens, likeliest first, the smaller id first in a tie.

    Where fewer tokens are possible at all, the sampled token takes the places left.
    """
    left, found = logits.detach().clone(), []
    for _ in range(count):
        best = left.argmax(-1, keepdim=True)  # the first of equals
        possible = left.gather(-1, best) > -1e30
        found.append(torch.where(possible, best, tokens[..., None]))
        left.scatter_(-1, best, -torch.inf)
    return torch.cat(found, -1)


def mean_top_logp(log_probs: Tensor, count: int, tokens: Tensor) -> Tensor:
    """The mean log-probability of the likeliest tokens; which they are is constant."""
    return log_probs.gather(-1, likeliest(log_probs, count, tokens)).mean(-1)


def stats_from_logits(
    *, logits: Tensor, tokens: Tensor, temperature: float = 1.0, align_tol: float = 1e-6
) -> TokenStats:
    """Token statistics from materialised logits, differentiable in every field but `is_mode`.

    Args:
        logits: `[..., V]`.
        tokens: sampled token ids, `[...]`.
        temperature: rollout temperature; the policy is softmax(logits / temperature).
        align_tol: largest p_max - p_y at which the sampled token still counts as the mode.
    """
    log_probs = scaled_log_probs(logits, temperature)  # [..., V]
    logp = log_probs.gather(-1, tokens[..., None]).squeeze(-1)
    # A gather at the fixed index keeps v* constant under differentiation; max() would split ties.
    mode = log_probs.argmax(-1, keepdim=True)
    log_pmax = log_probs.gather(-1, mode).squeeze(-1)
    is_mode = is_policy_mode(logp.detach(), log_pmax.detach(), align_tol)
    # -inf logits (masked vocabulary) have p log p = 0.
    entropy = -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(-1)
    return TokenStats(logp, torch.where(is_mode, logp, log_pmax), is_mode, entropy)
