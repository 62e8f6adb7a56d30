"""One token per row, from one uniform number per row: the row's distribution, inverted there."""

import numpy as np
import torch
from torch import Tensor

from acpo.head.products import INTERPRET
from acpo.head.projection import Projection

NOTHING = -1
"""What a row draws whose logits are NaN, infinite, or all impossible: no token."""


def uniform_table(rows: int, columns: int, seed: int | tuple[int, ...]) -> Tensor:
    """`[rows, columns]` numbers in [0, 1) that depend on the seed and on the table's shape alone.

    Runs that share a seed share them, whatever their policies do and wherever they run: as long as
    two policies agree, so do their samples.
    """
    return torch.from_numpy(np.random.default_rng(seed).random((rows, columns)))


def draw(
    raw: Tensor, uniforms: Tensor, projection: Projection, top_p: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Invert each row's distribution at its uniform number.

    On CUDA one kernel reads the logits once. Both ways sum in the order of the vocabulary, so they
    draw the same token unless the uniform number falls on the rounding between two.

    Args:
        raw: `[B, V]` products of the head.
        uniforms: `[B]` float64 in [0, 1).
        projection: how products become logits, temperature included.
        top_p: mass of the nucleus to draw from; log-probabilities are those of the whole.
    """
    if top_p == 1 and raw.dtype != torch.float64 and (raw.is_cuda or INTERPRET):
        from acpo.sampling.kernels import draw as draw_in_one_pass

        return draw_in_one_pass(raw, uniforms, projection)
    log_p = torch.log_softmax(projection.scaled(raw), -1)
    p = log_p.exp()
    if top_p < 1:
        ordered, places = p.sort(dim=-1, descending=True, stable=True)
        outside = ordered.cumsum(-1, dtype=torch.float64) - ordered >= top_p
        outside[:, 0] = False
        p = p.masked_fill(outside.gather(-1, places.argsort(-1)), 0.0)
    # Sums of 50,000 probabilities, in float64: in float32 the far end of a vocabulary blurs.
    cumulative = p.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Strictly below the end and strictly beyond the point: a token of probability 0 is never drawn.
    last = torch.nextafter(total, torch.zeros_like(total))
    points = torch.minimum(uniforms[:, None] * total, last)
    tokens = torch.searchsorted(cumulative, points, right=True).clamp_(max=raw.shape[-1] - 1)
    return _finite(tokens[:, 0], log_p.gather(-1, tokens)[:, 0], total[:, 0])


def greedy(raw: Tensor, projection: Projection) -> tuple[Tensor, Tensor]:
    """Each row's likeliest token, and its log-probability; `NOTHING` where there is none."""
    log_p, tokens = torch.log_softmax(projection.scaled(raw), -1).max(-1)
    return _finite(tokens, log_p, log_p)


def _finite(tokens: Tensor, logp: Tensor, told_by: Tensor) -> tuple[Tensor, Tensor]:
    return tokens.masked_fill(~told_by.isfinite(), NOTHING), logp
