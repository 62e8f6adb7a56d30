"""The row step by plain torch: any device, bounded memory, no Triton.

Each function takes one chunk of raw products `[C, V]` and may overwrite it.
"""

import torch
from torch import Tensor

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
from acpo.objectives.tokens import is_policy_mode, likeliest


def row_sums(raw: Tensor, tokens: Tensor, projection: Projection, out: RowSums) -> None:
    """Fill `out` from the chunk, summing in its dtype; `raw` is destroyed."""
    x = projection.squash_(raw)
    top, mode = x.max(-1)
    d = _shift_(x, top, projection)
    out.token.copy_(d.gather(1, tokens[:, None])[:, 0])
    d.clamp_(min=-1e30)  # 0 · -inf of an impossible token
    mass = d.exp().scatter_(1, mode[:, None], 0.0)
    wide = out.rest.dtype
    torch.sum(mass, -1, dtype=wide, out=out.rest)
    product = mass * d
    torch.sum(product, -1, dtype=wide, out=out.spread)
    torch.sum(product.mul_(mass), -1, dtype=wide, out=out.square_d)
    torch.sum(product.mul_(d), -1, dtype=wide, out=out.square_dd)
    torch.sum(mass.square_(), -1, dtype=wide, out=out.square)
    # A largest logit that is not finite has no distances; they say so, the gather may not.
    out.rest.masked_fill_(~torch.isfinite(top), torch.nan)
    out.mode.copy_(mode)


def policy_gradient(
    raw: Tensor,
    projection: Projection,
    terms: TokenTerms,
    out: RowStats,
    dtype: torch.dtype,
    sparsity: Sparsity | None = None,
) -> tuple[RowCoefficients, Tensor | SparseGradient]:
    """Statistics, coefficients, and the loss's gradient for the raw products, in `dtype`."""
    tokens = terms.tokens
    shifted, mass = statistics(raw, tokens, projection, terms.align_tol, out)
    c = row_coefficients(out, terms)
    result = _gradient(shifted, mass, tokens, projection, out, c, dtype)
    return c, result if sparsity is None else _select(result, sparsity)


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
    top = stats.top.nan_to_num(0.0, 0.0, 0.0)
    shifted = _shift_(projection.squash_(raw), top, projection)
    result = _gradient(shifted, shifted.exp(), tokens, projection, stats, coefficients, dtype)
    return result if sparsity is None else _select(result, sparsity)


def _select(gradient: Tensor, sparsity: Sparsity) -> SparseGradient:
    """The rows and columns that hold an entry above the threshold."""
    large = gradient.abs() > (sparsity.eps * sparsity.weight)[:, None]
    rows, columns = (large.any(axis).nonzero()[:, 0] for axis in (1, 0))
    return SparseGradient(rows, columns, gradient[rows][:, columns])


def _shift_(x: Tensor, top: Tensor, projection: Projection) -> Tensor:
    x.sub_(top[:, None])
    return x if projection.factor == 1.0 else x.mul_(projection.factor)


def statistics(
    raw: Tensor, tokens: Tensor, projection: Projection, align_tol: float, out: RowStats
) -> tuple[Tensor, Tensor]:
    """Fill `out` from the chunk; return d = z - max z (in raw's memory) and e^d."""
    x = projection.squash_(raw)
    top, mode = x.max(-1)
    z = _shift_(x, top, projection)
    z_token = z.gather(1, tokens[:, None])[:, 0]  # -inf for an impossible token, which is no y
    mass = z.exp()
    total = mass.sum(-1)
    # The shifted sum keeps the entropy exact near 0.
    spread = torch.linalg.vecdot(mass, z)
    if not torch.isfinite(spread).all():
        z.clamp_(min=-1e30)  # 0 · -inf of an impossible token
        spread = torch.linalg.vecdot(mass, z)
    log_total = total.log()
    logp = z_token - log_total
    is_mode = is_policy_mode(logp, -log_total, align_tol)
    out.logp.copy_(logp)
    out.log_pmax.copy_(torch.where(is_mode, logp, -log_total))
    out.is_mode.copy_(is_mode)
    out.entropy.copy_(log_total - spread / total)
    out.top.copy_(top)
    out.log_total.copy_(log_total)
    out.mode.copy_(torch.where(is_mode, tokens, mode))
    return z, mass


def _gradient(
    shifted: Tensor,
    mass: Tensor,
    tokens: Tensor,
    projection: Projection,
    stats: RowStats,
    c: RowCoefficients,
    dtype: torch.dtype,
) -> Tensor:
    finite = stats.finite()
    total = mass.sum(-1, keepdim=True)
    pull = (c.a + c.bm)[:, None]
    if c.top is not None:
        giving = c.gives().nonzero()
        given = c.top[giving[:, 0]]
        columns = likeliest(shifted[giving[:, 0]], given.shape[1], tokens[giving[:, 0]])
        pull = pull + c.top.sum(1, keepdim=True)
    squashed = shifted.clone() if projection.softcap is not None else None
    if bool((c.h != 0).any()):
        # p (pull + h (log p + H)), with log p = d - log Σe^d
        tail = (stats.entropy[:, None] - total.log()).nan_to_num(0.0, 0.0, 0.0)
        factor = shifted.clamp_(min=-1e30).add_(tail).mul_(c.h[:, None]).add_(pull)
        result = mass.mul_(factor).div_(-total)
    else:
        result = mass.mul_(-pull / total)
    result.scatter_add_(1, tokens[:, None], c.a[:, None])
    result.scatter_add_(1, stats.mode[:, None], c.bm[:, None])
    if c.top is not None:
        result.index_put_((giving, columns), given, accumulate=True)
    if not bool(finite.all()):
        result[~finite] = 0.0
    if squashed is not None:
        squashed.div_(projection.factor).add_(stats.top[:, None])
    return projection.pull_back_(result, squashed).to(dtype)
