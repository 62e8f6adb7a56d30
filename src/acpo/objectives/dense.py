"""The definition of every method's loss, from materialised logits, and its closed-form gradient."""

from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives.batch import Batch, prepare_batch, row_and_batch
from acpo.objectives.loss import aggregation_weights, batch_objective, token_coefficients
from acpo.objectives.method import Method
from acpo.objectives.tokens import likeliest, mean_top_logp, scaled_log_probs, stats_from_logits


def dense_loss(
    method: str | Method,
    *,
    logits: Tensor,
    tokens: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    temperature: float = 1.0,
    beta: float = 0.0,
    **rest: Any,
) -> Tensor:
    """The loss by plain autograd from `[B, T, V]` logits: the definition, slow and obvious.

    Arguments as in `token_objective`, with the whole mini-batch in them: `advantages` is `[B]` with
    groups in consecutive rows, or `[B, T]` from outside, which the row shapes like any other.
    """
    given = {"logits": logits, "tokens": tokens, "old_logp": old_logp, "advantages": advantages}
    batch, *_ = _dense_batch(method, **given, mask=mask, temperature=temperature, beta=beta, **rest)
    value = batch_objective(batch, beta).value
    weights = aggregation_weights(batch.method, mask, dtype=value.dtype)
    return -(weights * value).sum()


def logit_gradient(
    method: str | Method, *, temperature: float = 1.0, beta: float = 0.0, **batch: Any
) -> Tensor:
    """∂ dense_loss / ∂ logits, `[B, T, V]`, in closed form. Arguments as in `dense_loss`."""
    with torch.no_grad():
        found, logits, tokens = _dense_batch(method, temperature=temperature, beta=beta, **batch)
        row, stats = found.method, found.inputs.stats
        c = token_coefficients(row, found.inputs, ref_logp=found.ref_logp, beta=beta)
        log_p = scaled_log_probs(logits, temperature)
        p = log_p.exp()
        mode = torch.where(stats.is_mode, tokens, log_p.argmax(-1))
        bm = c.b * stats.log_pmax.exp()
        gradient = -(c.a + bm)[..., None] * p
        entropy = stats.entropy[..., None]
        gradient -= c.h[..., None] * p * (log_p.nan_to_num(neginf=0.0) + entropy)
        gradient.scatter_add_(-1, tokens[..., None], c.a[..., None])
        gradient.scatter_add_(-1, mode[..., None], bm[..., None])
        if c.top is not None:
            gradient -= c.top.sum(-1, keepdim=True) * p
            gradient.scatter_add_(-1, likeliest(log_p, row.candidates, tokens), c.top)
        weights = aggregation_weights(row, found.mask, dtype=gradient.dtype)[..., None]
        return -torch.where(weights > 0, weights * gradient, 0.0) / temperature


def _dense_batch(
    method: str | Method,
    *,
    logits: Tensor,
    tokens: Tensor,
    mask: Tensor,
    temperature: float,
    **rest: Any,
) -> tuple[Batch, Tensor, Tensor]:
    """The mini-batch as the row reads it; logits and tokens, made harmless where masked."""
    row, given = row_and_batch(method, rest)
    _check(logits, tokens, mask)
    logits = torch.where(mask.bool()[..., None], logits, 0.0)
    tokens = torch.where(mask.bool(), tokens, 0)
    stats = stats_from_logits(
        logits=logits,
        tokens=tokens,
        temperature=temperature,
        align_tol=float(row.options["align_tol"]),
    )
    top_logp = None
    if row.candidates:
        log_probs = scaled_log_probs(logits, temperature)
        top_logp = mean_top_logp(log_probs, row.candidates, tokens)
    batch = prepare_batch(row, stats=stats, mask=mask, tokens=tokens, top_logp=top_logp, **given)
    return batch, logits, tokens


def _check(logits: Tensor, tokens: Tensor, mask: Tensor) -> None:
    if logits.dim() != 3 or not logits.shape[:2] == tokens.shape == mask.shape:
        raise ACPOError(
            f"logits has shape {list(logits.shape)}, tokens {list(tokens.shape)}, mask "
            f"{list(mask.shape)}; they must be [B, T, V], [B, T] and [B, T]"
        )
    vocabulary = logits.shape[-1]
    picked = tokens[mask.bool()]
    if picked.numel() and (int(picked.min()) < 0 or int(picked.max()) >= vocabulary):
        raise ACPOError(f"tokens holds ids outside [0, {vocabulary}); are they of this vocabulary?")
    bad = (logits.isnan() | (logits == torch.inf)).any(-1) & mask.bool()
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise ACPOError(
            f"logits[{row}, {column}] is not finite at {int(bad.sum())} valid token(s); the model "
            "diverged or overflowed: lower the learning rate or use a wider dtype"
        )
