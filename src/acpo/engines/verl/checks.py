"""Wrong combinations end here, when verl builds the actor's configuration, before any rollout."""

import difflib
import functools
import importlib
from collections.abc import Collection
from typing import Any

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import ActorConfig

from acpo.engines.verl.config import configured_row
from acpo.errors import ACPOError
from acpo.objectives import Method

AGGREGATION = {"sequence_mean": "seq-mean-token-mean", "token_mean": "token-mean"}
"""Our name for how tokens are weighed -> verl's `loss_agg_mode`."""

STRATEGIES = ("fsdp", "fsdp2", "megatron")
STOCK_CLIP = 0.2
"""verl's default of `clip_ratio_low` and `clip_ratio_high`."""


def check_actor(actor: Any) -> Method:
    """The row an actor asks for, if the actor can train it.

    Raises:
        ACPOError: names the key, its value and what to set instead.
    """
    row = configured_row(actor)
    where = f"policy_loss.loss_mode={row.name}"
    wanted = AGGREGATION[row.aggregation]
    if actor.loss_agg_mode != wanted:
        raise ACPOError(
            f"actor.loss_agg_mode={actor.loss_agg_mode} with {where}: {row.title} is defined with "
            f"actor_rollout_ref.actor.loss_agg_mode={wanted}"
        )
    if actor.use_fused_kernels:
        raise ACPOError(
            f"model.use_fused_kernels=True with {where}: fused kernels never show the logits, and "
            "the mode has to be read from them; set actor_rollout_ref.model.use_fused_kernels=False"
        )
    if actor.strategy not in STRATEGIES:
        raise ACPOError(
            f"actor.strategy={actor.strategy} with {where}: this engine is not extended; use one "
            f"of {', '.join(STRATEGIES)}"
        )
    _check_clipping(actor, row, where)
    if actor.strategy == "megatron" and row.needs_whole_batch:
        remedy = (
            "give the normaliser a number (+policy_loss.options.entropy_norm=11.93, log of the "
            "vocabulary, with policy_loss._target_=acpo.verl.ACPOPolicyLossConfig) or use fsdp2"
            if not (row.shaping.needs or row.shaping.group_needs)
            else "use fsdp2"
        )
        raise ACPOError(
            f"actor.strategy=megatron with {where}: the row looks at the whole mini-batch "
            f"first, which pipeline stages do not share; {remedy}"
        )
    return row


def _check_clipping(actor: Any, row: Method, where: str) -> None:
    """verl's clip range is not read, so it must not look as if it were."""
    for key, option in (("clip_ratio_low", "epsilon"), ("clip_ratio_high", "epsilon_high")):
        value, ours = actor.get(key), row.options.get(option)
        if value in (STOCK_CLIP, ours):
            continue
        remedy = (
            f"set policy_loss._target_=acpo.verl.ACPOPolicyLossConfig and "
            f"+policy_loss.options.{option}={value}"
            if ours is not None
            else "leave it out: the row does not clip there"
        )
        raise ACPOError(f"actor.{key}={value} with {where} has no effect; {remedy}")


def asks_for_row(mode: Any, rows: Collection[str]) -> bool:
    """Whether a loss mode is one of our rows.

    Raises:
        ACPOError: it is none, but was certainly meant to be.
    """
    if mode in rows:
        return True
    if str(mode) in rows:
        raise ACPOError(
            f"policy_loss.loss_mode={mode} is read as a number; quote it for the shell and for "
            f"hydra: policy_loss.loss_mode=\"'{mode}'\""
        )
    if mode in POLICY_LOSS_REGISTRY:
        return False
    near = difflib.get_close_matches(str(mode), rows, n=1, cutoff=0.7)
    if near:
        raise ACPOError(f"policy_loss.loss_mode={mode} is unknown; did you mean {near[0]}?")
    return False


def watch_actor_configs(rows: Collection[str]) -> None:
    """Have every actor configuration that names one of our rows checked, and its engine extended.

    A worker builds this configuration before its engine, and the driver validates it before it
    starts a worker, so this is the earliest common point. It is the one method of verl we wrap.
    """
    if getattr(ActorConfig.__post_init__, "checks_rows", False):
        return
    stock = ActorConfig.__post_init__

    @functools.wraps(stock)
    def post_init(self: Any) -> None:
        stock(self)
        if asks_for_row(self.policy_loss.get("loss_mode", None), rows):
            row = check_actor(self)
            # Engines take seconds to import; only those who train need them.
            engines = importlib.import_module("acpo.engines.verl.engines")
            engines.install(self.strategy, row)

    post_init.checks_rows = True  # type: ignore[attr-defined]
    ActorConfig.__post_init__ = post_init
