"""How the importance ratio w = π/π_old enters each objective.

Every objective is A · f(w) · c. A gate gives f, differentiable in log π(y), and its closed-form
slope ∂f/∂log π(y), which the fused head uses instead of autograd.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from acpo.objectives.tokens import TokenStats, select

MAX_LOG_RATIO = 20.0


class SequenceMean(Protocol):
    """Mean over the valid tokens of each sequence (or their sum), broadcast back to every token."""

    def __call__(self, x: Tensor, *, total: bool = False) -> Tensor: ...


def segment_mean(ids: Tensor, valid: Tensor | None = None) -> SequenceMean:
    """A SequenceMean for flat tokens: over the valid ones of each run of equal ids.

    Sums run in order, so that repeated runs give the same bits.
    """

    def mean(x: Tensor, *, total: bool = False) -> Tensor:
        if x.numel() == 0:
            return x
        counted = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        _, lengths = ids.unique_consecutive(return_counts=True)
        sums = torch.segment_reduce(torch.where(counted, x, 0.0), "sum", lengths=lengths)
        if not total:
            count = torch.segment_reduce(counted.to(x.dtype), "sum", lengths=lengths)
            sums = sums / count.clamp_min(1)
        return sums.repeat_interleave(lengths)

    return mean


def row_mean(mask: Tensor) -> SequenceMean:
    """A SequenceMean for `[B, T]` tokens: over the valid ones of each row."""

    def mean(x: Tensor, *, total: bool = False) -> Tensor:
        sums = torch.where(mask, x, 0.0).sum(1, keepdim=True)
        if not total:
            sums = sums / mask.sum(1, keepdim=True).clamp_min(1)
        return sums.expand_as(x)

    return mean


class Gated(NamedTuple):
    """A gate's output, per token."""

    value: Tensor  # f, differentiable in logp
    slope: Tensor  # ∂f/∂logp. For the sequence-level gates, |y| times it: the token's share
    saturated: Tensor  # where the gate clips, caps, or leaves less than a tenth of the gradient
    penalty: Tensor | None = None  # taken from A · f · c whatever the advantage, differentiable
    penalty_slope: Tensor | None = None  # ∂penalty/∂logp
    top_slope: Tensor | None = None  # ∂f/∂ the mean log-probability of the likeliest tokens


