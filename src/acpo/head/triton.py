"""The row step on CUDA: the same functions as `acpo.head.chunked`, by Triton kernels."""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from acpo.head.kernels import launch
from acpo.head.kernels.distribution import distribution_kernel
from acpo.head.kernels.policy import PolicyColumns, PolicyKind, PolicyNumbers
from acpo.head.kernels.rows import Stages, row_kernel
from acpo.head.kernels.sparse import (
    column_maximum_kernel,
    likeliest_kernel,
    scale_kernel,
    selected_gradient_kernel,
)
from acpo.head.projection import Projection
from acpo.head.rows import (
    RowCoefficients,
    RowStats,
    RowSums,
    SparseGradient,
    Sparsity,
    row_coefficients,
)
from acpo.head.terms import TokenTerms

COLUMN_ALIGNMENT = 128
KERNEL_GATES = ("soft", "clip", "capped_reinforce", "ratio")


class Scaling(NamedTuple):
    """What logits and gradients are multiplied by: tanh's argument, the logit, the gradient.

    `factor` turns nats into powers of two.
    """

    scale: float
    factor: float
    pull: float

    @classmethod
    def of(cls, projection: Projection) -> "Scaling":
        cap = projection.softcap
        scale = 1.0 if cap is None else projection.logit_scale / cap
        pull = projection.logit_scale / projection.temperature
        return cls(scale, projection.factor / math.log(2), pull)


def statistics(
    raw: Tensor, tokens: Tensor, projection: Projection, align_tol: float, out: RowStats
) -> None:
    """Fill `out` from the chunk; `raw` is kept."""
    _launch(raw, tokens, projection, out, Stages(statistics=True), align_tol=align_tol)


