"""Wrong combinations end here, when verl validates a run or builds an actor, before any rollout."""

import difflib
import functools
import importlib
import warnings
from collections.abc import Callable, Collection, Iterator
from importlib.util import find_spec
from typing import Any

from omegaconf import OmegaConf
from verl.trainer.ppo import utils as verl_utils
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import config as verl_config
from verl.workers.config import ActorConfig

from acpo.engines.verl.config import configured_row, read_options
from acpo.errors import ACPOError, ACPOWarning
from acpo.objectives import METHODS, Method

AGGREGATION = {
    "sequence_mean": "seq-mean-token-mean",
    "token_mean": "token-mean",
    "fixed_length": "seq-mean-token-sum-norm",
}
"""Our name for how tokens are weighed -> verl's `loss_agg_mode`."""

WEIGHS = {
    "token-mean": "every token counts the same, so that long responses count more",
    "token-sum": "tokens are added up, so that the step grows with their number",
    "seq-mean-token-mean": "every response counts the same, so that tokens of long ones count less",
    "seq-mean-token-sum": "a response counts by its length, and the step grows with it",
    "seq-mean-token-sum-norm": "a response counts by its length over a constant",
}
"""verl's ways to weigh tokens, in words."""

WHOLE_VOCABULARY: dict[str, tuple[Any, ...]] = {
    "top_p": (1.0,),
    "top_k": (-1, 0),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "do_sample": (True,),
}
"""Options of a rollout, and the values at which tokens are draws of softmax(logits / temperature).
"""

STRATEGIES = ("fsdp", "fsdp2", "megatron")
CLIPPING = {
    "clip_ratio": ("epsilon", 0.2),
    "clip_ratio_low": ("epsilon", 0.2),
    "clip_ratio_high": ("epsilon_high", 0.2),
    "clip_ratio_c": ("delta", 3.0),
}
"""How verl's actor clips -> what a row calls it, and verl's default."""


