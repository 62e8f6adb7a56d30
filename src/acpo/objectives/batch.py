"""A mini-batch made safe: shapes agree, valid numbers are finite, masked positions are harmless."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives.gates import GATES, TokenInputs, row_mean
from acpo.objectives.method import Method, entropy_maximum
from acpo.objectives.methods import get_method
from acpo.objectives.shaping import Reducer, Sequences, Shaped, spread
from acpo.objectives.tokens import TokenStats

GIVEN = (
    *("tokens", "group_size", "old_entropy", "old_log_pmax"),
    *("old_logp", "advantages", "ref_logp", "beta"),
)
"""What `prepare_batch` reads of a mini-batch beside its statistics and its mask."""


class Batch(NamedTuple):
    """A checked `[B, T]` batch, masked positions made harmless."""

    method: Method
    inputs: TokenInputs
    mask: Tensor
    ref_logp: Tensor | None


def row_and_batch(method: str | Method, rest: dict[str, Any]) -> tuple[Method, dict[str, Any]]:
    """A row with its options, and what is `GIVEN` of a mini-batch; `rest` holds both."""
    given = {name: rest.pop(name) for name in GIVEN if name in rest}
    return get_method(method, **rest), given


def require_columns(
    method: Method, beta: float, ref_logp: Tensor | None, marks: Tensor | None, *, shaped: bool
) -> None:
    """Raise where the KL term, or the gate of advantages that were shaped, lacks its column."""
    if shaped and method.shaping.marks and marks is None:
        raise ACPOError(
            f"marks is missing: the gate of method {method.name!r} reads them; pass those of "
            "shape_tokens with its advantages"
        )
    if beta and ref_logp is None:
        raise ACPOError(f"ref_logp is missing: beta={beta} needs the reference policy's log-probs")


def prepare_batch(
    method: Method,
    *,
    stats: TokenStats,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    tokens: Tensor | None = None,
    ref_logp: Tensor | None = None,
    beta: float = 0.0,
    entropy_max: Tensor | float | None = None,
    shaped: bool = False,
    marks: Tensor | None = None,
    top_logp: Tensor | None = None,
    **rollout: Any,
) -> Batch:
    """Check a mini-batch, or a part of one, and shape its advantages unless that was done."""
    require_columns(method, beta, ref_logp, marks, shaped=shaped)
    group_size = rollout.pop("group_size", None)
    columns = {**stats._asdict(), "tokens": tokens, "old_logp": old_logp, **rollout}
    _check_columns(advantages, mask, {**columns, "ref_logp": ref_logp})
    mask, dtype = mask.bool(), stats.logp.dtype
    if not shaped:
        del columns["is_mode"]
        advantages, _, marks = _shape(method, advantages.to(dtype), mask, columns, group_size)

    def valid(x: Tensor) -> Tensor:
        return torch.where(mask, x, 0.0).to(dtype)

    stats = TokenStats(
        valid(stats.logp), valid(stats.log_pmax), stats.is_mode | ~mask, valid(stats.entropy)
    )
    if entropy_max is None:
        entropy_max = entropy_maximum(method, stats.entropy, mask)
    ref_logp, marks, top_logp = (
        None if column is None else valid(column) for column in (ref_logp, marks, top_logp)
    )
    own = (stats, valid(old_logp), valid(advantages), row_mean(mask), method.options)
    return Batch(method, TokenInputs(*own, entropy_max, marks, top_logp), mask, ref_logp)


def shape_tokens(
    method: str | Method,
    *,
    advantages: Tensor,
    mask: Tensor,
    entropy: Tensor | None = None,
    old_entropy: Tensor | None = None,
    tokens: Tensor | None = None,
    group_size: int | None = None,
    log_pmax: Tensor | None = None,
    logp: Tensor | None = None,
    old_logp: Tensor | None = None,
    old_log_pmax: Tensor | None = None,
    **options: Any,
) -> Shaped:
    """Advantages and marks per token, `[B, T]`, from one advantage per sequence or per token.

    This is the only step that looks across sequences. Call it on the whole mini-batch; its result
    may be split into micro-batches in any way.

    Args:
        method: a row of `METHODS`.
        advantages: `[B]`, groups consecutive; or `[B, T]`, from a process reward for instance.
        mask: `[B, T]`, true at valid completion tokens.
        entropy, log_pmax, logp: `[B, T]` under the current policy, the log-probabilities of its
            mode and of the sampled token.
        old_entropy, old_log_pmax, old_logp: the same under the rollout policy.
        tokens: `[B, T]` sampled ids (gtpo, clip_cov).
        group_size: completions per prompt (gtpo, gtpo_entropy, score_baseline).
        **options: the method's options.
    """
    method = get_method(method, **options)
    columns = {"tokens": tokens, "entropy": entropy, "log_pmax": log_pmax, "logp": logp}
    columns |= {"old_entropy": old_entropy, "old_log_pmax": old_log_pmax, "old_logp": old_logp}
    _check_columns(advantages, mask, columns)
    return _shape(method, advantages, mask.bool(), columns, group_size)


def _shape(
    method: Method,
    advantages: Tensor,
    mask: Tensor,
    columns: dict[str, Tensor | None],
    group_size: int | None,
) -> Shaped:
    """`shape_tokens` of columns that have been checked."""
    for name in (*method.needs, *method.shaping.group_needs):
        if columns.get(name) is None:
            raise ACPOError(f"{name} is missing: method {method.name!r} cannot do without it")
    if not mask.numel():
        nothing = spread(advantages, mask)
        return Shaped(nothing, mask, nothing if method.shaping.marks else None)
    batch = sequences(method, advantages, mask, **columns)
    if method.shaping.group_needs:
        if group_size is None:
            raise ACPOError(f"group_size is missing: method {method.name!r} compares completions")
        if group_size < 1 or len(advantages) % group_size:
            raise ACPOError(
                f"group_size={group_size} does not divide the batch of {len(advantages)} sequences"
            )
        found = method.shaping.of_group(batch._replace(group_size=group_size))
        batch = batch._replace(group=found)
    return method.shape(batch, Reducer())


def sequences(
    method: Method,
    advantages: Tensor,
    mask: Tensor,
    *,
    group: Tensor | None = None,
    tokens: Tensor | None = None,
    **statistics: Tensor | None,
) -> Sequences:
    """A mini-batch as the method's shaping reads it: statistics constant under differentiation."""
    require_one_advantage(method, advantages, mask)
    detached: dict[str, Any] = {k: x if x is None else x.detach() for k, x in statistics.items()}
    return Sequences(advantages, mask, method.options, group=group, tokens=tokens, **detached)


