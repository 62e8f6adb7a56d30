"""Closed-form loss coefficients of each row, by torch. The Triton kernel computes the same."""

import torch
from torch import Tensor

from acpo.head.rows import Policy, RowCoefficients, RowStats
from acpo.objectives.gates import SequenceMean
from acpo.objectives.loss import token_coefficients


def missing_sequence_mean(x: Tensor) -> Tensor:
    raise AssertionError("a method that averages over sequences needs sequence_ids")


def row_coefficients(
    stats: RowStats, policy: Policy, sequence_mean: SequenceMean = missing_sequence_mean
) -> RowCoefficients:
    """Loss share and gradient scalars of each row; all 0 where the row's logits are not finite."""
    finite = stats.finite()
    clean = stats.tokens()._replace(
        logp=torch.where(finite, stats.logp, 0.0),
        log_pmax=torch.where(finite, stats.log_pmax, 0.0),
        entropy=torch.where(finite, stats.entropy, 0.0),
    )
    c = token_coefficients(
        policy.method,
        stats=clean,
        old_logp=clean.logp if policy.old_logp is None else policy.old_logp,
        advantages=policy.advantages,
        sequence_mean=sequence_mean,
        entropy_max=policy.entropy_max,
        ref_logp=policy.ref_logp,
        beta=policy.beta,
    )
    weights = torch.where(finite, policy.weights, 0.0)
    value, h = -weights * c.value, -weights * c.h
    if policy.entropy_weights is not None:
        bonus = torch.where(finite, policy.entropy_weights, 0.0)
        value, h = value - bonus * clean.entropy, h - bonus
    return RowCoefficients(value, -weights * c.a, -weights * c.b * clean.log_pmax.exp(), h)
