"""Kernels for chosen rows and columns: gradients, the likeliest tokens; and scaling in place."""

import triton
import triton.language as tl

from acpo.head.kernels.logits import LN_2, LOG2_E, LOWEST, logit


@triton.jit
def column_maximum_kernel(
    Z,
    z_stride,
    ROWS,
    stats,
    c,
    scaling,
    SOFTCAP: tl.constexpr,
    ENTROPY_TERM: tl.constexpr,
    n_rows,
    WEIGHT,
    HIGHEST,
    V,
    SPAN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """max over rows of |gradient| / weight for every column, without the sampled token's term.

    A program takes BLOCK columns through SPAN rows before it meets the others.
    """
    column_blocks = tl.cdiv(V, BLOCK)
    pid = tl.program_id(0).to(tl.int64)
    columns = (pid % column_blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < V
    highest = tl.zeros((BLOCK,), tl.float32)
    for step in range(0, SPAN, BLOCK_ROWS):
        i = (pid // column_blocks) * SPAN + step + tl.arange(0, BLOCK_ROWS)
        real = i < n_rows
        rows = tl.load(ROWS + i, mask=real, other=0)
        size = tl.load(c.a + rows, mask=real, other=0.0)
        size += tl.load(c.bm + rows, mask=real, other=0.0)
        per_weight = tl.abs(scaling.pull / tl.load(WEIGHT + rows, mask=real, other=1.0))
        top = tl.load(stats.top + rows, mask=real, other=0.0)
        log2_total = tl.load(stats.log_total + rows, mask=real, other=0.0) * LOG2_E
        where = real[:, None] & inside[None, :]
        z = Z + rows[:, None] * z_stride + columns[None, :]
        x = logit(tl.load(z, mask=where, other=float("-inf")), where, scaling.scale, SOFTCAP)
        log2_p = (x - top[:, None]) * scaling.factor - log2_total[:, None]
        size = size[:, None]
        if ENTROPY_TERM:
            h = tl.load(c.h + rows, mask=real, other=0.0)
            entropy = tl.load(stats.entropy + rows, mask=real, other=0.0)
            size = size + h[:, None] * (log2_p * LN_2 + entropy[:, None])
        size = tl.exp2(log2_p) * tl.abs(size) * per_weight[:, None]
        highest = tl.maximum(highest, tl.max(tl.where(where, size, 0.0), 0))
    tl.atomic_max(HIGHEST + columns, highest, mask=inside, sem="relaxed")


@triton.jit
def selected_gradient_kernel(
    Z,
    z_stride,
    ROWS,
    stats,
    c,
    scaling,
    SOFTCAP: tl.constexpr,
    ENTROPY_TERM: tl.constexpr,
    G,
    g_stride,
    COLUMNS,
    n_columns,
    column_blocks,
    TOKEN,
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
    x = logit(raw, inside, scaling.scale, SOFTCAP)
    log2_total = tl.load(stats.log_total + row) * LOG2_E
    log2_p = (x - tl.load(stats.top + row)) * scaling.factor - log2_total
    a, bm = tl.load(c.a + row), tl.load(c.bm + row)
    size = tl.full((BLOCK,), 0.0, tl.float32) + (a + bm)
    if ENTROPY_TERM:
        size += tl.load(c.h + row) * (log2_p * LN_2 + tl.load(stats.entropy + row))
    g = -tl.exp2(log2_p) * size
    g += tl.where(columns == tl.load(TOKEN + row), a, 0.0)
    g += tl.where(columns == tl.load(stats.mode + row), bm, 0.0)
    g *= scaling.pull
    if SOFTCAP:
        g *= 1.0 - x * x
    g = tl.where(inside, g, 0.0)
    tl.store(G + i * g_stride + j, g.to(G.dtype.element_ty), mask=j < g_stride)


@triton.jit
def likeliest_kernel(
    Z,
    z_stride,
    ROWS,
    TOKEN,
    IDS,
    V,
    scaling,
    COUNT: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The COUNT likeliest tokens of chosen rows, as acpo.objectives.tokens.likeliest orders them.

    One pass over the row for each; it is in cache after the first.
    """
    i = tl.program_id(0).to(tl.int64)
    row = tl.load(ROWS + i)
    z_row = Z + row * z_stride
    token = tl.load(TOKEN + row)
    offsets = tl.arange(0, BLOCK)
    last, last_id = float("inf"), -1
    for k in tl.static_range(COUNT):
        highest = tl.full((BLOCK,), LOWEST, tl.float32)
        where = tl.full((BLOCK,), 2147483647, tl.int32)
        for start in range(0, V, BLOCK):
            columns = start + offsets
            raw = tl.load(z_row + columns, mask=columns < V, other=float("-inf"))
            x = logit(raw, columns < V, scaling.scale, SOFTCAP)
            left = (x < last) | ((x == last) & (columns > last_id))
            wins = left & (x > highest)
            where = tl.where(wins, columns, where)
            highest = tl.where(wins, x, highest)
        last = tl.max(highest, 0)
        last_id = tl.min(tl.where(highest == last, where, 2147483647), 0)
        chosen = tl.where(last > LOWEST, last_id.to(tl.int64), token)
        tl.store(IDS + i * COUNT + k, chosen)


@triton.jit
def scale_kernel(X, FACTOR, n, BLOCK: tl.constexpr):
    """X *= FACTOR[0] in place; reads nothing when the factor is 1."""
    factor = tl.load(FACTOR).to(tl.float32)
    if factor != 1.0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < n)
        tl.store(X + at, (x.to(tl.float32) * factor).to(X.dtype.element_ty), mask=at < n)
