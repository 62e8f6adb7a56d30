"""The row kernel: one program handles one row of logits."""

from typing import NamedTuple

import triton
import triton.language as tl

from acpo.head.kernels.logits import LN_2, LOG2_E, LOWEST, logit
from acpo.head.kernels.policy import coefficients

MAX_EXPONENT = tl.constexpr(80.0)  # sums of 2^80 are far from float32's limit of 2^128


class Stages(NamedTuple):
    """What one launch of the row kernel does; `narrows`: the gradient is half the logits' width."""

    statistics: bool = False
    find_mode: bool = True
    policy: bool = False
    gradient: bool = False
    narrows: bool = False


@triton.jit
def _write_gradient(
    z_row,
    g_row,
    token,
    stats,
    c,
    V,
    scaling,
    NARROWS: tl.constexpr,
    KIND: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite a row of logits by a (e_y - p) + bm (e_v* - p) + h (-p (log p + H))."""
    entropy, top, log_total, mode = stats
    a, bm, h = c
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
        at_token = a if KIND.mode_term else both
        for step in range(0, blocks):
            columns = (blocks - 1 - step) * BLOCK + offsets
            inside = columns < V
            raw = tl.load(z_row + columns, mask=inside, other=0.0, eviction_policy="evict_first")
            x = logit(raw, inside, scaling.scale, SOFTCAP)
            log2_p = (x - top) * scaling.factor - log2_total
            p = tl.exp2(log2_p)
            g = -p * both
            if KIND.entropy_term:
                g -= p * h * (log2_p * LN_2 + entropy)
            g += tl.where(columns == token, at_token, 0.0)
            if KIND.mode_term:
                g += tl.where(columns == mode, bm, 0.0)
            if SOFTCAP:
                g *= 1.0 - x * x
            if NARROWS:
                tl.debug_barrier()
            g = g.to(g_row.dtype.element_ty)
            tl.store(g_row + columns, g, mask=inside, eviction_policy="evict_first")


@triton.jit
def _add_blocks(
    sums,
    z_row,
    begin,
    end,
    V,
    scaling,
    shift,
    KEEP: tl.constexpr,
    FIND_MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add columns [begin, end) to the lane-wise sums; KEEP asks the cache to hold on to them."""
    mass, spread, highest, where = sums
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    offsets = tl.arange(0, BLOCK)
    columns = begin + offsets
    current = tl.load(
        z_row + columns, mask=columns < V, other=float("-inf"), eviction_policy=policy
    )
    for start in range(begin, end, BLOCK):
        ahead = start + BLOCK + offsets
        real = (ahead < V) & (ahead < end)
        following = tl.load(z_row + ahead, mask=real, other=float("-inf"), eviction_policy=policy)
        x = logit(current, start + offsets < V, scaling.scale, SOFTCAP)
        if FIND_MODE:
            where = tl.where(x > highest, start + offsets, where)
        highest = tl.maximum(highest, x)
        d = (x - shift) * scaling.factor
        e = tl.exp2(d)
        mass += e
        spread += e * d
        current = following
    return mass, spread, highest, where


@triton.jit
def _sums(
    z_row,
    V,
    scaling,
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
    sums = (mass, spread, highest, where)
    half = tl.cdiv(V, 2 * BLOCK) * BLOCK
    sums = _add_blocks(sums, z_row, 0, half, V, scaling, shift, False, FIND_MODE, SOFTCAP, BLOCK)
    sums = _add_blocks(sums, z_row, half, V, V, scaling, shift, True, FIND_MODE, SOFTCAP, BLOCK)
    mass, spread, highest, where = sums
    top = tl.max(highest, 0)
    mode = 0
    if FIND_MODE:
        mode = tl.min(tl.where(highest == top, where, 2147483647), 0)
    return tl.sum(mass, 0), tl.sum(spread, 0), top, mode


@triton.jit
def _statistics(
    z_row,
    token,
    V,
    scaling,
    align_tol,
    FIND_MODE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The columns of `RowStats`, and p of the mode.

    Sums are taken relative to a logit near the maximum: where the sampled token is the mode, the
    maximum itself, which keeps an entropy near 0 exact.
    """
    offsets = tl.arange(0, BLOCK)
    x_token = logit(tl.load(z_row + token), token >= 0, scaling.scale, SOFTCAP)
    first = tl.load(z_row + offsets, mask=offsets < V, other=float("-inf"))
    first = logit(first, offsets < V, scaling.scale, SOFTCAP)
    shift = tl.maximum(x_token, tl.max(first, 0))
    total, spread, top, mode = _sums(z_row, V, scaling, shift, FIND_MODE, SOFTCAP, BLOCK)
    if (top - shift) * scaling.factor > MAX_EXPONENT:
        shift = top
        total, spread, top, mode = _sums(z_row, V, scaling, shift, FIND_MODE, SOFTCAP, BLOCK)
    # From the shift to the maximum, so that what is stored does not depend on the shift.
    rise = (top - shift) * scaling.factor
    total *= tl.exp2(-rise)
    spread = spread * tl.exp2(-rise) - total * rise
    log_total = tl.log(total)
    entropy = log_total - LN_2 * spread / total
    logp = (x_token - top) * scaling.factor * LN_2 - log_total
    logp = tl.where(x_token <= LOWEST, float("-inf"), logp)  # an impossible token is no y
    p_token = tl.exp(logp)
    aligned = 1.0 / total - p_token <= align_tol
    log_pmax = tl.where(aligned, logp, -log_total)
    mode = tl.where(aligned, token, mode)
    p_mode = tl.where(aligned, p_token, 1.0 / total)
    return logp, log_pmax, aligned, entropy, top, log_total, mode, p_mode


@triton.jit
def row_kernel(
    Z,
    z_stride,
    G,
    g_stride,
    TOKEN,
    stats,
    c,
    columns,
    numbers,
    V,
    scaling,
    align_tol,
    STAGES: tl.constexpr,
    KIND: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Logits -> statistics -> coefficients -> gradient, each stage optional.

    The gradient overwrites the row from its last block on, which was read last and is still in
    cache; one that narrows fills the second half of the row's memory, over logits already used.
    Logits are scaled once a maximum is subtracted: before, that would round off digits.
    """
    row = tl.program_id(0).to(tl.int64)
    z_row = Z + row * z_stride
    token = tl.load(TOKEN + row)
    if STAGES.statistics:
        logp, log_pmax, aligned, entropy, top, log_total, mode, p_mode = _statistics(
            z_row, token, V, scaling, align_tol, STAGES.find_mode, SOFTCAP, BLOCK
        )
        _store(stats, row, (logp, log_pmax, aligned, entropy, top, log_total, mode))
    else:
        entropy, top = tl.load(stats.entropy + row), tl.load(stats.top + row)
        log_total, mode = tl.load(stats.log_total + row), tl.load(stats.mode + row)
    if STAGES.policy:
        value, a, bm, h = coefficients(logp, p_mode, entropy, aligned, row, columns, numbers, KIND)
        finite = (tl.abs(logp) < float("inf")) & (tl.abs(entropy) < float("inf"))
        value, a = tl.where(finite, value, 0.0), tl.where(finite, a, 0.0)
        bm, h = tl.where(finite, bm, 0.0), tl.where(finite, h, 0.0)
        _store(c, row, (value, a, bm, h))
    elif STAGES.gradient:
        a, bm, h = tl.load(c.a + row), tl.load(c.bm + row), tl.load(c.h + row)
    if STAGES.gradient:
        known = (entropy, top, log_total, mode)
        pulled = (a * scaling.pull, bm * scaling.pull, h * scaling.pull)
        g_row = G + row * g_stride
        _write_gradient(
            z_row, g_row, token, known, pulled, V, scaling, STAGES.narrows, KIND, SOFTCAP, BLOCK
        )


@triton.jit
def _store(columns, row, values):
    """One row of several columns."""
    for i in tl.static_range(len(values)):
        tl.store(columns[i] + row, values[i])
