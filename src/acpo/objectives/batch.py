"""A mini-batch made safe: shapes agree, valid numbers are finite, masked positions are harmless."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives.methods import Method, get_method
from acpo.objectives.shaping import token_advantages
from acpo.objectives.tokens import TokenStats


class Batch(NamedTuple):
    """A checked `[B, T]` batch, masked positions made harmless."""

    method: Method
    stats: TokenStats
    old_logp: Tensor
    advantages: Tensor
    mask: Tensor
    ref_logp: Tensor | None
    entropy_max: Tensor | float | None

    def sequence_mean(self, x: Tensor) -> Tensor:
        length = self.mask.sum(1, keepdim=True).clamp_min(1)
        return (torch.where(self.mask, x, 0.0).sum(1, keepdim=True) / length).expand_as(x)


def prepare_batch(
    method: str | Method,
    *,
    stats: TokenStats,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    tokens: Tensor | None,
    group_size: int | None,
    old_entropy: Tensor | None,
    ref_logp: Tensor | None,
    beta: float,
    entropy_max: Tensor | float | None,
    options: dict[str, Any],
) -> Batch:
    method = get_method(method, **options)
    if beta and ref_logp is None:
        raise ACPOError(f"ref_logp is missing: beta={beta} needs the reference policy's log-probs")
    _check_batch(stats, old_logp, advantages, mask, tokens, ref_logp)
    mask = mask.bool()
    dtype = stats.logp.dtype
    advantages = advantages.to(dtype)
    if advantages.dim() == 1:
        advantages = token_advantages(
            method,
            advantages=advantages,
            mask=mask,
            entropy=stats.entropy,
            old_entropy=old_entropy,
            tokens=tokens,
            group_size=group_size,
            log_pmax=stats.log_pmax,
        )

    def valid(x: Tensor) -> Tensor:
        return torch.where(mask, x, 0.0).to(dtype)

    stats = TokenStats(
        valid(stats.logp), valid(stats.log_pmax), stats.is_mode | ~mask, valid(stats.entropy)
    )
    if entropy_max is None:
        entropy_max = entropy_maximum(method, stats.entropy, mask)
    return Batch(
        method,
        stats,
        valid(old_logp),
        valid(advantages),
        mask,
        None if ref_logp is None else valid(ref_logp),
        entropy_max,
    )


def entropy_maximum(method: Method, entropy: Tensor, mask: Tensor) -> Tensor | float | None:
    """H_max of the Shannon rows: the option's number, or the batch's (detached) maximum."""
    norm = method.options.get("entropy_norm")
    if norm is None:
        return None
    if not isinstance(norm, str):
        return float(norm)
    return torch.where(mask, entropy.detach(), 0.0).amax().clamp_min(1e-8)


def _check_batch(
    stats: TokenStats,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    tokens: Tensor | None,
    ref_logp: Tensor | None,
) -> None:
    """Shapes agree and every valid number is finite."""
    shape = stats.logp.shape
    if len(shape) != 2:
        raise ACPOError(f"stats.logp has shape {list(shape)}; it must be [B, T]")
    fields = {"old_logp": old_logp, "mask": mask, "tokens": tokens, "ref_logp": ref_logp}
    fields |= {f"stats.{name}": value for name, value in stats._asdict().items()}
    for name, value in fields.items():
        if value is not None and value.shape != shape:
            raise ACPOError(
                f"{name} has shape {list(value.shape)} where stats.logp has {list(shape)}; "
                "all per-token tensors must be [B, T] of the completion tokens"
            )
    if advantages.shape not in (shape, shape[:1]):
        raise ACPOError(
            f"advantages has shape {list(advantages.shape)}; pass [B]=[{shape[0]}] (one per "
            f"sequence) or [B, T]={list(shape)} (from token_advantages)"
        )
    valid = mask.bool()
    for name, value in {"old_logp": old_logp, "ref_logp": ref_logp, **stats._asdict()}.items():
        if value is None or name == "is_mode":
            continue
        bad = valid & ~torch.isfinite(value.detach())
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise ACPOError(
                f"{name}[{row}, {column}]={float(value[row, column])} at a valid token; mask it "
                "out or find where the policy produced it"
            )
    bad = ~torch.isfinite(advantages) & (valid if advantages.dim() == 2 else valid.any(1))
    if bad.any():
        raise ACPOError(
            f"advantages has {int(bad.sum())} non-finite value(s); group_advantages gives 0 to "
            "completions without a verdict"
        )


def check_gradient_paths(method: Method, stats: TokenStats) -> None:
    """A row that differentiates a statistic must be given a differentiable one."""
    if not stats.logp.requires_grad:
        return
    needed = {
        "log_pmax": method.credit.differentiates_mode,
        "entropy": method.credit.differentiates_entropy,
    }
    for name, needs in needed.items():
        if needs and not getattr(stats, name).requires_grad:
            raise ACPOError(
                f"stats.{name} is detached, but method {method.name!r} differentiates it; "
                "compute the statistics with that gradient enabled"
            )
