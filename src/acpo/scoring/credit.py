"""What a method makes of scored tokens: their advantages and credit multipliers."""

import numpy as np
import torch
from torch import Tensor

from acpo.objectives import Method, TokenStats
from acpo.objectives.batch import prepare_batch
from acpo.objectives.loss import evaluate_tokens


def token_credit(
    method: Method,
    *,
    stats: TokenStats,
    old_logp: Tensor,
    tokens: Tensor,
    lengths: np.ndarray,
    advantages: Tensor,
    group_size: int,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(credit, advantage, marks) of every token of a batch of completions.

    Quantiles and maxima of methods that look at other tokens are those of this batch. A completion
    with a statistic that is not finite has NaN, and counts for nobody else's.

    Statistics, log-probabilities under the rollout policy and ids are `[N]`, the completions one
    after another, of `[B]` lengths; advantages are `[B]`, groups of `group_size` consecutive.
    """
    width = int(lengths.max(initial=0))
    there = torch.arange(width)[None] < torch.from_numpy(lengths)[:, None]  # [B, T]

    def table(column: Tensor) -> Tensor:
        return torch.zeros(there.shape, dtype=column.dtype).masked_scatter_(there, column)

    known = (stats.logp + stats.log_pmax + stats.entropy + old_logp).isfinite()
    finite = (table(known) | ~there).all(1, keepdim=True)  # [B, 1]
    mask = there & finite
    stats = TokenStats(*(table(column).masked_fill(~finite, 0) for column in stats))

    batch = prepare_batch(
        method,
        stats=stats,
        old_logp=table(old_logp).masked_fill(~finite, 0),
        advantages=advantages,
        mask=mask,
        tokens=table(tokens),
        group_size=group_size,
        old_entropy=stats.entropy,
        old_log_pmax=stats.log_pmax,
    )
    _, credit = evaluate_tokens(method, **batch.policy)
    found = (credit.value, batch.advantages)
    of_token, advantage = (column.masked_fill(~finite, torch.nan)[there] for column in found)
    return of_token, advantage, None if batch.marks is None else batch.marks[there]
