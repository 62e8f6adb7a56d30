"""Token distributions and what a trace would hold of them, in float64."""

import numpy as np
import torch
from torch import Tensor

from acpo.diagnose.geometry import TokenScalars


def peaked_logits(n: int, vocab: int, seed: int = 0) -> Tensor:
    """From flat to p_max = 1 - 1e-12, in even steps of log δ."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, vocab, generator=g, dtype=torch.float64) * 1.5
    z[:, 0] = -torch.inf
    delta = torch.logspace(-12, np.log10(0.9), n, dtype=torch.float64)
    z[:, 0] = torch.logsumexp(z, -1) + torch.log1p(-delta) - torch.log(delta)
    order = torch.stack([torch.randperm(vocab, generator=g) for _ in range(n)])
    return z.gather(1, order)


def log_probabilities(z: Tensor) -> tuple[Tensor, Tensor]:
    """log p and the mode's index, so that log p of the mode keeps its digits and has gradients."""
    top = z.detach().argmax(-1, keepdim=True)
    # The mode's own zero is a constant: as z - z its gradient would be 1 - 1 plus what is sought.
    shifted = (z - z.gather(1, top)).scatter(1, top, 0.0)
    others = torch.exp(shifted).scatter(1, top, 0.0).sum(-1, keepdim=True)
    return shifted - torch.log1p(others), top


def entropy_of(logp: Tensor) -> Tensor:
    return -(logp.exp() * logp).sum(-1)


def scalars(z: Tensor, y: Tensor) -> TokenScalars:
    """The columns of a trace, from logits `[n, vocab]` and sampled ids `[n]`."""
    logp, top = log_probabilities(z)
    p2 = (2 * logp).exp().scatter(1, top, 0.0)
    columns = (
        logp.gather(1, y[:, None])[:, 0],
        logp.gather(1, top)[:, 0],
        entropy_of(logp),
        y == top[:, 0],
        p2.sum(-1),
        (p2 * logp).sum(-1),
        (p2 * logp**2).sum(-1),
    )
    return TokenScalars(*(column.numpy() for column in columns))


def trace_columns(t: TokenScalars) -> dict[str, np.ndarray]:
    """`scalars` as `TraceWriter.append` wants them."""
    return {"token_id": np.zeros(len(t.logp), dtype=np.int32), **t._asdict(), "delta": t.delta}
