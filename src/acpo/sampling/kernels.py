"""A step on CUDA besides its products: attention over each row's own length, and the draw."""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from acpo.head.kernels import launch
from acpo.head.kernels.logits import LN_2, LOWEST, logit
from acpo.head.projection import Projection
from acpo.head.triton import Scaling


class Heads(NamedTuple):
    """`[B, H, 1, D]` with stride 1 in the last dimension."""

    data: Any
    row_stride: int
    head_stride: int

    @classmethod
    def of(cls, x: Tensor) -> "Heads":
        x = x if x.stride(-1) == 1 else x.contiguous()
        return cls(x, x.stride(0), x.stride(1))


@triton.jit
def _attend_before(q, keys, values, length, state, scale, width, WIDTH: tl.constexpr):
    """Add the filled places of a slot to the running maximum, sum and output of a row."""
    top, total, out = state
    BLOCK: tl.constexpr = 64
    column = tl.arange(0, WIDTH)
    inside = column < width
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
    return out / total[:, None]


@triton.jit
def attention_kernel(
    query,
    key,
    value,
    keys,
    values,
    OUT,
    SLOTS,
    LENGTHS,
    scale,
    groups,
    width,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
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
    q_row = query.data + row * query.row_stride
    q = tl.load(q_row + heads[:, None] * query.head_stride + column[None, :], mask=real, other=0.0)
    k = key.data + row * key.row_stride + head * key.head_stride
    v = value.data + row * value.row_stride + head * value.head_stride
    kept_k = keys.data + slot * keys.row_stride + head * keys.head_stride
    kept_v = values.data + slot * values.row_stride + head * values.head_stride
    k = tl.load(k + column, mask=inside, other=0.0).to(kept_k.dtype.element_ty)
    v = tl.load(v + column, mask=inside, other=0.0).to(kept_v.dtype.element_ty)
    tl.store(kept_k + length * width + column, k, mask=inside)
    tl.store(kept_v + length * width + column, v, mask=inside)
    q = q.to(k.dtype)
    # The new token first, from registers: the running maximum is finite from the start.
    top = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
    total = tl.full((GROUPS,), 1.0, tl.float32)
    out = tl.zeros((GROUPS, WIDTH), tl.float32) + v.to(tl.float32)[None, :]
    out = _attend_before(q, kept_k, kept_v, length, (top, total, out), scale, width, WIDTH)
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
    """Attention of one new token per row, which is stored behind the row's others: `[B, 1, H · D]`.

    Args:
        query: `[B, H, 1, D]`; `key` and `value` `[B, H_kv, 1, D]`.
        keys: `[S, H_kv, L, D]`; `values` likewise.
        slots: `[B]`, where in the cache each row is.
        lengths: `[B]`, how much of it is filled.
        scaling: of the scores.
    """
    rows, heads, _, width = query.shape
    kept, groups = keys.shape[1], heads // keys.shape[1]
    out = torch.empty(rows, 1, heads * width, dtype=keys.dtype, device=query.device)
    launch(
        attention_kernel,
        (rows, kept),
        *(Heads.of(x) for x in (query, key, value, keys, values)),
        out,
        slots,
        lengths,
        scaling / math.log(2),
        groups,
        width,
        GROUPS=max(16, triton.next_power_of_2(groups)),
        WIDTH=max(16, triton.next_power_of_2(width)),
        num_warps=4,
    )
    return out


@triton.jit
def _block_sums(
    z_row, V, scale, factor, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    """The largest logit of each block, and its sum of exponentials relative to that."""
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
    return tops, sums


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
    tops, sums = _block_sums(z_row, V, scale, factor, SOFTCAP, BLOCK, BLOCKS)
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
    # At least a column a thread, of blocks as of sums of blocks: eight warps are 256.
    block = min(4096, max(256, triton.next_power_of_2(vocab)))
    launch(
        draw_kernel,
        (rows,),
        raw,
        raw.stride(0),
        uniforms,
        tokens,
        logp,
        vocab,
        *Scaling.of(projection)[:2],
        SOFTCAP=projection.softcap is not None,
        BLOCK=block,
        BLOCKS=max(256, triton.next_power_of_2(triton.cdiv(vocab, block))),
        num_warps=8,
    )
    return tokens, logp
