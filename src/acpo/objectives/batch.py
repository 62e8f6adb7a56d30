"""A mini-batch made safe: shapes agree, valid numbers are finite, masked positions are harmless."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives.methods import Method, get_method
from acpo.objectives.shaping import Alone, Groups, Reducer, Sequences
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


def token_advantages(
    method: str | Method,
    *,
    advantages: Tensor,
    mask: Tensor,
    entropy: Tensor | None = None,
    old_entropy: Tensor | None = None,
    tokens: Tensor | None = None,
    group_size: int | None = None,
    log_pmax: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """One advantage per token, `[B, T]`, from one per sequence, `[B]`.

    This is the only step that looks across sequences. Call it on the whole mini-batch; its result
    may be split into micro-batches in any way.

    Args:
        method: a row of `METHODS`.
        advantages: `[B]`, groups consecutive.
        mask: `[B, T]`, true at valid completion tokens.
        entropy: `[B, T]` under the current policy (8020, gtpo).
        old_entropy: `[B, T]` under the rollout policy (gtpo_entropy).
        tokens: `[B, T]` sampled ids (gtpo).
        group_size: completions per prompt (gtpo, gtpo_entropy).
        log_pmax: `[B, T]` log-probability of the current policy's mode (balanced rows).
        **options: the method's options.
    """
    method = get_method(method, **options)
    shaping, mask = method.shaping, mask.bool()
    given = {"entropy": entropy, "log_pmax": log_pmax, "tokens": tokens, "old_entropy": old_entropy}
    for name in (*shaping.needs, *shaping.group_needs):
        if given[name] is None:
            raise ACPOError(f"{name} is missing: method {method.name!r} cannot do without it")
    column = None
    if shaping.group_needs:
        if group_size is None:
            raise ACPOError(f"group_size is missing: method {method.name!r} compares completions")
        if group_size < 1 or len(advantages) % group_size:
            raise ACPOError(
                f"group_size={group_size} does not divide the batch of {len(advantages)} sequences"
            )
        column = shaping.of_group(
            Groups(advantages, mask, group_size, method.options, tokens, old_entropy)
        )
    batch = sequences(method, advantages, mask, entropy=entropy, log_pmax=log_pmax, group=column)
    return shaping.shape(batch, Alone()).advantages


def sequences(
    method: Method,
    advantages: Tensor,
    mask: Tensor,
    *,
    entropy: Tensor | None = None,
    log_pmax: Tensor | None = None,
    group: Tensor | None = None,
) -> Sequences:
    """A mini-batch as the method's shaping reads it: statistics constant under differentiation."""
    return Sequences(
        advantages,
        mask,
        method.credit,
        method.options,
        entropy=None if entropy is None else entropy.detach(),
        log_pmax=None if log_pmax is None else log_pmax.detach(),
        group=group,
    )


def entropy_maximum(
    method: Method, entropy: Tensor, mask: Tensor, reduce: Reducer | None = None
) -> Tensor | float | None:
    """H_max of the Shannon rows: the option's number, or the mini-batch's (detached) maximum."""
    norm = method.options.get("entropy_norm")
    if norm is None:
        return None
    if not isinstance(norm, str):
        return float(norm)
    highest = torch.where(mask, entropy.detach(), 0.0).amax()
    return (reduce or Alone()).maximum(highest).clamp_min(1e-8)


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
