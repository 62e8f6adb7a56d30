"""`distribution_stats`: more about the policy at each token than a loss needs."""

from typing import NamedTuple

import torch
from torch import Tensor

from acpo.head.checks import check_shapes, check_values
from acpo.head.lookup import LanguageModelHead
from acpo.head.products import Head, HeadSettings
from acpo.head.rows import RowSums
from acpo.objectives.tokens import is_policy_mode


class TokenDistribution(NamedTuple):
    """The policy at each of N tokens; float64 where the device has it.

    Attributes:
        logp: log π(y) of the sampled token y.
        log_pmax: log π(v*) of the mode v*.
        is_mode: whether y is the mode. A tie within `align_tol` counts, and then v* := y.
        entropy: Shannon entropy in nats.
        mode: the id v*.
        tail_p2: Σ p² over all tokens but v*.
        tail_p2_logp: Σ p² log p, likewise.
        tail_p2_logp2: Σ p² (log p)², likewise.
        top_ids: `[N, k]` ids of the likeliest tokens, likeliest first.
        top_logps: `[N, k]` their log-probabilities.
    """

    logp: Tensor
    log_pmax: Tensor
    is_mode: Tensor
    entropy: Tensor
    mode: Tensor
    tail_p2: Tensor
    tail_p2_logp: Tensor
    tail_p2_logp2: Tensor
    top_ids: Tensor
    top_logps: Tensor

    @staticmethod
    def join(parts: "list[TokenDistribution]") -> "TokenDistribution":
        """The tokens of several calls in one."""
        return TokenDistribution(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


@torch.no_grad()
def distribution_stats(
    hidden: Tensor,
    head: LanguageModelHead | Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    align_tol: float = 1e-6,
    top_k: int = 0,
    logits_bytes: int | None = None,
) -> TokenDistribution:
    """Statistics of the whole distribution at each token, without `[N, V]` logits.

    Everything is summed over the tokens other than the mode, so that a distribution with nearly
    all of its mass on one token keeps the digits of the rest. A row with a logit that is NaN or
    +inf comes out as NaN. Arguments as of `token_stats`; `top_k` of the likeliest tokens are named.
    """
    head = LanguageModelHead.of(head)
    check_shapes(hidden, head, tokens)
    check_values(tokens, head.weight.shape[0], {})
    settings = HeadSettings.make(hidden, head.projection(temperature), logits_bytes)
    tokens = tokens.contiguous()  # kernels read it with stride 1
    with torch.autocast(hidden.device.type, enabled=False):
        ready = settings.head(hidden, head.weight, head.bias)
        return _distribution(ready, tokens, align_tol, top_k)


def _distribution(head: Head, tokens: Tensor, align_tol: float, top_k: int) -> TokenDistribution:
    rows, vocab = head.hidden.shape[0], head.weight.shape[0]
    device, wide = tokens.device, torch.float32 if tokens.device.type == "mps" else torch.float64
    sums = RowSums.empty(rows, device, wide)
    shape = (rows, min(top_k, vocab))
    top_ids = torch.empty(shape, dtype=torch.int64, device=device)
    top_logits = torch.empty(shape, dtype=wide, device=device)
    for span, raw in head.chunks():
        if shape[1]:
            values, ids = raw.topk(shape[1])
            top_ids[span] = ids
            top_logits[span] = head.projection.scaled(values.to(wide))
        head.backend.row_sums(raw, tokens[span], head.projection, sums.at(span))
    top_logps = top_logits - top_logits[:, :1] - sums.rest.log1p()[:, None]
    return _from_sums(sums, tokens, align_tol, top_ids, top_logps)


def _from_sums(
    sums: RowSums, tokens: Tensor, align_tol: float, top_ids: Tensor, top_logps: Tensor
) -> TokenDistribution:
    """From sums relative to the largest logit to the policy's own."""
    log_total = sums.rest.log1p()
    logp = sums.token - log_total
    is_mode = is_policy_mode(logp, -log_total, align_tol)
    entropy = log_total - sums.spread / (1 + sums.rest)
    # A tie: y becomes the mode and leaves the sums, the largest logit (d = 0) joins them.
    tied = is_mode & (sums.mode != tokens)
    d = torch.where(tied, sums.token, 0.0)
    q = torch.where(tied, (2 * d).exp(), 0.0)
    square = sums.square - q + tied.to(q.dtype)
    square_d = sums.square_d - q * d
    square_dd = sums.square_dd - q * d * d
    # log p = d - log Σe^d; every term has one sign, so nothing cancels.
    scale = (-2 * log_total).exp()
    return TokenDistribution(
        logp=logp,
        log_pmax=torch.where(is_mode, logp, -log_total),
        is_mode=is_mode,
        entropy=entropy,
        mode=torch.where(is_mode, tokens, sums.mode),
        tail_p2=square * scale,
        tail_p2_logp=(square_d - log_total * square) * scale,
        tail_p2_logp2=(square_dd - 2 * log_total * square_d + log_total.square() * square) * scale,
        top_ids=top_ids,
        top_logps=top_logps,
    )
