"""Gate, credit and loss coefficients of one row, inside a kernel."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

MAX_LOG_RATIO = tl.constexpr(20.0)


class PolicyColumns(NamedTuple):
    """Columns of `TokenTerms`, None where the kernel reads none."""

    old_logp: Any = None
    advantages: Any = None
    weights: Any = None
    ref_logp: Any = None
    entropy_weights: Any = None


class PolicyNumbers(NamedTuple):
    """A method's options and its credit table: aligned or mismatched, advantage positive or not."""

    tau_pos: float = 0.0
    tau_neg: float = 0.0
    low: float = 0.0
    high: float = 0.0
    ap0: float = 0.0
    ap1: float = 0.0
    an0: float = 0.0
    an1: float = 0.0
    mp0: float = 0.0
    mp1: float = 0.0
    mn0: float = 0.0
    mn1: float = 0.0
    inv_entropy_max: float = 0.0
    beta: float = 0.0


class PolicyKind(NamedTuple):
    """What a kernel is compiled for.

    A kernel compares the strings and hands on the whole: Triton 3.6 takes no string as an argument.
    """

    gate: str = "none"
    signal: str = "none"
    live: str = "nowhere"
    clamp: bool = False
    has_kl: bool = False
    has_bonus: bool = False
    mode_term: bool = True
    entropy_term: bool = True


@triton.jit
def _gate(logp, old_logp, row, positive, numbers, KIND: tl.constexpr):
    """f(w) and ∂f/∂logp, as acpo.objectives.gates defines them."""
    raw = 0.0 * logp if old_logp is None else logp - tl.load(old_logp + row)
    w = tl.exp(tl.minimum(tl.maximum(raw, -MAX_LOG_RATIO), MAX_LOG_RATIO))
    dw = tl.where(tl.abs(raw) <= MAX_LOG_RATIO, w, 0.0)
    if KIND.gate == "soft":
        tau = tl.where(positive, numbers.tau_pos, numbers.tau_neg)
        x = tau * (w - 1.0)
        up, down = tl.sigmoid(x), tl.sigmoid(-x)
        f = 4.0 / tau * up
        slope = 4.0 * up * down * dw
    elif KIND.gate == "clip":
        high, low = 1.0 + numbers.high, 1.0 - numbers.low
        clipped = tl.where(positive, w > high, w < low)
        f = tl.where(clipped, tl.where(positive, high, low), w)
        slope = tl.where(clipped, 0.0, dw)
    elif KIND.gate == "capped_reinforce":
        slope = tl.minimum(w, numbers.high)
        f = slope * logp
    else:
        f = w
        slope = dw
    return f, slope


@triton.jit
def _credit(p_mode, entropy, aligned, positive, n, KIND: tl.constexpr):
    """The row's credit, and how it moves with its signal."""
    at_aligned = tl.where(positive, n.ap0, n.an0)
    credit = tl.where(aligned, at_aligned, tl.where(positive, n.mp0, n.mn0))
    at_aligned = tl.where(positive, n.ap1, n.an1)
    steep = tl.where(aligned, at_aligned, tl.where(positive, n.mp1, n.mn1))
    moved = steep
    if KIND.signal == "delta":
        credit += steep * (1.0 - p_mode)
    elif KIND.signal == "entropy":
        signal = entropy * n.inv_entropy_max
        if KIND.clamp:
            moved = tl.where(signal <= 1.0, steep, 0.0)
            signal = tl.minimum(signal, 1.0)
        credit += steep * signal
    if KIND.live == "nowhere":
        moved = 0.0 * steep
    elif KIND.live == "aligned":
        moved = tl.where(aligned, moved, 0.0)
    return credit, moved


@triton.jit
def coefficients(logp, p_mode, entropy, aligned, row, columns, numbers, KIND: tl.constexpr):
    """The row's loss and gradient scalars, as acpo.head.rows.row_coefficients defines them."""
    advantage = tl.load(columns.advantages + row)
    weight = tl.load(columns.weights + row)
    positive = advantage > 0
    f, slope = _gate(logp, columns.old_logp, row, positive, numbers, KIND)
    credit, moved = _credit(p_mode, entropy, aligned, positive, numbers, KIND)
    value = advantage * f * credit
    a = advantage * slope * credit
    bm = 0.0 * f
    h = 0.0 * f
    if KIND.signal == "delta":
        bm = -advantage * f * moved * p_mode
    elif KIND.signal == "entropy":
        h = advantage * f * moved * numbers.inv_entropy_max
    if KIND.has_kl:
        distance = tl.load(columns.ref_logp + row) - logp
        ratio = tl.exp(distance)
        value -= numbers.beta * (ratio - distance - 1.0)
        a -= numbers.beta * (1.0 - ratio)
    value, a, bm, h = -weight * value, -weight * a, -weight * bm, -weight * h
    if KIND.has_bonus:
        bonus = tl.load(columns.entropy_weights + row)
        value -= bonus * entropy
        h -= bonus
    return value, a, bm, h
