"""A step on CUDA besides its products: attention over each row's own length, and the draw."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from acpo.head.kernels.logits import LN_2, LOWEST, logit
from acpo.head.projection import Projection


@triton.jit
def attention_kernel(
    Q,
    K,
    V,
    KEYS,
    VALUES,
    OUT,
    SLOTS,
    LENGTHS,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    slot_stride,
    head_stride,
    scale,
    groups,
    width,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program, one row and key head: stores the new key and value, attends to all before.

    `LENGTHS` holds how many places of the row's slot are filled; places beyond are never read.
    `scale` turns nats into powers of two.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(SLOTS + row).to(tl.int64)
    length = tl.load(LENGTHS + row).to(tl.int32)
    group = tl.arange(0, GROUPS)
    column = tl.arange(0, WIDTH)
    inside = column < width
    real = (group < groups)[:, None] & inside[None, :]
    heads = head * groups + group
    q = tl.load(Q + row * q_row + heads[:, None] * q_head + column[None, :], mask=real, other=0.0)
    k = tl.load(K + row * k_row + head * k_head + column, mask=inside, other=0.0)
    v = tl.load(V + row * v_row + head * v_head + column, mask=inside, other=0.0)
    keys = KEYS + slot * slot_stride + head * head_stride
    values = VALUES + slot * slot_stride + head * head_stride
    k = k.to(KEYS.dtype.element_ty)
    v = v.to(VALUES.dtype.element_ty)
    tl.store(keys + length * width + column, k, mask=inside)
    tl.store(values + length * width + column, v, mask=inside)
    q = q.to(k.dtype)
    # The new token first, from registers: the running maximum is finite from the start.
    top = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
    total = tl.full((GROUPS,), 1.0, tl.float32)
    out = tl.zeros((GROUPS, WIDTH), tl.float32) + v.to(tl.float32)[None, :]
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        filled = place < length
        k_block = tl.load(
            keys + place[None, :] * width + column[:, None],
            mask=filled[None, :] & inside[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k_block, input_precision="ieee") * scale
        scores = tl.where(filled[None, :], scores, float("-inf"))
        risen = tl.maximum(top, tl.max(scores, 1))
        down = tl.exp2(top - risen)
        p = tl.exp2(scores - risen[:, None])
        v_block = tl.load(
            values + place[:, None] * width + column[None, :],
            mask=filled[:, None] & inside[None, :],
            other=0.0,
        )
        out = out * down[:, None] + tl.dot(p.to(v_block.dtype), v_block, input_precision="ieee")
        total = total * down + tl.sum(p, 1)
        top = risen
    out = out / total[:, None]
    at = row * tl.num_programs(1) * groups * width + heads[:, None] * width + column[None, :]
    tl.store(OUT + at, out.to(OUT.dtype.element_ty), mask=real)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    lengths: Tensor,
    scaling: float,
) -> Tensor:
    """Attention of one new token per row, which is stored behind the row's others.

    Args:
        query: `[B, H, 1, D]`.
        key: `[B, H_kv, 1, D]`; `value` likewise.
        keys: `[S, H_kv, L, D]`; `values` likewise.
        slots: `[B]`, where in the cache each row is.
        lengths: `[B]`, how much of it is filled.
        scaling: of the scores.

    Returns:
        `[B, 1, H · D]`.
    """
    rows, heads, _, width = query.shape
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    kept, groups = keys.shape[1], heads // keys.shape[1]
    out = torch.empty(rows, 1, heads * width, dtype=keys.dtype, device=query.device)
    attention_kernel[(rows, kept)](
        query,
        key,
        value,
        keys,
        values,
        out,
        slots,
        lengths,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        keys.stride(0),
        keys.stride(1),
        scaling / math.log(2),
        groups,
        width,
        GROUPS=max(16, triton.next_power_of_2(groups)),
        WIDTH=max(16, triton.next_power_of_2(width)),
        BLOCK=64,
        num_warps=4,
    )
    return out


@triton.jit
def draw_kernel(
    Z,
    z_stride,
    UNIFORMS,
    TOKENS,
    LOGP,
    V,
    scale,
    factor,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """One program, one row: sums by block in one pass, then the block that holds the point again.

    `factor` scales and turns nats into powers of two. It multiplies differences: of a product and
    a maximum, a fused multiply-add would leave the rounding of the product, 2^-24 of a logit.
    """
    row = tl.program_id(0).to(tl.int64)
    z_row = Z + row * z_stride
    offsets = tl.arange(0, BLOCK)
    blocks = tl.arange(0, BLOCKS)
    tops = tl.full((BLOCKS,), LOWEST, tl.float32)
    sums = tl.zeros((BLOCKS,), tl.float32)
    for start in range(0, V, BLOCK):
        inside = start + offsets < V
        raw = tl.load(z_row + start + offsets, mask=inside, other=float("-inf"))
        x = logit(raw, inside, scale, SOFTCAP)
        top = tl.max(x, 0)
        here = blocks == start // BLOCK
        e = tl.where(inside, tl.exp2((x - top) * factor), 0.0)
        sums = tl.where(here, tl.sum(e, 0), sums)
        tops = tl.where(here, top, tops)
    top = tl.max(tops, 0)
    weights = (sums * tl.exp2((tops - top) * factor)).to(tl.float64)
    total = tl.sum(weights, 0)
    point = tl.load(UNIFORMS + row) * total
    passed = tl.cumsum(weights, 0) <= point
    # Rounding may leave the point at the very end: the last block that holds anything has it.
    block = tl.minimum(tl.sum(passed.to(tl.int32), 0), tl.max(tl.where(weights > 0, blocks, 0), 0))
    point -= tl.sum(tl.where(blocks < block, weights, 0.0), 0)
    columns = block * BLOCK + offsets
    inside = columns < V
    raw = tl.load(z_row + columns, mask=inside, other=float("-inf"))
    x = logit(raw, inside, scale, SOFTCAP)
    e = tl.where(inside, tl.exp2((x - top) * factor), 0.0)
    passed = tl.cumsum(e.to(tl.float64), 0) <= point
    offset = tl.minimum(tl.sum(passed.to(tl.int32), 0), tl.max(tl.where(e > 0, offsets, 0), 0))
    drawn = tl.sum(tl.where(offsets == offset, x, 0.0), 0)
    logp = (drawn - top) * factor * LN_2 - tl.log(total.to(tl.float32))
    # NaN compares false; so do sums of nothing but impossible tokens, by their maximum.
    finite = (total > 0) & (total < float("inf")) & (top > 0.5 * LOWEST)
    tl.store(TOKENS + row, tl.where(finite, (block * BLOCK + offset).to(tl.int64), -1))
    tl.store(LOGP + row, tl.where(finite, logp, float("nan")))


def draw(raw: Tensor, uniforms: Tensor, projection: Projection) -> tuple[Tensor, Tensor]:
    """`acpo.sampling.draw.draw`, reading the logits once."""
    rows, vocab = raw.shape
    tokens = torch.empty(rows, dtype=torch.long, device=raw.device)
    logp = torch.empty(rows, dtype=torch.float32, device=raw.device)
    softcap = projection.softcap
    # At least a column a thread, of blocks as of sums of blocks: eight warps are 256.
    block = min(4096, max(256, triton.next_power_of_2(vocab)))
    draw_kernel[(rows,)](
        raw,
        raw.stride(0),
        uniforms,
        tokens,
        logp,
        vocab,
        1.0 if softcap is None else projection.logit_scale / softcap,
        projection.factor / math.log(2),
        SOFTCAP=softcap is not None,
        BLOCK=block,
        BLOCKS=max(256, triton.next_power_of_2(triton.cdiv(vocab, block))),
        num_warps=8,
    )
    return tokens, logp