class TokenInputs(NamedTuple):
    """What gate and credit of a method may read, per token; any shape."""

    stats: TokenStats  # under the current policy
    old_logp: Tensor  # log-probability of the sampled token under the rollout policy
    advantages: Tensor  # A, after shaping
    sequence_mean: SequenceMean  # averages over sequences
    options: Mapping[str, Any]  # the method's
    entropy_max: Tensor | float | None = None  # H_max of the Shannon rows
    marks: Tensor | None = None  # left by the row's shaping; log π_old/μ for one `to_sampler`
    # Mean log-probability of the method's `candidates` likeliest tokens, where f is to be
    # differentiated.
    top_logp: Tensor | None = None

    @property
    def logp(self) -> Tensor:
        return self.stats.logp

    @property
    def positive(self) -> Tensor:
        return self.advantages > 0

    @property
    def log_ratio(self) -> Tensor:
        """log w, bounded so that exp never overflows; a bounded token passes no gradient."""
        return (self.logp - self.old_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    @property
    def ratio(self) -> Tensor:
        return self.log_ratio.exp()

    def number(self, option: str) -> float:
        """The value of an option."""
        return float(self.options[option])

    def by_sign(self, positive: str, nonpositive: str) -> Tensor:
        """The value of one option where A > 0, of another elsewhere."""
        values = self.number(positive), self.number(nonpositive)
        return select(self.positive, *values, self.logp.dtype)


def _ratio_slope(gate: TokenInputs) -> Tensor:
    """∂w/∂logp: w itself, and 0 where the log ratio is bounded."""
    raw = (gate.logp - gate.old_logp).detach()
    return torch.where(raw.abs() <= MAX_LOG_RATIO, raw.exp(), 0.0)


def soft_gate(gate: TokenInputs) -> Gated:
    """SAPO: f(w) = (4/τ) σ(τ(w - 1)), so f'(1) = 1 (Eq. "soft_gate")."""
    ratio = gate.ratio
    tau = gate.by_sign("tau_pos", "tau_neg")
    x = tau * (ratio - 1)
    derivative = (4 * torch.sigmoid(x) * torch.sigmoid(-x)).detach()  # f'(w), 1 at w = 1
    return Gated(4 / tau * torch.sigmoid(x), derivative * _ratio_slope(gate), derivative < 0.1)


def ratio_clip(gate: TokenInputs) -> Gated:
    """GRPO, DAPO: min(wA, clip(w, 1 - ε, 1 + ε_high)A) / A."""
    ratio = gate.ratio
    clipped, bound = _clip(ratio, gate)
    return _stopped(ratio, _ratio_slope(gate), clipped, bound)


def sequence_clip(gate: TokenInputs) -> Gated:
    """GSPO: the clipped geometric-mean ratio s of the whole sequence, in token form.

    sg[s] π(y) / sg[π(y)]: with one advantage per sequence the gradient of s itself, and with one
    per token the paper's GSPO-token.
    """
    ratio = gate.sequence_mean(gate.log_ratio.detach()).exp()
    clipped, bound = _clip(ratio, gate)
    inside = _in_range(gate).to(ratio.dtype)
    moving = ratio * (1 + inside * (gate.logp - gate.logp.detach()))
    return _stopped(moving, ratio * inside, clipped, bound)


def geometric_clip(gate: TokenInputs) -> Gated:
    """GMPO: log ratios clipped one-sidedly per token, then the geometric mean over the sequence."""
    logr = gate.log_ratio
    low, high = -gate.number("epsilon"), gate.number("epsilon_high")
    clipped = torch.where(gate.positive, logr > high, logr < low)
    bound = select(gate.positive, high, low, logr.dtype)
    ratio = gate.sequence_mean(torch.where(clipped, bound, logr)).exp()
    slope = torch.where(clipped, 0.0, ratio.detach() * _in_range(gate))
    return Gated(ratio, slope, clipped)


def capped_reinforce(gate: TokenInputs) -> Gated:
    """CISPO: sg[min(w, ε_high)] · log π(y)."""
    ratio = gate.ratio.detach()
    cap = gate.number("epsilon_high")
    return _reinforce(ratio.clamp(max=cap), gate, ratio > cap)


def plain_ratio(gate: TokenInputs) -> Gated:
    """GTPO: w itself, never clipped."""
    ratio = gate.ratio
    return Gated(ratio, _ratio_slope(gate), torch.zeros_like(gate.positive))


def penalised_ratio(gate: TokenInputs) -> Gated:
    """KL-Cov: w itself; where marked, the mark times |log w| is taken away.

    A distance within rounding counts as 0: its sign, the penalty's whole gradient, would be chance.
    """
    assert gate.marks is not None
    distance = gate.logp - gate.old_logp
    distance = torch.where(distance.detach().abs() > 1e-5, distance, 0.0)
    return plain_ratio(gate)._replace(
        penalty=gate.marks * distance.abs(), penalty_slope=gate.marks * distance.detach().sign()
    )


def likelihood_weighted_clip(gate: TokenInputs) -> Gated:
    """Advantage Reweighting: the clipped ratio times α π_old(y) + 1 - α."""
    alpha = gate.number("alpha")
    return _scaled(ratio_clip(gate), alpha * gate.old_logp.exp() + (1 - alpha))


def dynamic_clip(gate: TokenInputs) -> Gated:
    """DCPO: bounds that widen as π_old(y) falls; solutions of |w - 1| w π_old(y) = ε."""
    ratio, rarity = gate.ratio, 4 * (-gate.old_logp).exp()
    low = (1 + (1 - gate.number("epsilon") * rarity).clamp_min(0.0).sqrt()) / 2
    high = (1 + (1 + gate.number("epsilon_high") * rarity).sqrt()) / 2
    clipped, bound = _outside(ratio, gate, low, high.clamp(max=gate.number("ratio_cap")))
    return _stopped(ratio, _ratio_slope(gate), clipped, bound)


def gradient_keeping_clip(gate: TokenInputs) -> Gated:
    """CE-GPPO: outside the clip range β (1 ∓ ε) π(y) / sg[π(y)], so that gradient goes on.

    β is `beta_low` below the range (A < 0), `beta_high` above it. Where A <= 0, w is bounded by
    `ratio_cap`.
    """
    ratio = gate.ratio
    clipped, bound = _clip(ratio, gate)
    kept = bound * gate.by_sign("beta_high", "beta_low")
    cap = gate.number("ratio_cap")
    capped = ~gate.positive & (ratio > cap).detach()
    value = torch.where(clipped, kept * _moving_one(gate), ratio)
    slope = torch.where(clipped, kept, _ratio_slope(gate))
    return _stopped(value, slope, capped, torch.full_like(slope, cap))._replace(
        saturated=clipped | capped
    )


def flipped_ratio(gate: TokenInputs) -> Gated:
    """ASPO: sg[min(1/w, cap)] where A > 0, sg[min(w, cap)] elsewhere, times π(y) / sg[π(y)].

    No gradient beyond 1 ± ε, with `epsilon_uncertain` for ε at the marked tokens.
    """
    assert gate.marks is not None
    ratio = gate.ratio.detach()
    sure, unsure = gate.number("epsilon"), gate.number("epsilon_uncertain")
    epsilon = select(gate.marks > 0, unsure, sure, ratio.dtype)
    weight = torch.where(gate.positive, 1 / ratio, ratio).clamp(max=gate.number("ratio_cap"))
    clipped, bound = _outside(ratio, gate, 1 - epsilon, 1 + epsilon)
    stopped = torch.where(gate.positive, 1 / bound, bound)
    return _stopped(weight * _moving_one(gate), weight, clipped, stopped)


def variance_gate(gate: TokenInputs) -> Gated:
    """MASPO: w sg[exp(-(w - 1)² / 2σ²)] where w has moved the way A pushes it, w elsewhere.

    σ grows with the rarity of the token and, gently, with A.
    """
    ratio = gate.ratio
    base, tilt = gate.number("sigma"), gate.number("beta_sigma") * gate.advantages
    width = (base * (-gate.number("alpha") * gate.old_logp).exp()).clamp(base, 10.0)
    tilt = torch.where(gate.positive, 1 + tilt, 1 / (1 - tilt.clamp(max=0.0)))
    width = width * tilt.clamp(0.1, 10.0)
    beyond = torch.where(gate.positive, ratio > 1, ratio < 1).detach()
    fading = (-((ratio - 1) / width).square() / 2).exp().detach()
    fading = torch.where(beyond, fading, 1.0)
    return Gated(ratio * fading, _ratio_slope(gate) * fading, fading < 0.1)


def total_variation_mask(gate: TokenInputs) -> Gated:
    """DPPO-TV: sg[min(w, cap)] log π(y), unless π(y) - π_old(y) has left [-ε, ε_high]."""
    moved = (gate.logp.exp() - gate.old_logp.exp()).detach()
    high, low = gate.number("epsilon_high"), gate.number("epsilon")
    return _masked_reinforce(gate, torch.where(gate.positive, moved > high, moved < -low))


def binary_divergence_mask(gate: TokenInputs) -> Gated:
    """DPPO-KL: as DPPO-TV, with KL(π_old(y) || π(y)) of the token against all others."""
    tiny = 1e-8
    p, q = gate.logp.exp().detach(), gate.old_logp.exp()
    others = (1 - q) * ((1 - q + tiny) / (1 - p + tiny)).log()
    divergence = q * (gate.old_logp - gate.logp.detach()) + others
    away = torch.where(gate.positive, p > q, p < q)
    return _masked_reinforce(gate, (divergence > gate.by_sign("epsilon_high", "epsilon")) & away)


def gamma_weight(gate: TokenInputs) -> Gated:
    """VESPO: sg[φ(W)] log π(y), φ(W) = e^λ W^k e^(-λW), W the ratio of the whole sequence."""
    logr = gate.log_ratio.detach()
    total = gate.sequence_mean(logr if gate.marks is None else logr + gate.marks, total=True)
    log_w = total.clamp(math.log(1e-8), MAX_LOG_RATIO)
    k, rate = gate.by_sign("k_pos", "k_neg"), gate.by_sign("lambda_pos", "lambda_neg")
    weight = (rate + k * log_w - rate * log_w.exp()).exp()
    return _reinforce(weight, gate, weight < 0.1)


def entropy_adaptive_clip(gate: TokenInputs) -> Gated:
    """HAPO: bounds and weight follow the mark ĥ in [-1, 1], how uncertain the token is.

    Sure tokens (ĥ <= 0) may fall further, unsure ones rise further. The advantage is multiplied
    by 1 + β ĥ: of unsure tokens once w has left half the range, of sure ones before it does.
    """
    assert gate.marks is not None
    ratio, h = gate.ratio, gate.marks
    epsilon, high = gate.number("epsilon"), gate.number("epsilon_high")
    alpha = gate.number("alpha")
    clipped, bound = _outside(
        ratio, gate, 1 - epsilon * (1 - alpha * h.clamp(max=0)), 1 + high * (1 + alpha * h.clamp(0))
    )
    inner = ((ratio > 1 - epsilon / 2) & (ratio < 1 + high / 2)).detach()
    weight = 1 + gate.number("beta_entropy") * torch.where(inner == (h <= 0), h, 0.0)
    return _scaled(_stopped(ratio, _ratio_slope(gate), clipped, bound), weight)


def shared_clip(gate: TokenInputs) -> Gated:
    """SimKO: the clipped ratio; of its gradient, marked tokens of good answers give α away.

    (1 - α) w + (α/K) Σ_k sg[w/w_k] w_k over the K likeliest tokens: the value is w itself.
    """
    assert gate.marks is not None
    gated = ratio_clip(gate)
    share = gate.number("alpha") * gate.marks * gate.positive
    given = share * gated.slope
    value = gated.value
    if gate.top_logp is not None:
        apart = gate.top_logp - gate.logp
        value = value + given * (apart - apart.detach())
    return gated._replace(value=value, slope=gated.slope - given, top_slope=given)


def _reinforce(weight: Tensor, gate: TokenInputs, saturated: Tensor) -> Gated:
    """weight · log π(y)."""
    return Gated(weight * gate.logp, weight, saturated)


def _masked_reinforce(gate: TokenInputs, outside: Tensor) -> Gated:
    ratio = gate.ratio.detach()
    cap = gate.number("ratio_cap")
    return _reinforce(ratio.clamp(max=cap).masked_fill(outside, 0.0), gate, outside | (ratio > cap))


def _scaled(gated: Gated, weight: Tensor) -> Gated:
    """A gate times a constant."""
    return gated._replace(value=gated.value * weight, slope=gated.slope * weight)


def _stopped(value: Tensor, slope: Tensor, clipped: Tensor, bound: Tensor) -> Gated:
    """A gate that is constant where clipped."""
    return Gated(
        torch.where(clipped, bound, value), torch.where(clipped, 0.0, slope.detach()), clipped
    )


def _clip(ratio: Tensor, gate: TokenInputs) -> tuple[Tensor, Tensor]:
    """Where PPO's clip, and TRL's bound `delta` on w of bad answers, stop the gradient."""
    high, low = 1 + gate.number("epsilon_high"), 1 - gate.number("epsilon")
    clipped, bound = _outside(ratio, gate, ratio.new_full((), low), ratio.new_full((), high))
    delta = gate.options.get("delta")
    if delta is None:
        return clipped, bound
    above = ~gate.positive & (ratio > float(delta)).detach()
    return clipped | above, bound.masked_fill(above, float(delta))


def _outside(ratio: Tensor, gate: TokenInputs, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Where w is above `high` (A > 0) or below `low` (A <= 0), and the bound there."""
    clipped = torch.where(gate.positive, ratio > high, ratio < low).detach()
    return clipped, torch.where(gate.positive, high, low).expand_as(ratio)


def _moving_one(gate: TokenInputs) -> Tensor:
    """π(y) / sg[π(y)]: 1, with the gradient of log π(y)."""
    return 1 + gate.logp - gate.logp.detach()


def _in_range(gate: TokenInputs) -> Tensor:
    return (gate.logp - gate.old_logp).detach().abs() <= MAX_LOG_RATIO


class RatioGate(NamedTuple):
    """A gate as the table of methods names it."""

    apply: Callable[[TokenInputs], Gated]  # f and its slope
    title: str  # in a few words
    averages: bool = False  # whether it looks at the other tokens of the sequence
    one_advantage: bool = False  # whether it takes one advantage per sequence only
    # Whether all tokens of a sequence have its mean ratio, which then corrects the KL estimate,
    # too (TRL's `use_bias_correction_kl`).
    one_ratio: bool = False
    to_sampler: bool = False  # whether a sampler's correction is part of its ratio, not a factor


GATES: dict[str, RatioGate] = {
    "soft": RatioGate(soft_gate, "soft gate (4/τ)σ(τ(w-1))"),
    "clip": RatioGate(ratio_clip, "ratio clip"),
    "sequence_clip": RatioGate(sequence_clip, "sequence ratio, clipped", True, one_ratio=True),
    "geometric_clip": RatioGate(
        geometric_clip, "geometric mean of clipped ratios", True, one_advantage=True, one_ratio=True
    ),
    "capped_reinforce": RatioGate(capped_reinforce, "sg[min(w, cap)] log π"),
    "ratio": RatioGate(plain_ratio, "ratio"),
    "penalised_ratio": RatioGate(penalised_ratio, "ratio - marked |log w|"),
    "likelihood_weighted_clip": RatioGate(
        likelihood_weighted_clip, "ratio clip x (α π_old(y) + 1 - α)"
    ),
    "dynamic_clip": RatioGate(dynamic_clip, "ratio clip, wider for rare tokens"),
    "gradient_keeping_clip": RatioGate(gradient_keeping_clip, "ratio clip that keeps gradient"),
    "flipped_ratio": RatioGate(flipped_ratio, "1/w where A > 0, w elsewhere, clipped"),
    "variance_gate": RatioGate(variance_gate, "w exp(-(w-1)²/2σ²)"),
    "total_variation_mask": RatioGate(total_variation_mask, "sg[w] log π while |π-π_old| is small"),
    "binary_divergence_mask": RatioGate(
        binary_divergence_mask, "sg[w] log π while binary KL is small"
    ),
    "gamma_weight": RatioGate(gamma_weight, "sg[φ(sequence ratio)] log π", True, to_sampler=True),
    "shared_clip": RatioGate(shared_clip, "ratio clip, α of it to the K likeliest tokens"),
    "entropy_adaptive_clip": RatioGate(entropy_adaptive_clip, "ratio clip that follows entropy"),
}
"""How the ratio may enter. A row of one's own may add to it."""
