"""Triton kernels of the row step. One program handles one row of logits."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)
MAX_LOG_RATIO = tl.constexpr(20.0)


@triton.jit
def _logit(raw, scale, SOFTCAP: tl.constexpr):
    """The logit before its last factor: the softcap's tanh, or the product as it is."""
    x = raw.to(tl.float32)
    if SOFTCAP:
        x = 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2_E * scale)))
    # An impossible token (-inf) contributes 0, where 0 · -inf would be NaN. NaN passes.
    return tl.where(x < LOWEST, LOWEST, x)


@triton.jit
def _gate(logp, old, positive, tau_pos, tau_neg, low, high, GATE: tl.constexpr):
    """f(w) and ∂f/∂logp, as acpo.objectives.gates defines them."""
    raw = logp - old
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
def _coefficients(
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
    f, slope = _gate(logp, tl.load(OLD + row), positive, tau_pos, tau_neg, low, high, GATE)
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


@triton.jit
def row_kernel(
    Z,
    z_stride,
    G,
    g_stride,
    TOKEN,
    LOGP,
    LOG_PMAX,
    IS_MODE,
    ENTROPY,
    TOP,
    LOG_TOTAL,
    MODE,
    VALUE,
    A,
    BM,
    H,
    OLD,
    ADVANTAGE,
    WEIGHT,
    REFERENCE,
    BONUS,
    V,
    scale,
    factor,
    pull,
    align_tol,
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
    STATISTICS: tl.constexpr,
    POLICY: tl.constexpr,
    GRADIENT: tl.constexpr,
    GATE: tl.constexpr,
    SIGNAL: tl.constexpr,
    LIVE: tl.constexpr,
    CLAMP: tl.constexpr,
    HAS_KL: tl.constexpr,
    HAS_BONUS: tl.constexpr,
    MODE_TERM: tl.constexpr,
    ENTROPY_TERM: tl.constexpr,
    SOFTCAP: tl.constexpr,
    NARROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Logits -> statistics -> coefficients -> gradient, each stage optional.

    The first loop keeps an online maximum and lane-wise sums of e^d and d e^d, d = z - max; the
    shifted sum keeps the entropy exact near 0. The second overwrites the row by its gradient from
    the last block to the first, because the blocks read last are the ones still in cache. With
    NARROWS the gradient is half as wide as the logits and fills the second half of the row's own
    memory: in that order it only covers logits that were already used.

    Logits stay as they are until the maximum is subtracted: scaling them first would round off
    digits that the difference still has. `factor` scales and turns nats into powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    z_row = Z + row * z_stride
    token = tl.load(TOKEN + row)
    offsets = tl.arange(0, BLOCK)
    if STATISTICS:
        x_token = _logit(tl.load(z_row + token), scale, SOFTCAP)
        top = LOWEST
        mode = 0
        mass = tl.zeros((BLOCK,), tl.float32)
        spread = tl.zeros((BLOCK,), tl.float32)
        current = tl.load(z_row + offsets, mask=offsets < V, other=float("-inf"))
        for start in range(0, V, BLOCK):
            ahead = start + BLOCK + offsets
            following = tl.load(z_row + ahead, mask=ahead < V, other=float("-inf"))
            x = _logit(current, scale, SOFTCAP)
            x = tl.where(start + offsets < V, x, LOWEST)
            highest = tl.max(x, 0)
            if highest > top:
                fall = (top - highest) * factor
                shrink = tl.exp2(fall)
                spread = (spread + mass * fall) * shrink
                mass = mass * shrink
                mode = tl.min(tl.where(x == highest, start + offsets, 2147483647), 0)
                top = highest
            d = (x - top) * factor
            e = tl.exp2(d)
            mass += e
            spread += e * d
            current = following
        total = tl.sum(mass, 0)
        log_total = tl.log(total)
        entropy = log_total - LN_2 * tl.sum(spread, 0) / total
        logp = (x_token - top) * factor * LN_2 - log_total
        p_token = tl.exp(logp)
        aligned = 1.0 / total - p_token <= align_tol
        log_pmax = tl.where(aligned, logp, -log_total)
        mode = tl.where(aligned, token, mode)
        tl.store(LOGP + row, logp)
        tl.store(LOG_PMAX + row, log_pmax)
        tl.store(IS_MODE + row, aligned)
        tl.store(ENTROPY + row, entropy)
        tl.store(TOP + row, top)
        tl.store(LOG_TOTAL + row, log_total)
        tl.store(MODE + row, mode)
    else:
        entropy = tl.load(ENTROPY + row)
        top = tl.load(TOP + row)
        log_total = tl.load(LOG_TOTAL + row)
        mode = tl.load(MODE + row)
    if POLICY:
        value, a, bm, h = _coefficients(
            logp,
            tl.where(aligned, p_token, 1.0 / total),
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
            GATE,
            SIGNAL,
            LIVE,
            CLAMP,
            HAS_KL,
            HAS_BONUS,
        )
        finite = (tl.abs(logp) < float("inf")) & (tl.abs(entropy) < float("inf"))
        value, a = tl.where(finite, value, 0.0), tl.where(finite, a, 0.0)
        bm, h = tl.where(finite, bm, 0.0), tl.where(finite, h, 0.0)
        tl.store(VALUE + row, value)
        tl.store(A + row, a)
        tl.store(BM + row, bm)
        tl.store(H + row, h)
    elif GRADIENT:
        a, bm, h = tl.load(A + row), tl.load(BM + row), tl.load(H + row)
    if GRADIENT:
        if STATISTICS and NARROWS:
            tl.debug_barrier()  # every thread has read the sampled token's logit
        g_row = G + row * g_stride
        both = a + bm
        log2_total = log_total * LOG2_E
        # With v* = y everywhere it matters, the mode's term is the token's.
        at_token = a if MODE_TERM else both
        skip = (both == 0.0) & (a == 0.0) & (h == 0.0)
        blocks = tl.cdiv(V, BLOCK)
        for step in range(0, blocks):
            columns = (blocks - 1 - step) * BLOCK + offsets
            inside = columns < V
            raw = tl.load(z_row + columns, mask=inside, other=0.0)
            x = _logit(raw, scale, SOFTCAP)
            log2_p = (x - top) * factor - log2_total
            p = tl.exp2(log2_p)
            g = -p * both
            if ENTROPY_TERM:
                g -= p * h * (log2_p * LN_2 + entropy)
            g += tl.where(columns == token, at_token, 0.0)
            if MODE_TERM:
                g += tl.where(columns == mode, bm, 0.0)
            g *= pull
            if SOFTCAP:
                g *= 1.0 - x * x
            g = tl.where(skip, 0.0, g)
            if NARROWS:
                tl.debug_barrier()
            tl.store(g_row + columns, g.to(G.dtype.element_ty), mask=inside)


@triton.jit
def column_maximum_kernel(
    Z,
    z_stride,
    ROWS,
    n_rows,
    TOP,
    LOG_TOTAL,
    ENTROPY,
    A,
    BM,
    H,
    WEIGHT,
    HIGHEST,
    V,
    scale,
    factor,
    pull,
    SOFTCAP: tl.constexpr,
    ENTROPY_TERM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """max over rows of |gradient| / weight for every column, without the sampled token's term."""
    column_blocks = tl.cdiv(V, BLOCK)
    pid = tl.program_id(0).to(tl.int64)
    columns = (pid % column_blocks) * BLOCK + tl.arange(0, BLOCK)
    i = (pid // column_blocks) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    real, inside = i < n_rows, columns < V
    rows = tl.load(ROWS + i, mask=real, other=0)
    both = tl.load(A + rows, mask=real, other=0.0) + tl.load(BM + rows, mask=real, other=0.0)
    top = tl.load(TOP + rows, mask=real, other=0.0)
    log2_total = tl.load(LOG_TOTAL + rows, mask=real, other=0.0) * LOG2_E
    per_weight = pull / tl.load(WEIGHT + rows, mask=real, other=1.0)
    where = real[:, None] & inside[None, :]
    raw = tl.load(Z + rows[:, None] * z_stride + columns[None, :], mask=where, other=float("-inf"))
    x = _logit(raw, scale, SOFTCAP)
    log2_p = (x - top[:, None]) * factor - log2_total[:, None]
    size = both[:, None]
    if ENTROPY_TERM:
        h = tl.load(H + rows, mask=real, other=0.0)
        entropy = tl.load(ENTROPY + rows, mask=real, other=0.0)
        size = size + h[:, None] * (log2_p * LN_2 + entropy[:, None])
    size = tl.abs(tl.exp2(log2_p) * size * per_weight[:, None])
    highest = tl.max(tl.where(where, size, 0.0), 0)
    tl.atomic_max(HIGHEST + columns, highest, mask=inside, sem="relaxed")


@triton.jit
def selected_gradient_kernel(
    Z,
    z_stride,
    G,
    g_stride,
    ROWS,
    COLUMNS,
    n_columns,
    column_blocks,
    TOKEN,
    MODE,
    TOP,
    LOG_TOTAL,
    ENTROPY,
    A,
    BM,
    H,
    scale,
    factor,
    pull,
    SOFTCAP: tl.constexpr,
    ENTROPY_TERM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient at chosen rows and columns, packed densely; padding columns are 0."""
    pid = tl.program_id(0).to(tl.int64)
    i = pid // column_blocks
    j = (pid % column_blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = j < n_columns
    row = tl.load(ROWS + i)
    columns = tl.load(COLUMNS + j, mask=inside, other=0)
    raw = tl.load(Z + row * z_stride + columns, mask=inside, other=0.0)
    x = _logit(raw, scale, SOFTCAP)
    log2_p = (x - tl.load(TOP + row)) * factor - tl.load(LOG_TOTAL + row) * LOG2_E
    a, bm = tl.load(A + row), tl.load(BM + row)
    size = tl.full((BLOCK,), 0.0, tl.float32) + (a + bm)
    if ENTROPY_TERM:
        size += tl.load(H + row) * (log2_p * LN_2 + tl.load(ENTROPY + row))
    g = -tl.exp2(log2_p) * size
    g += tl.where(columns == tl.load(TOKEN + row), a, 0.0)
    g += tl.where(columns == tl.load(MODE + row), bm, 0.0)
    g *= pull
    if SOFTCAP:
        g *= 1.0 - x * x
    g = tl.where(inside, g, 0.0)
    tl.store(G + i * g_stride + j, g.to(G.dtype.element_ty), mask=j < g_stride)


@triton.jit
def scale_kernel(X, FACTOR, n, BLOCK: tl.constexpr):
    """X *= FACTOR[0] in place; reads nothing when the factor is 1."""
    factor = tl.load(FACTOR).to(tl.float32)
    if factor != 1.0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < n)
        tl.store(X + at, (x.to(tl.float32) * factor).to(X.dtype.element_ty), mask=at < n)
