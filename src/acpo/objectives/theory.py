"""The paper's analysis: entropy envelope, modulation factors, coupling away from w = 1.

Every function takes floats or tensors and computes in float64.
"""

import math

import torch
from torch import Tensor

from acpo.errors import ACPOError

Number = float | Tensor


def _f64(x: Number) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64)


def entropy_lower_bound(delta: Number) -> Tensor:
    """L(δ) = -log(1 - δ): entropy is at least the min-entropy."""
    return -torch.log1p(-_f64(delta))


def entropy_upper_bound(delta: Number, support: int) -> Tensor:
    """U(δ): the residual mass δ spread evenly over the other support - 1 tokens."""
    d = _f64(delta)
    tail = torch.special.xlogy(d, d) - d * math.log(_at_least_two(support) - 1)
    return -torch.special.xlogy(1 - d, 1 - d) - tail


def exact_entropy_minimum(delta: Number) -> Tensor:
    """The least entropy any distribution with p_max = 1 - δ has; attained, unlike L(δ).

    Entropy is concave, so the minimum packs the mass into tokens of probability p_max and one
    remainder. It equals L(δ) only where 1/p_max is an integer.
    """
    p = 1 - _f64(delta)
    full = torch.floor(1 / p * (1 + 1e-12))
    rest = (1 - full * p).clamp_min(0.0)
    return -full * torch.special.xlogy(p, p) - torch.special.xlogy(rest, rest)


def max_envelope_width(support: int) -> float:
    """ρ* = max g: the positive root of ρ + log ρ = log(support - 1) - 1 (Newton in log ρ)."""
    target = math.log(_at_least_two(support) - 1) - 1
    x = min(target, math.log(max(target, 1.0)))  # x = log ρ, root of e^x + x = target
    for _ in range(60):
        step = (math.exp(x) + x - target) / (math.exp(x) + 1)
        x -= step
        if abs(step) < 1e-15:
            break
    return math.exp(x)


def _at_least_two(support: int) -> int:
    if support < 2:
        raise ACPOError(f"support={support}: the envelope needs a vocabulary of at least 2 tokens")
    return support


def coupling(w: Number, tau: float = 1.0) -> Tensor:
    """C(w) = f(w)/f'(w) = (1 + e^{τ(w-1)})/τ: the proxy term's weight beside the local one."""
    return (1 + torch.exp(tau * (_f64(w) - 1))) / tau


def positive_modulation(
    p: Number, w: Number = 1.0, *, tau: float = 1.0, offset: float = 2.0
) -> Tensor:
    """M+ of an aligned token with probability p: the factor on w f'(w) A ∇log π(y).

    offset + δ - p C(w)/w; 3δ at w = 1 with τ = 1 and offset 2.
    """
    p, w = _f64(p), _f64(w)
    return offset + (1 - p) - p * coupling(w, tau) / w


def negative_modulation(p: Number, w: Number = 1.0, *, tau: float = 1.05) -> Tensor:
    """M- of an aligned token: p (1 + C(w)/w); (1 + 2/τ) p at w = 1."""
    p, w = _f64(p), _f64(w)
    return p * (1 + coupling(w, tau) / w)


def reversal_probability(w: Number, *, tau: float = 1.0, offset: float = 2.0) -> Tensor:
    """The π_old(y) above which an aligned positive token's update reverses at ratio w.

    NaN where no probability does: π_old(y) exceeds neither 1 nor 1/w.
    """
    w = _f64(w)
    threshold = (offset + 1) / (w + coupling(w, tau))
    return torch.where(threshold < (1 / w).clamp_max(1.0), threshold, torch.nan)


def reversal_onset(*, tau: float = 1.0, offset: float = 2.0) -> float:
    """The ratio beyond which some aligned positive token reverses (2.2564 for τ = 1, offset 2).

    The larger root of offset · w = C(w). 0.0 if some token reverses at w = 1 already, that is, if
    C(1) = 2/τ > offset.
    """
    if offset < 2 / tau:
        return 0.0

    def excess(w: float) -> float:
        return offset * w - float(coupling(w, tau))

    low = peak = 1 + math.log(offset) / tau
    reach = 1.0
    while excess(high := peak + reach) > 0:
        reach *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return low


def mismatch_reversal_gap(tau: float = 1.05) -> float:
    """The gap p_max - p(y) at and beyond which no unrouted non-positive mismatched update reverses.

    With κ = 2/τ the update at w = 1 opposes ∇log π(y) iff
    1 + (1 + κ) Σp² < κ p_max + (2 + κ) p(y). As Σp² ≥ p_max² + p(y)², that leaves only
    p_max - p(y) < (κ - 1)/(κ + 1) = (2 - τ)/(2 + τ), and two tokens that share all mass come as
    close to it as you like. 0.0 if τ ≥ 2.
    """
    return max(0.0, (2 - tau) / (2 + tau))
