"""The row kernel: one program handles one row of logits."""

import triton
import triton.language as tl

from acpo.head.kernels.logits import LN_2, LOG2_E, LOWEST, logit
from acpo.head.kernels.policy import coefficients

MAX_EXPONENT = tl.constexpr(80.0)  # sums of 2^80 are far from float32's limit of 2^128


@triton.jit
def _write_gradient(
    z_row,
    g_row,
    token,
    mode,
    top,
    log_total,
    entropy,
    a,
    bm,
    h,
    V,
    scale,
    factor,
    MODE_TERM: tl.constexpr,
    ENTROPY_TERM: tl.constexpr,
    SOFTCAP: tl.constexpr,
    NARROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite a row of logits by a (e_y - p) + bm (e_v* - p) + h (-p (log p + H))."""
    offsets = tl.arange(0, BLOCK)
    both = a + bm
    blocks = tl.cdiv(V, BLOCK)
    if (a == 0.0) & (bm == 0.0) & (h == 0.0):  # also every row whose logits are not finite
        for step in range(0, blocks):
            columns = step * BLOCK + offsets
            zeros = tl.zeros((BLOCK,), g_row.dtype.element_ty)
            tl.store(g_row + columns, zeros, mask=columns < V)
    else:
        log2_total = log_total * LOG2_E
        # Without a mode term v* = y wherever bm is not 0.
        at_token = a if MODE_TERM else both
        for step in range(0, blocks):
            columns = (blocks - 1 - step) * BLOCK + offsets
            inside = columns < V
            raw = tl.load(z_row + columns, mask=inside, other=0.0, eviction_policy="evict_first")
            x = logit(raw, inside, scale, SOFTCAP)
            log2_p = (x - top) * factor - log2_total
            p = tl.exp2(log2_p)
            g = -p * both
            if ENTROPY_TERM:
                g -= p * h * (log2_p * LN_2 + entropy)
            g += tl.where(columns == token, at_token, 0.0)
            if MODE_TERM:
                g += tl.where(columns == mode, bm, 0.0)
            if SOFTCAP:
                g *= 1.0 - x * x
            if NARROWS:
                tl.debug_barrier()
            g = g.to(g_row.dtype.element_ty)
            tl.store(g_row + columns, g, mask=inside, eviction_policy="evict_first")


@triton.jit
def _add_blocks(
    mass,
    spread,
    highest,
    where,
    z_row,
    begin,
    end,
    V,
    scale,
    factor,
    shift,
    KEEP: tl.constexpr,
    FIND_MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add columns [begin, end) to the lane-wise sums; KEEP asks the cache to hold on to them."""
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    offsets = tl.arange(0, BLOCK)
    columns = begin + offsets
    current = tl.load(
        z_row + columns, mask=columns < V, other=float("-inf"), eviction_policy=policy
    )
    for start in range(begin, end, BLOCK):
        ahead = start + BLOCK + offsets
        following = tl.load(
            z_row + ahead,
            mask=(ahead < V) & (ahead < end),
            other=float("-inf"),
            eviction_policy=policy,
        )
        x = logit(current, start + offsets < V, scale, SOFTCAP)
        if FIND_MODE:
            where = tl.where(x > highest, start + offsets, where)
        highest = tl.maximum(highest, x)
        d = (x - shift) * factor
        e = tl.exp2(d)
        mass += e
        spread += e * d
        current = following
    return mass, spread, highest, where


@triton.jit
def _sums(
    z_row,
    V,
    scale,
    factor,
    shift,
    FIND_MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Σe^d and Σd e^d with d = z - shift, the largest logit, and (if asked) where it is.

    Everything is lane-wise until the end, so that no block of the row waits for a reduction. The
    rows in flight do not fit the cache together; their second halves do.
    """
    mass = tl.zeros((BLOCK,), tl.float32)
    spread = tl.zeros((BLOCK,), tl.float32)
    highest = tl.full((BLOCK,), LOWEST, tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    half = tl.cdiv(V, 2 * BLOCK) * BLOCK
    mass, spread, highest, where = _add_blocks(
        mass,
        spread,
        highest,
        where,
        z_row,
        0,
        half,
        V,
        scale,
        factor,
        shift,
        False,
        FIND_MODE,
        SOFTCAP,
        BLOCK,
    )
    mass, spread, highest, where = _add_blocks(
        mass,
        spread,
        highest,
        where,
        z_row,
        half,
        V,
        V,
        scale,
        factor,
        shift,
        True,
        FIND_MODE,
        SOFTCAP,
        BLOCK,
    )
    top = tl.max(highest, 0)
    mode = 0
    if FIND_MODE:
        mode = tl.min(tl.where(highest == top, where, 2147483647), 0)
    return tl.sum(mass, 0), tl.sum(spread, 0), top, mode


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
    FIND_MODE: tl.constexpr,
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

    Sums are taken relative to a logit near the maximum: where the sampled token is the mode, the
    maximum itself, which keeps an entropy near 0 exact. The gradient overwrites the row from the
    last block to the first, because the blocks read last are the ones still in cache. With
    NARROWS it is half as wide as the logits and fills the second half of the row's own memory: in
    that order it only covers logits that were already used.

    Logits stay as they are until a maximum is subtracted: scaling them first would round off
    digits that the difference still has. `factor` scales and turns nats into powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    z_row = Z + row * z_stride
    token = tl.load(TOKEN + row)
    offsets = tl.arange(0, BLOCK)
    if STATISTICS:
        x_token = logit(tl.load(z_row + token), token >= 0, scale, SOFTCAP)
        first = tl.load(z_row + offsets, mask=offsets < V, other=float("-inf"))
        first = logit(first, offsets < V, scale, SOFTCAP)
        shift = tl.maximum(x_token, tl.max(first, 0))
        total, spread, top, mode = _sums(z_row, V, scale, factor, shift, FIND_MODE, SOFTCAP, BLOCK)
        if (top - shift) * factor > MAX_EXPONENT:
            shift = top
            total, spread, top, mode = _sums(
                z_row, V, scale, factor, shift, FIND_MODE, SOFTCAP, BLOCK
            )
        # From the shift to the maximum, so that what is stored does not depend on the shift.
        rise = (top - shift) * factor
        total *= tl.exp2(-rise)
        spread = spread * tl.exp2(-rise) - total * rise
        log_total = tl.log(total)
        entropy = log_total - LN_2 * spread / total
        logp = (x_token - top) * factor * LN_2 - log_total
        logp = tl.where(x_token <= LOWEST, float("-inf"), logp)  # an impossible token is no y
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
        logp = tl.load(LOGP + row)
        p_token = tl.exp(logp)
        entropy = tl.load(ENTROPY + row)
        top = tl.load(TOP + row)
        log_total = tl.load(LOG_TOTAL + row)
        mode = tl.load(MODE + row)
    if POLICY:
        value, a, bm, h = coefficients(
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
        _write_gradient(
            z_row,
            G + row * g_stride,
            token,
            mode,
            top,
            log_total,
            entropy,
            a * pull,
            bm * pull,
            h * pull,
            V,
            scale,
            factor,
            MODE_TERM,
            ENTROPY_TERM,
            SOFTCAP,
            NARROWS,
            BLOCK,
        )
