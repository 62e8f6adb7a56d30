"""Gradient geometry of one token with respect to its logits, from a few scalars.

With p the token's distribution, y the sampled token, v* the mode, m = p(v*), δ = 1 - m:

    g_local = ∇ log p(y) = e_y - p
    ∇δ = -m (e_v* - p)
    ∇H = -p ⊙ (log p + H)

Every dot product of these reduces to log p(y), log m, H and the sums of p², p² log p and
p² (log p)² over all tokens but the mode. Nothing here forms 1 - m or Σ p²: as m → 1 every vector
vanishes like δ, and a direction survives only in sums of small terms.

A vector is described beside g_local by a `Direction`: its component along it and the rest.
"""

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class TokenScalars(NamedTuple):
    """What is known of each token, `[N]` each, float64; names as in a trace."""

    logp: Array
    log_pmax: Array
    entropy: Array
    is_mode: Array
    tail_p2: Array
    tail_p2_logp: Array
    tail_p2_logp2: Array

    def where(self, chosen: Array) -> "TokenScalars":
        return TokenScalars(*(column[chosen] for column in self))

    @property
    def p_max(self) -> Array:
        return np.exp(self.log_pmax)

    @property
    def delta(self) -> Array:
        return -np.expm1(self.log_pmax)

    @property
    def gap(self) -> Array:
        """Δ = p_max - p(y)."""
        return np.where(self.is_mode, 0.0, self.p_max - np.exp(self.logp))


COLUMNS = TokenScalars._fields
"""Token columns of a trace that these closed forms need."""


class Direction(NamedTuple):
    """A vector beside g_local, in units of its length."""

    along: Array  # component along g_local
    across2: Array  # squared length of the rest

    @property
    def ratio(self) -> Array:
        """Length, relative to g_local's. NaN where g_local vanishes."""
        return np.sqrt(self.along**2 + self.across2)

    @property
    def cosine(self) -> Array:
        """Cosine to g_local. NaN where either vector vanishes."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.along / self.ratio


def local_norm2(t: TokenScalars) -> Array:
    """‖e_y - p‖²: δ² + Σ_tail p² if y is the mode."""
    p = np.exp(t.logp)
    return np.where(
        t.is_mode,
        t.delta**2 + t.tail_p2,
        np.expm1(t.logp) ** 2 + t.p_max**2 + t.tail_p2 - p**2,
    )


def surrogate(t: TokenScalars) -> Direction:
    """∇δ beside g_local: exactly -p_max times it if y is the mode."""
    m, local2 = t.p_max, _divisor(local_norm2(t))
    # (e_y - p)·(e_v* - p) = Σp² - m - p(y), and m - Σp² = mδ - Σ_tail p² is no difference of ones.
    along = m * (m * t.delta - t.tail_p2 + np.exp(t.logp)) / local2
    norm2 = m**2 * (t.delta**2 + t.tail_p2) / local2
    across2 = np.maximum(norm2 - along**2, 0.0)
    undefined = np.isnan(local2)
    return Direction(
        np.where(t.is_mode & ~undefined, -m, along),
        np.where(t.is_mode & ~undefined, 0.0, across2),
    )


def shannon(t: TokenScalars, h_max: float) -> Direction:
    """∇ē beside g_local, with ē = H / h_max and h_max held fixed."""
    m, h, local2 = t.p_max, t.entropy, _divisor(local_norm2(t))
    surplus = t.log_pmax + h
    tail = t.tail_p2_logp + h * t.tail_p2
    at_y = np.where(
        t.is_mode,
        -m * t.delta * surplus,
        m**2 * surplus - np.exp(t.logp) * (t.logp + h),
    )
    along = (at_y + tail) / local2
    tail2 = t.tail_p2_logp2 + 2 * h * t.tail_p2_logp + h**2 * t.tail_p2
    norm2 = (m**2 * surplus**2 + np.maximum(tail2, 0.0)) / local2
    across2 = np.maximum(norm2 - along**2, 0.0)
    return Direction(along / h_max, across2 / h_max**2)


def surrogate_composite(
    t: TokenScalars, *, offset: float, slope: float, coupling: float
) -> Direction:
    """The update c g_local + coupling · ∇c for c = offset + slope · δ, in units of f'(w) w.

    Offset and slope are 2 and 1 for c+, 1 and -1 for c-; coupling is f(w) / (f'(w) w), 2/τ at 1.
    """
    signal = surrogate(t)
    # Aligned, c - coupling · slope · m: the ones cancel on paper, so that 3δ keeps its digits.
    aligned = offset - slope * coupling + slope * (1 + coupling) * t.delta
    along = np.where(t.is_mode, aligned, offset + slope * t.delta + coupling * slope * signal.along)
    along = np.where(np.isnan(signal.along), np.nan, along)
    return Direction(along, (coupling * slope) ** 2 * signal.across2)


def shannon_composite(
    t: TokenScalars, *, h_max: float, offset: float, coupling: float
) -> Direction:
    """The update for c = offset + ē, in units of f'(w) w."""
    signal = shannon(t, h_max)
    along = offset + t.entropy / h_max + coupling * signal.along
    return Direction(along, coupling**2 * signal.across2)


def routed(t: TokenScalars, *, positive: bool) -> Direction:
    """The update of a mismatched token under routing: 3 sg[δ] or 3 (1 - sg[δ]) times g_local."""
    along = 3.0 * (t.delta if positive else t.p_max)
    return Direction(along, np.zeros_like(along))


def _divisor(local2: Array) -> Array:
    """NaN for 0: beside a vector that vanishes nothing has a direction."""
    return np.where(local2 > 0, local2, np.nan)
