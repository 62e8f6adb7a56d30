"""The row step on CUDA: the same functions as `acpo.head.chunked`, by Triton kernels."""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from acpo.head.kernels.distribution import distribution_kernel
from acpo.head.kernels.rows import row_kernel
from acpo.head.kernels.sparse import (
    column_maximum_kernel,
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
from acpo.objectives import Method

COLUMN_ALIGNMENT = 128
KERNEL_GATES = ("soft", "clip", "capped_reinforce", "ratio")


class _Stages(NamedTuple):
    """What one launch of the row kernel does."""

    statistics: bool
    policy: bool
    gradient: bool


def statistics(
    raw: Tensor, tokens: Tensor, projection: Projection, align_tol: float, out: RowStats
) -> None:
    """Fill `out` from the chunk; `raw` is kept."""
    _launch(raw, tokens, projection, out, _Stages(True, False, False), align_tol=align_tol)


def row_sums(raw: Tensor, tokens: Tensor, projection: Projection, out: RowSums) -> None:
    """Fill `out` from the chunk; `raw` is kept."""
    rows, vocab = raw.shape
    if rows == 0:
        return
    # Seven sums a lane: eight lanes a thread leave them in registers.
    block = min(4096, max(128, triton.next_power_of_2(vocab)))
    arguments = _projection_arguments(projection)
    del arguments["pull"]
    distribution_kernel[(rows,)](
        raw,
        raw.stride(0),
        tokens,
        *out,
        V=vocab,
        BLOCK=block,
        num_warps=max(1, block // 256),
        **arguments,
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

    A gate without a kernel of its own has its coefficients made by torch, between two launches.
    """
    if not _has_kernel(terms.method):
        statistics(raw, terms.tokens, projection, terms.align_tol, out)
        c = row_coefficients(out, terms)
        return c, gradient(raw, terms.tokens, projection, out, c, dtype, sparsity)
    c = RowCoefficients(*(torch.empty_like(out.logp) for _ in range(4)))
    stages = _Stages(True, True, sparsity is None)
    target = _gradient_view(raw, dtype) if sparsity is None else raw
    _launch(raw, terms.tokens, projection, out, stages, terms=terms, c=c, target=target)
    if sparsity is None:
        return c, target
    return c, _select(raw, terms.tokens, projection, out, c, dtype, sparsity)


def _has_kernel(method: Method) -> bool:
    """Whether the row kernel computes the method's gate (kernels/policy.py)."""
    return method.gate in KERNEL_GATES and method.options.get("delta") is None


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
    stages = _Stages(False, False, True)
    _launch(raw, tokens, projection, stats, stages, c=coefficients, target=target)
    return target


def scale_(x: Tensor, by: Tensor) -> Tensor:
    """x *= by, where `by` is a scalar on the device."""
    block = 8192
    scale_kernel[(triton.cdiv(x.numel(), block),)](x, by, x.numel(), BLOCK=block, num_warps=8)
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
    stages: _Stages,
    *,
    align_tol: float = 0.0,
    terms: TokenTerms | None = None,
    c: RowCoefficients | None = None,
    target: Tensor | None = None,
) -> None:
    rows, vocab = raw.shape
    if rows == 0:
        return
    target = raw if target is None else target
    c = c or RowCoefficients(*(stats.logp for _ in range(4)))
    unused = stats.logp
    arguments = _with_terms(terms, unused) if terms else _without_terms(unused, align_tol)
    block, warps = _block_shape(vocab, raw.dtype)
    row_kernel[(rows,)](
        raw,
        raw.stride(0),
        target,
        target.stride(0),
        tokens,
        *stats,
        *c,
        V=vocab,
        STATISTICS=stages.statistics,
        FIND_MODE=terms is None or terms.method.credit.differentiates_mode,
        POLICY=stages.policy,
        GRADIENT=stages.gradient,
        NARROWS=target.dtype != raw.dtype,
        BLOCK=block,
        num_warps=warps,
        **_projection_arguments(projection),
        **arguments,
    )


def _block_shape(vocab: int, dtype: torch.dtype) -> tuple[int, int]:
    """Columns and warps per step, as measured fastest on Hopper.

    Wide logits want one large program per multiprocessor, so that few rows compete for the cache;
    narrow ones fit it anyway and want several.
    """
    block, warps = (8192, 32) if dtype.itemsize == 4 else (2048, 4)
    fitting = max(128, triton.next_power_of_2(vocab))
    return (block, warps) if block <= fitting else (fitting, max(1, min(8, fitting // 512)))


def _projection_arguments(projection: Projection) -> dict[str, Any]:
    pull = projection.logit_scale / projection.temperature
    if projection.softcap is None:
        return {"scale": 1.0, "factor": pull / math.log(2), "pull": pull, "SOFTCAP": False}
    return {
        "scale": projection.logit_scale / projection.softcap,
        "factor": projection.softcap / projection.temperature / math.log(2),
        "pull": pull,
        "SOFTCAP": True,
    }


_TABLE = ("ap0", "ap1", "an0", "an1", "mp0", "mp1", "mn0", "mn1")


def _without_terms(unused: Tensor, align_tol: float) -> dict[str, Any]:
    """Kernel arguments for statistics, and for gradients from given coefficients."""
    return {
        **dict.fromkeys(("OLD", "ADVANTAGE", "WEIGHT", "REFERENCE", "BONUS"), unused),
        **dict.fromkeys((*_TABLE, "tau_pos", "tau_neg", "low", "high", "beta"), 0.0),
        "align_tol": align_tol,
        "inv_entropy_max": 0.0,
        **{"GATE": "none", "SIGNAL": "none", "LIVE": "nowhere"},
        **dict.fromkeys(("CLAMP", "HAS_KL", "HAS_BONUS"), False),
        **{"MODE_TERM": True, "ENTROPY_TERM": True},
    }


def _with_terms(terms: TokenTerms, unused: Tensor) -> dict[str, Any]:
    """The method's table entry as kernel arguments."""
    options, rule = terms.method.options, terms.method.credit
    numbers = [x for row in rule.table(options) for pair in row for x in pair]
    live = "aligned" if rule.routed else "everywhere"
    entropy_max = 1.0 if terms.entropy_max is None else float(terms.entropy_max)
    has_bonus = terms.entropy_weights is not None
    return {
        "OLD": terms.old_logp,
        "ADVANTAGE": terms.advantages,
        "WEIGHT": terms.weights,
        "REFERENCE": unused if terms.ref_logp is None else terms.ref_logp,
        "BONUS": unused if terms.entropy_weights is None else terms.entropy_weights,
        **dict(zip(_TABLE, numbers, strict=True)),
        "tau_pos": float(options.get("tau_pos", 1.0)),
        "tau_neg": float(options.get("tau_neg", 1.0)),
        "low": float(options.get("epsilon", 0.0)),
        "high": float(options.get("epsilon_high", 0.0)),
        "beta": terms.beta,
        "align_tol": float(options["align_tol"]),
        "inv_entropy_max": 1.0 / entropy_max,
        "GATE": terms.method.gate,
        "SIGNAL": rule.signal,
        "LIVE": "nowhere" if rule.detached or rule.signal == "none" else live,
        "CLAMP": not isinstance(options.get("entropy_norm", ""), str),
        "HAS_KL": bool(terms.beta),
        "HAS_BONUS": has_bonus,
        "MODE_TERM": rule.differentiates_mode,
        "ENTROPY_TERM": has_bonus or rule.differentiates_entropy,
    }


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
    arguments = _projection_arguments(projection)
    rows = _rows_above(stats, c, sparsity, arguments["pull"])
    vocab = raw.shape[1]
    highest = torch.zeros(vocab, device=raw.device, dtype=torch.float32)
    if rows.numel() == 0:
        return SparseGradient(rows, rows, raw.new_empty(0, 0, dtype=dtype))
    entropy_term = bool((c.h != 0).any())
    block, span = 512, 512
    grid = triton.cdiv(vocab, block) * triton.cdiv(rows.numel(), span)
    shared = (stats.top, stats.log_total, stats.entropy, c.a, c.bm, c.h)
    column_maximum_kernel[(grid,)](
        raw,
        raw.stride(0),
        rows,
        rows.numel(),
        *shared,
        sparsity.weight,
        highest,
        vocab,
        ENTROPY_TERM=entropy_term,
        SPAN=span,
        BLOCK_ROWS=16,
        BLOCK=block,
        num_warps=8,
        **arguments,
    )
    highest[tokens[rows]] = torch.inf
    highest[stats.mode[rows[c.bm[rows] != 0]]] = torch.inf
    columns = (highest > sparsity.eps).nonzero()[:, 0]
    count = columns.numel()
    # Products are fast on aligned widths; the padding repeats a column with zero gradient.
    width = triton.cdiv(count, COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
    columns = torch.cat([columns, columns[:1].expand(width - count)])
    values = torch.empty(rows.numel(), width, device=raw.device, dtype=dtype)
    blocks = triton.cdiv(width, 1024)
    selected_gradient_kernel[(rows.numel() * blocks,)](
        raw,
        raw.stride(0),
        values,
        width,
        rows,
        columns,
        count,
        blocks,
        tokens,
        stats.mode,
        *shared,
        ENTROPY_TERM=entropy_term,
        BLOCK=1024,
        num_warps=4,
        **arguments,
    )
    return SparseGradient(rows, columns, values)


def _rows_above(stats: RowStats, c: RowCoefficients, sparsity: Sparsity, pull: float) -> Tensor:
    """Rows whose gradient can exceed the threshold somewhere: a bound from the scalars."""
    largest = c.a.abs() * -torch.expm1(stats.logp)
    largest += c.bm.abs() * -torch.expm1(stats.log_pmax)
    largest += c.h.abs() * (stats.entropy + 0.3679)  # p |log p| <= 1/e
    bound = abs(pull) * largest.nan_to_num(0.0)
    return (bound > sparsity.eps * sparsity.weight).nonzero()[:, 0]
