"""Our rows as verl policy losses. The maths is `acpo.objectives`; this is the way in and out.

verl hands a policy loss the log-probabilities and nothing else of the policy. The engine
(`acpo.engines.verl.engines`) leaves the rest in `SCORED` for the time of the call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, agg_loss, register_policy_loss

from acpo.errors import ACPOError
from acpo.objectives import METHODS, Method, TokenStats, token_objective
from acpo.objectives.batch import require_one_advantage
from acpo.objectives.tokens import is_policy_mode

LOGGED = ("aligned", "delta", "saturated", "ratio")
"""Metrics over all valid tokens: verl averages over micro-batches, which may lack a branch."""


class MicroBatch(NamedTuple):
    """What the engine knows of a micro-batch beside log-probabilities, `[B, T]` each."""

    row: Method  # options set
    margin: Tensor  # z_y / T - z_max / T, 0 where the sampled token is the mode
    entropy: Tensor | None = None  # where verl computed it
    entropy_max: float | None = None  # H_max of the whole mini-batch (Shannon rows)
    marks: Tensor | None = None  # what the row's shaping left for its gate

    def stats(self, logp: Tensor) -> TokenStats:
        """Token statistics; log p_max = log p_y - margin needs no second softmax.

        Rounding may leave a probability above 1, which is cut off: a negative delta would turn the
        token's update around.
        """
        logp = logp.to(torch.promote_types(logp.dtype, self.margin.dtype)).clamp(max=0.0)
        base = logp if self.row.credit.differentiates_mode else logp.detach()
        log_pmax = (base - self.margin).clamp(max=0.0)
        tolerance = float(self.row.options["align_tol"])
        is_mode = is_policy_mode(logp.detach(), log_pmax.detach(), tolerance)
        entropy = torch.zeros_like(logp) if self.entropy is None else self.entropy.to(logp.dtype)
        return TokenStats(logp, torch.where(is_mode, logp, log_pmax), is_mode, entropy)


SCORED: ContextVar[MicroBatch | None] = ContextVar("acpo_scored", default=None)


@contextmanager
def scored(micro_batch: MicroBatch) -> Iterator[None]:
    """Make a micro-batch's statistics known to the policy loss."""
    token = SCORED.set(micro_batch)
    try:
        yield
    finally:
        SCORED.reset(token)


def policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of any of our rows, in the form verl calls it."""
    batch = SCORED.get()
    if batch is None:
        mode = config.policy_loss.loss_mode if config is not None else "acpo"
        raise ACPOError(
            f"policy_loss.loss_mode={mode}: the engine left no mode margin. Set "
            "actor_rollout_ref.model.external_lib=acpo.verl, so that the engine is extended before "
            "it is built"
        )
    require_one_advantage(batch.row, advantages, response_mask.bool())
    stats = batch.stats(log_prob)
    sound = torch.stack([x.isfinite() for x in (*stats, old_log_prob, advantages)]).all(0)
    objective = token_objective(
        batch.row,
        stats=stats,
        old_logp=old_log_prob,
        advantages=advantages,
        mask=response_mask * sound,
        entropy_max=batch.entropy_max,
        marks=batch.marks,
    )
    # A gradient that is not finite, which verl's own step skips, but for Megatron's.
    broken = response_mask.bool() & ~sound
    if getattr(config, "strategy", "") == "megatron" and broken.any():
        raise ACPOError(
            f"{int(broken.sum())} tokens have log-probabilities or advantages that are not finite: "
            "the policy diverged, or the rollout engine gave -inf; lower the learning rate"
        )
    value = objective.value + torch.where(broken, log_prob, 0.0) * torch.where(broken, torch.nan, 1)
    if rollout_is_weights is not None:
        value = value * rollout_is_weights
    loss = agg_loss(-value, response_mask, loss_agg_mode, **config.global_batch_info)
    log_ratio = torch.where(response_mask.bool(), (old_log_prob - log_prob).detach(), 0.0)
    metrics = {f"actor/acpo/{name}": objective.metrics[name] for name in LOGGED}
    metrics["actor/ppo_kl"] = log_ratio.sum() / response_mask.sum()
    return loss, {name: float(value.nan_to_num(0.0)) for name, value in metrics.items()}


def register_rows() -> tuple[str, ...]:
    """Register every row that verl has no loss of that name for; their names."""
    for name in METHODS:
        if name not in POLICY_LOSS_REGISTRY:
            register_policy_loss(name)(policy_loss)
    return tuple(name for name in METHODS if POLICY_LOSS_REGISTRY[name] is policy_loss)
