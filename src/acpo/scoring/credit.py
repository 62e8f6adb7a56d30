"""What a method makes of scored tokens: their advantages and credit multipliers."""

import numpy as np
import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives import Method, TokenStats
from acpo.objectives.batch import prepare_batch
from acpo.objectives.loss import evaluate_tokens

MOST_CELLS = 2**27
"""Completions times tokens of the longest; each takes 200 to 350 bytes for a while."""


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
    there = torch.arange(_width(lengths))[None] < torch.from_numpy(lengths)[:, None]  # [B, T]

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
    _, credit = evaluate_tokens(method, batch.inputs)
    found, marks = (credit.value, batch.inputs.advantages), batch.inputs.marks
    of_token, advantage = (column.masked_fill(~finite, torch.nan)[there] for column in found)
    return of_token, advantage, None if marks is None else marks[there]


def _width(lengths: np.ndarray) -> int:
    """Tokens of the longest completion, to which all are padded."""
    longest = int(lengths.max(initial=0))
    if len(lengths) * longest > MOST_CELLS:
        raise ACPOError(
            f"{len(lengths)} completions of one step, padded to {longest} tokens, are more than "
            f"the {MOST_CELLS:,} places that fit into memory: look at fewer, or at shorter ones"
        )
    return longest
