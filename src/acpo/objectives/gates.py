"""How the importance ratio w = π/π_old enters each objective.

Every objective is A · f(w) · c. A gate gives f, differentiable in log π(y), and its closed-form
slope ∂f/∂log π(y), which the fused head uses instead of autograd.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.objectives.tokens import select

MAX_LOG_RATIO = 20.0

SequenceMean = Callable[[Tensor], Tensor]
"""Mean over the valid tokens of each sequence, broadcast back to every token."""


def segment_mean(ids: Tensor, valid: Tensor | None = None) -> SequenceMean:
    """A SequenceMean for flat tokens: over the valid ones of each run of equal ids.

    Sums run in order, so that repeated runs give the same bits.
    """

    def mean(x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x
        counted = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        _, lengths = ids.unique_consecutive(return_counts=True)
        total = torch.segment_reduce(torch.where(counted, x, 0.0), "sum", lengths=lengths)
        count = torch.segment_reduce(counted.to(x.dtype), "sum", lengths=lengths)
        return (total / count.clamp_min(1)).repeat_interleave(lengths)

    return mean


class Gated(NamedTuple):
    """A gate's output, per token.

    Attributes:
        value: f, differentiable in logp.
        slope: ∂f/∂logp. For the sequence-level gates, |y| times it: the token's share.
        saturated: where the gate clips, caps, or leaves less than a tenth of the gradient.
    """

    value: Tensor
    slope: Tensor
    saturated: Tensor


class GateInputs(NamedTuple):
    """What a gate may read. `positive` is A > 0, per token."""

    logp: Tensor
    old_logp: Tensor
    positive: Tensor
    sequence_mean: SequenceMean
    options: Mapping[str, Any]


def log_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """log w, bounded so that exp never overflows; a bounded token passes no gradient."""
    return (logp - old_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _ratio_slope(gate: GateInputs) -> Tensor:
    """∂w/∂logp: w itself, and 0 where the log ratio is bounded."""
    raw = (gate.logp - gate.old_logp).detach()
    return torch.where(raw.abs() <= MAX_LOG_RATIO, raw.exp(), 0.0)


def branch_temperature(positive: Tensor, options: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """τ_pos where A > 0, τ_neg elsewhere."""
    return select(positive, float(options["tau_pos"]), float(options["tau_neg"]), dtype)


def soft_gate(gate: GateInputs) -> Gated:
    """SAPO: f(w) = (4/τ) σ(τ(w - 1)), so f'(1) = 1 (Eq. "soft_gate")."""
    ratio = log_ratio(gate.logp, gate.old_logp).exp()
    tau = branch_temperature(gate.positive, gate.options, ratio.dtype)
    x = tau * (ratio - 1)
    derivative = (4 * torch.sigmoid(x) * torch.sigmoid(-x)).detach()  # f'(w), 1 at w = 1
    return Gated(4 / tau * torch.sigmoid(x), derivative * _ratio_slope(gate), derivative < 0.1)


def ratio_clip(gate: GateInputs) -> Gated:
    """GRPO, DAPO: min(wA, clip(w, 1 - ε, 1 + ε_high)A) / A."""
    ratio = log_ratio(gate.logp, gate.old_logp).exp()
    clipped, bound = _clip(ratio, gate)
    return Gated(
        torch.where(clipped, bound, ratio),
        torch.where(clipped, 0.0, _ratio_slope(gate)),
        clipped,
    )


def sequence_clip(gate: GateInputs) -> Gated:
    """GSPO: the clipped geometric-mean ratio of the whole sequence, in token form."""
    mean = gate.sequence_mean(log_ratio(gate.logp, gate.old_logp))
    ratio = mean.exp()
    clipped, bound = _clip(ratio, gate)
    return Gated(
        torch.where(clipped, bound, ratio),
        torch.where(clipped, 0.0, ratio.detach() * _in_range(gate)),
        clipped,
    )


def geometric_clip(gate: GateInputs) -> Gated:
    """GMPO: log ratios clipped one-sidedly per token, then the geometric mean over the sequence."""
    logr = log_ratio(gate.logp, gate.old_logp)
    low, high = -float(gate.options["epsilon"]), float(gate.options["epsilon_high"])
    clipped = torch.where(gate.positive, logr > high, logr < low)
    bound = select(gate.positive, high, low, logr.dtype)
    ratio = gate.sequence_mean(torch.where(clipped, bound, logr)).exp()
    slope = torch.where(clipped, 0.0, ratio.detach() * _in_range(gate))
    return Gated(ratio, slope, clipped)


def capped_reinforce(gate: GateInputs) -> Gated:
    """CISPO: sg[min(w, ε_high)] · log π(y)."""
    ratio = log_ratio(gate.logp, gate.old_logp).exp().detach()
    cap = float(gate.options["epsilon_high"])
    weight = ratio.clamp(max=cap)
    return Gated(weight * gate.logp, weight, ratio > cap)


def plain_ratio(gate: GateInputs) -> Gated:
    """GTPO: w itself, never clipped."""
    ratio = log_ratio(gate.logp, gate.old_logp).exp()
    return Gated(ratio, _ratio_slope(gate), torch.zeros_like(gate.positive))


def _clip(ratio: Tensor, gate: GateInputs) -> tuple[Tensor, Tensor]:
    high = 1 + float(gate.options["epsilon_high"])
    low = 1 - float(gate.options["epsilon"])
    clipped = torch.where(gate.positive, ratio > high, ratio < low).detach()
    return clipped, select(gate.positive, high, low, ratio.dtype)


def _in_range(gate: GateInputs) -> Tensor:
    return (gate.logp - gate.old_logp).detach().abs() <= MAX_LOG_RATIO


GATES: dict[str, Callable[[GateInputs], Gated]] = {
    "soft": soft_gate,
    "clip": ratio_clip,
    "sequence_clip": sequence_clip,
    "geometric_clip": geometric_clip,
    "capped_reinforce": capped_reinforce,
    "ratio": plain_ratio,
}
