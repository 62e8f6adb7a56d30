"""One token per row, from one uniform number per row."""

import numpy as np
import torch
from torch import Tensor


def uniform_table(rows: int, columns: int, seed: tuple[int, ...]) -> Tensor:
    """`[rows, columns]` numbers in [0, 1) that depend on the seed and on nothing else.

    Runs that share a seed share them, whatever their policies do and wherever they run: as long as
    two policies agree, so do their samples.
    """
    return torch.from_numpy(np.random.default_rng(seed).random((rows, columns)))


def draw(scaled: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Invert each row's distribution at its uniform number.

    Args:
        scaled: `[B, V]` float32 logits, divided by the temperature.
        uniforms: `[B]` in [0, 1).

    Returns:
        `[B]` tokens and their log-probabilities.
    """
    log_p = torch.log_softmax(scaled, -1)
    # Sums of 50,000 probabilities, in float64: in float32 the far end of a vocabulary blurs.
    cumulative = log_p.exp().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Strictly below the end and strictly beyond the point: a token of probability 0 is never drawn.
    last = torch.nextafter(total, torch.zeros_like(total))
    points = torch.minimum(uniforms[:, None].to(torch.float64) * total, last)
    tokens = torch.searchsorted(cumulative, points, right=True).clamp_(max=scaled.shape[-1] - 1)
    return tokens[:, 0], log_p.gather(-1, tokens)[:, 0]


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's likeliest token, and its log-probability at temperature 1."""
    log_p, tokens = torch.log_softmax(logits, -1).max(-1)
    return tokens, log_p