def row_sums(raw: Tensor, tokens: Tensor, projection: Projection, out: RowSums) -> None:
    """Fill `out` from the chunk; `raw` is kept."""
    rows, vocab = raw.shape
    # Seven sums a lane: eight lanes a thread leave them in registers.
    block = min(4096, max(128, triton.next_power_of_2(vocab)))
    launch(
        distribution_kernel,
        (rows,),
        raw,
        raw.stride(0),
        tokens,
        out,
        vocab,
        Scaling.of(projection),
        SOFTCAP=projection.softcap is not None,
        BLOCK=block,
        num_warps=max(1, block // 256),
    )


def policy_gradient(
    raw: Tensor,
    projection: Projection,
    terms: TokenTerms,
    out: RowStats,
    dtype: torch.dtype,
    sparsity: Sparsity | None = None,
) -> tuple[RowCoefficients, Tensor | SparseGradient]:
    """Statistics, coefficients, and the loss's gradient for the raw products, in `dtype`.

    What no kernel knows has its coefficients made by torch, between two launches.
    """
    clips_twice = terms.method.options.get("delta") is not None
    if terms.method.gate not in KERNEL_GATES or clips_twice or terms.corrects_kl:
        statistics(raw, terms.tokens, projection, terms.align_tol, out)
        c = row_coefficients(out, terms)
        return c, gradient(raw, terms.tokens, projection, out, c, dtype, sparsity)
    c = RowCoefficients(*(torch.empty_like(out.logp) for _ in range(4)))
    stages = Stages(
        statistics=True,
        find_mode=terms.method.credit.differentiates_mode,
        policy=True,
        gradient=sparsity is None,
    )
    target = _gradient_view(raw, dtype) if sparsity is None else raw
    _launch(raw, terms.tokens, projection, out, stages, terms=terms, c=c, target=target)
    if sparsity is None:
        return c, target
    return c, _select(raw, terms.tokens, projection, out, c, dtype, sparsity)


def gradient(
    raw: Tensor,
    tokens: Tensor,
    projection: Projection,
    stats: RowStats,
    coefficients: RowCoefficients,
    dtype: torch.dtype,
    sparsity: Sparsity | None = None,
) -> Tensor | SparseGradient:
    """The gradient for the raw products from known statistics and coefficients."""
    if sparsity is not None:
        return _select(raw, tokens, projection, stats, coefficients, dtype, sparsity)
    target = _gradient_view(raw, dtype)
    stages = Stages(gradient=True)
    top = coefficients.top
    if top is None:
        _launch(raw, tokens, projection, stats, stages, c=coefficients, target=target)
        return target
    c = coefficients._replace(a=coefficients.a + top.sum(1), top=None)
    rows = coefficients.gives().nonzero()[:, 0]
    columns = _columns_given(raw, rows, tokens, projection, top.shape[1])
    values = _values_at(columns, raw, rows, tokens, projection, stats, coefficients)
    _launch(raw, tokens, projection, stats, stages, c=c, target=target)
    target[rows[:, None], columns] = values.to(dtype)
    return target


def _columns_given(
    raw: Tensor, rows: Tensor, tokens: Tensor, projection: Projection, count: int
) -> Tensor:
    """`[rows, count + 1]`: the likeliest tokens of each of the rows, and the sampled one."""
    ids = torch.empty(rows.numel(), count, dtype=torch.int64, device=raw.device)
    block = min(4096, max(128, triton.next_power_of_2(raw.shape[1])))
    launch(
        likeliest_kernel,
        (rows.numel(),),
        raw,
        raw.stride(0),
        rows,
        tokens,
        ids,
        raw.shape[1],
        Scaling.of(projection),
        COUNT=count,
        SOFTCAP=projection.softcap is not None,
        BLOCK=block,
        num_warps=max(1, block // 256),
    )
    return torch.cat([ids, tokens[rows, None]], 1)


def _values_at(
    columns: Tensor,
    raw: Tensor,
    rows: Tensor,
    tokens: Tensor,
    projection: Projection,
    stats: RowStats,
    c: RowCoefficients,
) -> Tensor:
    """The gradient at `columns[i]` of row `rows[i]`, whole and in float32.

    Added to what the row kernel wrote there, terms that nearly cancel would leave the rounding of
    a narrow gradient behind.
    """
    a, bm, h, entropy, top, log_total, mode, sampled = (
        x[rows, None]
        for x in (c.a, c.bm, c.h, stats.entropy, stats.top, stats.log_total, stats.mode, tokens)
    )
    assert c.top is not None
    given, squashed = c.top[rows], projection.squash_(raw[rows[:, None], columns].float())
    log_p = (squashed - top) * projection.factor - log_total
    pull = a + bm + given.sum(1, keepdim=True) + h * (log_p.clamp(min=-1e30) + entropy)
    # A sampled token among the likeliest stands twice: both entries get the same value.
    own = torch.where(columns == sampled, a, 0.0) + torch.where(columns == mode, bm, 0.0)
    own += torch.where(columns[:, :, None] == columns[:, None, :-1], given[:, None], 0.0).sum(2)
    values = projection.pull_back_(own - log_p.exp() * pull, squashed)
    return torch.where(stats.finite()[rows, None], values, 0.0)


def scale_(x: Tensor, by: Tensor) -> Tensor:
    """x *= by, where `by` is a scalar on the device."""
    block = 8192
    programs = (triton.cdiv(x.numel(), block),)
    launch(scale_kernel, programs, x, by, x.numel(), BLOCK=block, num_warps=8)
    return x


def _gradient_view(raw: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the gradient goes: raw's own memory, its second half if the gradient is narrower."""
    if raw.dtype == dtype:
        return raw
    rows, vocab, stride = raw.shape[0], raw.shape[1], raw.stride(0)
    wide = raw.as_strided((rows, stride), (stride, 1)).view(dtype)  # [rows, 2 stride]
    return wide[:, stride : stride + vocab]


def _launch(
    raw: Tensor,
    tokens: Tensor,
    projection: Projection,
    stats: RowStats,
    stages: Stages,
    *,
    align_tol: float = 0.0,
    terms: TokenTerms | None = None,
    c: RowCoefficients | None = None,
    target: Tensor | None = None,
) -> None:
    rows, vocab = raw.shape
    target = raw if target is None else target
    columns, numbers, kind = PolicyColumns(), PolicyNumbers(), PolicyKind()
    if terms is not None:
        columns, numbers, kind = _policy(terms)
        align_tol = terms.align_tol
    block, warps = _block_shape(vocab)
    launch(
        row_kernel,
        (rows,),
        raw,
        raw.stride(0),
        target,
        target.stride(0),
        tokens,
        stats,
        c,
        columns,
        numbers,
        vocab,
        Scaling.of(projection),
        align_tol,
        STAGES=stages._replace(narrows=target.dtype != raw.dtype),
        KIND=kind,
        SOFTCAP=projection.softcap is not None,
        BLOCK=block,
        num_warps=warps,
    )


def _block_shape(vocab: int) -> tuple[int, int]:
    """Columns and warps per step, as measured fastest on Hopper.

    One large program per multiprocessor, so that few rows compete for the cache.
    """
    fitting = max(128, triton.next_power_of_2(vocab))
    return (8192, 32) if fitting >= 8192 else (fitting, max(1, min(8, fitting // 512)))


def _policy(terms: TokenTerms) -> tuple[PolicyColumns, PolicyNumbers, PolicyKind]:
    """The method's table entry as kernel arguments."""
    options, rule = terms.method.options, terms.method.credit
    names = ("ap0", "ap1", "an0", "an1", "mp0", "mp1", "mn0", "mn1")
    table = [x for row in rule.table(options) for pair in row for x in pair]
    entropy_max = 1.0 if terms.entropy_max is None else float(terms.entropy_max)
    live = "aligned" if rule.routed else "everywhere"
    has_bonus = terms.entropy_weights is not None
    columns = PolicyColumns(**{name: getattr(terms, name) for name in PolicyColumns._fields})
    numbers = PolicyNumbers(
        tau_pos=float(options.get("tau_pos", 1.0)),
        tau_neg=float(options.get("tau_neg", 1.0)),
        low=float(options.get("epsilon", 0.0)),
        high=float(options.get("epsilon_high", 0.0)),
        **dict(zip(names, table, strict=True)),
        inv_entropy_max=1.0 / entropy_max,
        beta=terms.beta,
    )
    kind = PolicyKind(
        gate=terms.method.gate,
        signal=rule.signal,
        live="nowhere" if rule.detached or rule.signal == "none" else live,
        clamp=not isinstance(options.get("entropy_norm", ""), str),
        has_kl=bool(terms.beta),
        has_bonus=has_bonus,
        mode_term=rule.differentiates_mode,
        entropy_term=has_bonus or rule.differentiates_entropy,
    )
    return columns, numbers, kind


def _select(
    raw: Tensor,
    tokens: Tensor,
    projection: Projection,
    stats: RowStats,
    c: RowCoefficients,
    dtype: torch.dtype,
    sparsity: Sparsity,
) -> SparseGradient:
    """Gradient entries of the rows and columns that hold one above the threshold."""
    scaling, softcap = Scaling.of(projection), projection.softcap is not None
    rows = _rows_above(stats, c, sparsity, scaling.pull)
    count = rows.numel()
    if count == 0:
        return SparseGradient(rows, rows, raw.new_empty(0, 0, dtype=dtype))
    entropy_term = bool((c.h != 0).any())
    shared = (raw, raw.stride(0), rows, stats, c, scaling, softcap, entropy_term)
    columns = _columns_above(shared, tokens, sparsity)
    # Products are fast on aligned widths; the padding repeats a column with zero gradient.
    width = triton.cdiv(columns.numel(), COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
    padded = torch.cat([columns, columns[:1].expand(width - columns.numel())])
    values = torch.empty(count, width, device=raw.device, dtype=dtype)
    blocks = triton.cdiv(width, 1024)
    launch(
        selected_gradient_kernel,
        (count * blocks,),
        *shared,
        values,
        width,
        padded,
        columns.numel(),
        blocks,
        tokens,
        BLOCK=1024,
        num_warps=4,
    )
    return SparseGradient(rows, padded, values)


def _columns_above(shared: tuple[Any, ...], tokens: Tensor, sparsity: Sparsity) -> Tensor:
    """Columns in which some row's gradient exceeds the threshold, those of its terms included."""
    raw, _, rows, stats, c, *_ = shared
    count, vocab = rows.numel(), raw.shape[1]
    highest = torch.zeros(vocab, device=raw.device, dtype=torch.float32)
    block, span = 512, 512
    grid = triton.cdiv(vocab, block) * triton.cdiv(count, span)
    launch(
        column_maximum_kernel,
        (grid,),
        *shared,
        count,
        sparsity.weight,
        highest,
        vocab,
        SPAN=span,
        BLOCK_ROWS=16,
        BLOCK=block,
        num_warps=8,
    )
    highest[tokens[rows]] = torch.inf
    highest[stats.mode[rows[c.bm[rows] != 0]]] = torch.inf
    return (highest > sparsity.eps).nonzero()[:, 0]


def _rows_above(stats: RowStats, c: RowCoefficients, sparsity: Sparsity, pull: float) -> Tensor:
    """Rows whose gradient can exceed the threshold somewhere: a bound from the scalars."""
    largest = c.a.abs() * -torch.expm1(stats.logp)
    largest += c.bm.abs() * -torch.expm1(stats.log_pmax)
    largest += c.h.abs() * (stats.entropy + 0.3679)  # p |log p| <= 1/e
    bound = abs(pull) * largest.nan_to_num(0.0)
    return (bound > sparsity.eps * sparsity.weight).nonzero()[:, 0]