def check_actor(actor: Any) -> Method:
    """The row an actor asks for, if the actor can train it."""
    row = configured_row(actor)
    where = f"policy_loss.loss_mode={row.name}"
    wanted, found = AGGREGATION[row.aggregation], actor.loss_agg_mode
    if found != wanted:
        warnings.warn(
            f"actor.loss_agg_mode={found} with {where}: {WEIGHS.get(found, 'unknown here')}; "
            f"{row.title} is defined with actor_rollout_ref.actor.loss_agg_mode={wanted}: "
            f"{WEIGHS[wanted]}",
            ACPOWarning,
            stacklevel=2,
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
    _check_constants(actor, row, where)
    if actor.strategy == "megatron" and row.needs_whole_batch:
        _check_shared(actor.megatron, row, where)
    return row


def _check_shared(megatron: Any, row: Method, where: str) -> None:
    """A row that looks at the whole mini-batch first has to see it on every rank."""
    remedy = "use fsdp2"
    if not row.shapes:
        remedy = (
            "give the normaliser a number (+policy_loss.options.entropy_norm=11.93, log of the "
            "vocabulary, with policy_loss._target_=acpo.verl.ACPOPolicyLossConfig)"
        )
    for key, alone in (("pipeline_model_parallel_size", 1), ("dynamic_context_parallel", False)):
        if megatron.get(key, alone) != alone:
            raise ACPOError(
                f"actor.megatron.{key}={megatron.get(key)} with {where}: the row looks at the "
                f"whole mini-batch first, which ranks do not share; set it to {alone}, or {remedy}"
            )


def _check_clipping(actor: Any, row: Method, where: str) -> None:
    """verl's clip range is not read, so it must not look as if it were."""
    for key, (option, stock) in CLIPPING.items():
        value = actor.get(key)
        if value in (None, stock, row.options.get(option)):
            continue
        remedy = (
            f"set policy_loss._target_=acpo.verl.ACPOPolicyLossConfig and "
            f"+policy_loss.options.{option}={value}"
            if option in row.options
            else "leave it out: no option of the row is that"
        )
        raise ACPOError(f"actor.{key}={value} with {where} has no effect; {remedy}")


def _check_constants(actor: Any, row: Method, where: str) -> None:
    """What the TRL trainer measures or knows, and verl has to be told."""
    constant = AGGREGATION["fixed_length"]
    if row.aggregation == "fixed_length" and actor.loss_agg_mode == constant:
        length = row.options.get("max_length")
        if actor.loss_scale_factor is None or length not in (None, actor.loss_scale_factor):
            raise ACPOError(
                f"actor.loss_scale_factor={actor.loss_scale_factor} with {where}: the row divides "
                "by a constant, and verl without one by the longest response of each micro-batch; "
                "set actor_rollout_ref.actor.loss_scale_factor=${data.max_response_length}"
            )
    for name in row.shaping.measured:
        if row.options.get(name) == METHODS[row.name].options[name]:
            warnings.warn(
                f"{where}: {name}={row.options.get(name)} is not measured here; give the starting "
                "policy's (actor/entropy of a first step), with "
                "policy_loss._target_=acpo.verl.ACPOPolicyLossConfig and "
                f"+policy_loss.options.{name}=VALUE",
                ACPOWarning,
                stacklevel=3,
            )


def asks_for_row(mode: Any, rows: Collection[str]) -> bool:
    """Whether a loss mode is one of our rows; raises for what was certainly meant to be one."""
    if mode in rows:
        return True
    if str(mode) in rows:
        raise ACPOError(
            f"policy_loss.loss_mode={mode} is read as a number; quote it for the shell and for "
            f"hydra: policy_loss.loss_mode=\"'{mode}'\""
        )
    if mode in POLICY_LOSS_REGISTRY:
        return False
    near = difflib.get_close_matches(str(mode).lower(), POLICY_LOSS_REGISTRY, n=1, cutoff=0.7)
    if near and near[0] in rows:
        raise ACPOError(f"policy_loss.loss_mode={mode} is unknown; did you mean {near[0]}?")
    return False


def refuse_idle_options(policy_loss: Any) -> None:
    """Raise for options of a row beside a loss that is verl's own, which reads none of them."""
    options = read_options(policy_loss)
    if options:
        raise ACPOError(
            f"policy_loss.options={options} has no effect: policy_loss.loss_mode="
            f"{policy_loss.loss_mode} is verl's own; set what verl calls them (docs/verl.md#rows)"
        )


def check_run(config: Any, rows: Collection[str]) -> None:
    """Raise unless the sections of verl's configuration make the row that one of them names."""
    reward = OmegaConf.select(config, "reward.custom_reward_function.path")
    if reward == "pkg://acpo.verl" and find_spec("math_verify") is None:
        raise ACPOError(f"{reward} judges by math-verify: not installed; pip install math-verify")
    mode = config.actor_rollout_ref.actor.policy_loss.get("loss_mode", None)
    row = METHODS[mode] if asks_for_row(mode, rows) else None
    if row is None:
        library = config.actor_rollout_ref.model.get("external_lib", None)
        if mode not in POLICY_LOSS_REGISTRY and library in (None, "acpo.verl"):
            known = ", ".join(sorted(POLICY_LOSS_REGISTRY))
            raise ACPOError(f"policy_loss.loss_mode={mode} is unknown; use one of {known}")
        refuse_idle_options(config.actor_rollout_ref.actor.policy_loss)
    for wrong, key, why in _misfits(config, row):
        if wrong:
            value = OmegaConf.select(config, key)
            raise ACPOError(f"{key}={value} with policy_loss.loss_mode={mode}: {why}")


def _misfits(config: Any, row: Method | None) -> Iterator[tuple[bool, str, str]]:
    """Whether a key is set to what the row cannot work with, the key, and why with the remedy.

    Beside a loss of verl's own (None) our advantages are looked at alone.
    """
    estimator = config.algorithm.adv_estimator
    yield (
        estimator == "acpo" and config.actor_rollout_ref.rollout.n < 2,
        "actor_rollout_ref.rollout.n",
        "a response is compared with others to its prompt, and alone teaches nothing; set "
        "actor_rollout_ref.rollout.n=8",
    )
    if row is None:
        return
    yield (
        estimator == "gae" and config.critic.enable is None,
        "algorithm.adv_estimator",
        "verl would train a critic beside the policy; set algorithm.adv_estimator=acpo (or "
        "critic.enable=True, if a critic is meant)",
    )
    yield (
        estimator == "grpo_vectorized" and row.advantage_scale != "std",
        "algorithm.adv_estimator",
        f"it always divides by the deviation, which {row.title} does not; set "
        "algorithm.adv_estimator=acpo",
    )
    yield (
        estimator in ("acpo", "grpo", "grpo_passk")
        and row.advantage_scale != "std"
        and config.algorithm.get("norm_adv_by_std_in_grpo", True),
        "algorithm.norm_adv_by_std_in_grpo",
        f"{row.title} does not divide by the deviation; set "
        "algorithm.norm_adv_by_std_in_grpo=False",
    )
    if row.shaping.group_needs:
        yield from _torn_groups(config)
    yield (
        "old_log_pmax" in row.shaping.group_needs,
        "actor_rollout_ref.actor.policy_loss.loss_mode",
        "the row reads the rollout policy's mode, which verl's pass does not keep; train it with "
        "the TRL engine, or use score_normalised",
    )
    yield (
        bool(row.candidates),
        "actor_rollout_ref.actor.policy_loss.loss_mode",
        "the row moves the likeliest tokens, and verl's engines give a loss one number per token, "
        "on Megatron each from a part of the vocabulary; train it with the TRL engine",
    )
    yield from _cut_draws(config)
    yield from _bypassed(config, row)


def _torn_groups(config: Any) -> Iterator[tuple[bool, str, str]]:
    """What leaves a row that compares whole groups, token by token, without some of them."""
    for key in ("trainer.use_v1", "trainer.balance_batch"):
        yield (
            bool(OmegaConf.select(config, key)),
            key,
            "the row compares all responses to a prompt, and verl would spread them over "
            "mini-batches; set trainer.use_v1=False trainer.balance_batch=False",
        )
    shuffle = "actor_rollout_ref.actor.shuffle"
    yield (
        bool(OmegaConf.select(config, shuffle)),
        shuffle,
        "the row compares all responses to a prompt, which this would spread over mini-batches; "
        f"set {shuffle}=False",
    )
    rejection = "algorithm.rollout_correction.rollout_rs"
    yield (
        "token_" in str(OmegaConf.select(config, rejection)),
        rejection,
        "the row compares tokens at the same position of several responses, and tokens that are "
        "rejected one by one leave none; reject sequences (seq_mean_k3)",
    )


def _bypassed(config: Any, row: Method) -> Iterator[tuple[bool, str, str]]:
    """What is not made where the rollout's log-probabilities stand for the trainer's, likewise."""
    section = "algorithm.rollout_correction"
    bypass = f"{section}.bypass_mode"
    if not OmegaConf.select(config, bypass):
        return
    yield (
        "old_entropy" in row.shaping.group_needs,
        bypass,
        f"the row needs the entropies of the pass that is left out; set {bypass}=False",
    )
    for name, nothing in (("rollout_is", None), ("rollout_rs", None), ("loss_type", "ppo_clip")):
        yield (
            OmegaConf.select(config, f"{section}.{name}") not in (nothing, None),
            f"{section}.{name}",
            f"with bypass_mode only a loss of verl's own reads it; set {bypass}=False, or leave "
            f"{name} out",
        )


def _cut_draws(config: Any) -> Iterator[tuple[bool, str, str]]:
    """Rollouts whose tokens are no draws of the policy, likewise."""
    for name, whole in WHOLE_VOCABULARY.items():
        key = f"actor_rollout_ref.rollout.{name}"
        yield (
            OmegaConf.select(config, key) not in (None, *whole),
            key,
            "drawing from part of the vocabulary, or from other probabilities than the model's, "
            "biases every ratio, and the mode and delta are no longer the sampler's; set "
            f"{key}={whole[0]}",
        )


def watch_configurations(rows: Collection[str]) -> None:
    """Have every run that names one of our rows checked, and its actor's engine extended.

    A worker builds an actor's configuration before its engine; the driver validates the whole
    before it starts a worker, or at least asks whether it needs a critic. These are what of verl we
    wrap.
    """

    def checked_actor(stock: Any, actor: Any) -> None:
        stock(actor)
        if not asks_for_row(actor.policy_loss.get("loss_mode", None), rows):
            refuse_idle_options(actor.policy_loss)
        else:
            row = check_actor(actor)
            # Engines take seconds to import; only those who train need them.
            engines = importlib.import_module("acpo.engines.verl.engines")
            engines.install(actor.strategy, row)

    def checked_run(stock: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        check_run(config, rows)
        return stock(config, *args, **kwargs)

    _wrap(ActorConfig, "__post_init__", checked_actor)
    _wrap(verl_config, "validate_config", checked_run)
    _wrap(verl_utils, "need_critic", checked_run)  # of trainers that validate nothing


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have a callable of verl's go through `around(stock, ...)`, once."""
    stock = getattr(owner, name)
    if hasattr(stock, "checks_rows"):
        return

    @functools.wraps(stock)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(stock, *args, **kwargs)

    wrapped.checks_rows = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