def require_one_advantage(method: Method, advantages: Tensor, mask: Tensor) -> None:
    """Raise where a method with one ratio per sequence is given advantages that differ in one."""
    one = GATES[method.gate].one_advantage
    if one and advantages.dim() == 2 and bool((_spread_within(advantages, mask) > 1e-5).any()):
        raise ACPOError(
            f"advantages differ within a sequence: method {method.name!r} has one ratio per "
            "sequence and takes one advantage for it"
        )


def _spread_within(advantages: Tensor, mask: Tensor) -> Tensor:
    """How far the advantages of a sequence lie apart, relative to the largest."""
    low = advantages.masked_fill(~mask, torch.inf).amin(1)
    high = advantages.masked_fill(~mask, -torch.inf).amax(1)
    return torch.where(mask.any(1), (high - low) / high.abs().maximum(low.abs()), 0.0).nan_to_num()


def _check_columns(advantages: Tensor, mask: Tensor, columns: Mapping[str, Tensor | None]) -> None:
    """Shapes agree and every valid number is finite."""
    shape = mask.shape
    if len(shape) != 2:
        raise ACPOError(f"mask has shape {list(shape)}; it must be [B, T]")
    valid = mask.bool()
    for name, value in columns.items():
        if value is None:
            continue
        if value.shape != shape:
            raise ACPOError(
                f"{name} has shape {list(value.shape)} where mask has {list(shape)}; all per-token "
                "tensors must be [B, T] of the completion tokens"
            )
        bad = valid & ~torch.isfinite(value.detach())
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise ACPOError(
                f"{name}[{row}, {column}]={float(value[row, column])} at a valid token; mask it "
                "out or find where the policy produced it"
            )
    if advantages.shape not in (shape, shape[:1]):
        raise ACPOError(
            f"advantages has shape {list(advantages.shape)}; pass [B]=[{shape[0]}] (one per "
            f"sequence) or [B, T]={list(shape)} (from shape_tokens)"
        )
    bad = ~torch.isfinite(advantages) & (valid if advantages.dim() == 2 else valid.any(1))
    if bad.any():
        raise ACPOError(
            f"advantages has {int(bad.sum())} non-finite value(s); group_advantages gives 0 to "
            "completions without a verdict"
        )


def check_gradient_paths(method: Method, stats: TokenStats, top_logp: Tensor | None = None) -> None:
    """A row that differentiates a statistic must be given a differentiable one."""
    if not stats.logp.requires_grad:
        return
    needed = {
        "log_pmax": method.credit.differentiates_mode,
        "entropy": method.credit.differentiates_entropy,
    }
    if method.candidates and (top_logp is None or not top_logp.requires_grad):
        raise ACPOError(
            f"top_logp is missing or detached: method {method.name!r} differentiates the "
            f"{method.candidates} likeliest tokens; pass their mean log-probability, or use "
            "dense_loss or fused_policy_loss"
        )
    for name, needs in needed.items():
        if needs and not getattr(stats, name).requires_grad:
            raise ACPOError(
                f"stats.{name} is detached, but method {method.name!r} differentiates it; "
                "compute the statistics with that gradient enabled"
            )
