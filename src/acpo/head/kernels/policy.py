"""Gate, credit and loss coefficients of one row, inside a kernel."""

import triton
import triton.language as tl

MAX_LOG_RATIO = tl.constexpr(20.0)


@triton.jit
def _gate(logp, OLD, row, positive, tau_pos, tau_neg, low, high, GATE: tl.constexpr):
    """f(w) and ∂f/∂logp, as acpo.objectives.gates defines them."""
    raw = 0.0 * logp if OLD is None else logp - tl.load(OLD + row)
    w = tl.exp(tl.minimum(tl.maximum(raw, -MAX_LOG_RATIO), MAX_LOG_RATIO))
    dw = tl.where(tl.abs(raw) <= MAX_LOG_RATIO, w, 0.0)
    if GATE == "soft":
        tau = tl.where(positive, tau_pos, tau_neg)
        x = tau * (w - 1.0)
        up, down = tl.sigmoid(x), tl.sigmoid(-x)
        f = 4.0 / tau * up
        slope = 4.0 * up * down * dw
    elif GATE == "clip":
        clipped = tl.where(positive, w > 1.0 + high, w < 1.0 - low)
        f = tl.where(clipped, tl.where(positive, 1.0 + high, 1.0 - low), w)
        slope = tl.where(clipped, 0.0, dw)
    elif GATE == "capped_reinforce":
        slope = tl.minimum(w, high)
        f = slope * logp
    else:
        f = w
        slope = dw
    return f, slope


@triton.jit
def coefficients(
    logp,
    p_mode,
    entropy,
    aligned,
    row,
    OLD,
    ADVANTAGE,
    WEIGHT,
    REFERENCE,
    BONUS,
    tau_pos,
    tau_neg,
    low,
    high,
    ap0,
    ap1,
    an0,
    an1,
    mp0,
    mp1,
    mn0,
    mn1,
    inv_entropy_max,
    beta,
    GATE: tl.constexpr,
    SIGNAL: tl.constexpr,
    LIVE: tl.constexpr,
    CLAMP: tl.constexpr,
    HAS_KL: tl.constexpr,
    HAS_BONUS: tl.constexpr,
):
    """The row's loss and gradient scalars, as acpo.head.coefficients defines them."""
    advantage = tl.load(ADVANTAGE + row)
    weight = tl.load(WEIGHT + row)
    positive = advantage > 0
    f, slope = _gate(logp, OLD, row, positive, tau_pos, tau_neg, low, high, GATE)
    constant = tl.where(aligned, tl.where(positive, ap0, an0), tl.where(positive, mp0, mn0))
    steep = tl.where(aligned, tl.where(positive, ap1, an1), tl.where(positive, mp1, mn1))
    credit = constant
    moved = 0.0 * f
    if SIGNAL == "delta":
        credit += steep * (1.0 - p_mode)
        moved = steep
    elif SIGNAL == "entropy":
        signal = entropy * inv_entropy_max
        moved = steep
        if CLAMP:
            moved = tl.where(signal <= 1.0, steep, 0.0)
            signal = tl.minimum(signal, 1.0)
        credit += steep * signal
    if LIVE == "nowhere":
        moved = 0.0 * f
    elif LIVE == "aligned":
        moved = tl.where(aligned, moved, 0.0)
    value = advantage * f * credit
    a = advantage * slope * credit
    bm = 0.0 * f
    h = 0.0 * f
    if SIGNAL == "delta":
        bm = -advantage * f * moved * p_mode
    elif SIGNAL == "entropy":
        h = advantage * f * moved * inv_entropy_max
    if HAS_KL:
        distance = tl.load(REFERENCE + row) - logp
        ratio = tl.exp(distance)
        value -= beta * (ratio - distance - 1.0)
        a -= beta * (1.0 - ratio)
    value, a, bm, h = -weight * value, -weight * a, -weight * bm, -weight * h
    if HAS_BONUS:
        bonus = tl.load(BONUS + row)
        value -= bonus * entropy
        h -= bonus
    return value, a, bm, h
