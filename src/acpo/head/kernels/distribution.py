"""The whole of a row's distribution in one pass: sums over every token but the mode."""

import triton
import triton.language as tl

from acpo.head.kernels.logits import LN_2, LOWEST, logit

MAX_RISE = tl.constexpr(1.0)  # further from the maximum, moving the sums there would round


@triton.jit
def _sums(z_row, V, scaling, shift, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr):
    """Σe, Σde, Σe², Σde², Σd²e² without the largest logit, that logit, and where it is.

    Every lane keeps the largest logit it has met out of its sums: what a larger one displaces is
    added then. The mode is known last, and nothing has to be subtracted again.
    """
    offsets = tl.arange(0, BLOCK)
    rest = tl.zeros((BLOCK,), tl.float32)
    spread = tl.zeros((BLOCK,), tl.float32)
    square = tl.zeros((BLOCK,), tl.float32)
    square_d = tl.zeros((BLOCK,), tl.float32)
    square_dd = tl.zeros((BLOCK,), tl.float32)
    highest = tl.full((BLOCK,), LOWEST, tl.float32)
    where = tl.zeros((BLOCK,), tl.int32)
    current = tl.load(z_row + offsets, mask=offsets < V, other=float("-inf"))
    for start in range(0, V, BLOCK):
        columns = start + offsets
        ahead = columns + BLOCK
        following = tl.load(z_row + ahead, mask=ahead < V, other=float("-inf"))
        x = logit(current, columns < V, scaling.scale, SOFTCAP)
        wins = x > highest
        d = (tl.where(wins, highest, x) - shift) * scaling.factor
        where = tl.where(wins, columns, where)
        highest = tl.maximum(highest, x)
        e = tl.exp2(d)
        q = e * e
        rest += e
        spread += e * d
        square += q
        square_d += q * d
        square_dd += q * d * d
        current = following
    top = tl.max(highest, 0)
    mode = tl.min(tl.where(highest == top, where, 2147483647), 0)
    d = (highest - shift) * scaling.factor
    e = tl.where((highest == top) & (where == mode), 0.0, tl.exp2(d))
    q = e * e
    rest = tl.sum(rest + e, 0)
    spread = tl.sum(spread + e * d, 0)
    square = tl.sum(square + q, 0)
    square_d = tl.sum(square_d + q * d, 0)
    square_dd = tl.sum(square_dd + q * d * d, 0)
    return rest, spread, square, square_d, square_dd, top, mode


@triton.jit
def distribution_kernel(
    Z, z_stride, TOKEN, sums, V, scaling, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr
):
    """One program, one row of `RowSums`.

    Sums are taken relative to a logit near the maximum, and again relative to the maximum itself
    where that was not near enough.
    """
    row = tl.program_id(0).to(tl.int64)
    z_row = Z + row * z_stride
    token = tl.load(TOKEN + row)
    offsets = tl.arange(0, BLOCK)
    x_token = logit(tl.load(z_row + token), token >= 0, scaling.scale, SOFTCAP)
    first = tl.load(z_row + offsets, mask=offsets < V, other=float("-inf"))
    first = logit(first, offsets < V, scaling.scale, SOFTCAP)
    shift = tl.maximum(x_token, tl.max(first, 0))
    rest, spread, square, square_d, square_dd, top, mode = _sums(
        z_row, V, scaling, shift, SOFTCAP, BLOCK
    )
    if (top - shift) * scaling.factor > MAX_RISE:
        shift = top
        rest, spread, square, square_d, square_dd, top, mode = _sums(
            z_row, V, scaling, shift, SOFTCAP, BLOCK
        )
    rise = (top - shift) * scaling.factor
    down = tl.exp2(-rise)
    square_dd = (square_dd - 2.0 * rise * square_d + rise * rise * square) * down * down
    square_d = (square_d - rise * square) * down * down
    spread = (spread - rise * rest) * down
    d_token = (x_token - top) * scaling.factor * LN_2
    tl.store(sums.token + row, tl.where(x_token <= LOWEST, float("-inf"), d_token))
    tl.store(sums.rest + row, rest * down)
    tl.store(sums.spread + row, spread * LN_2)
    tl.store(sums.square + row, square * down * down)
    tl.store(sums.square_d + row, square_d * LN_2)
    tl.store(sums.square_dd + row, square_dd * LN_2 * LN_2)
    tl.store(sums.mode + row, mode.to(tl.int64))
