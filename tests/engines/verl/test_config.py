"""Recipes pass verl's own validation; wrong combinations end there, with the remedy."""

import subprocess
import sys
from pathlib import Path

import pytest
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

import acpo.verl
from acpo.engines.verl import versions
from acpo.errors import ACPOError
from acpo.objectives import METHODS
from engines.verl.recipes import SCRIPTS, arguments, configuration

ACTOR = "actor_rollout_ref.actor"
OURS = f"{ACTOR}.policy_loss._target_=acpo.verl.ACPOPolicyLossConfig"


def validated(overrides):
    config = configuration(overrides)
    validate_config(config, need_reference_policy(config), need_critic(config))
    return config


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_recipe_is_valid(tmp_path, script):
    config = validated(arguments(script, tmp_path))
    actor = config.actor_rollout_ref.actor
    method = METHODS[actor.policy_loss.loss_mode]
    assert script.endswith(f"-{method.name}.sh")
    updates = config.data.train_batch_size // actor.ppo_mini_batch_size
    assert (updates, actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n) == (8, 128)
    sequence_mean = actor.loss_agg_mode == "seq-mean-token-mean"
    assert sequence_mean == (method.aggregation == "sequence_mean")
    assert config.algorithm.norm_adv_by_std_in_grpo == (method.advantage_scale == "std")


def test_a_driver_without_accelerator_validates(tmp_path, monkeypatch):
    monkeypatch.delenv("VERL_ENGINE_DEVICE")
    validated(arguments("qwen3-8b-base-acpo.sh", tmp_path))


def test_the_last_arguments_win(tmp_path):
    config = validated(arguments(SCRIPTS[0], tmp_path, "trainer.total_epochs=7"))
    assert config.trainer.total_epochs == 7


WRONG = {
    "fused kernels": (
        ["actor_rollout_ref.model.use_fused_kernels=True"],
        r"use_fused_kernels=True with .*loss_mode=acpo.*set .*use_fused_kernels=False",
    ),
    "aggregation": (
        [f"{ACTOR}.loss_agg_mode=token-mean"],
        r"loss_agg_mode=token-mean.*ACPO.*loss_agg_mode=seq-mean-token-mean",
    ),
    "engine": ([f"{ACTOR}.strategy=torchtitan"], r"strategy=torchtitan.*fsdp, fsdp2, megatron"),
    "clip range": (
        [f"{ACTOR}.clip_ratio_high=0.28"],
        r"clip_ratio_high=0.28 with .*acpo has no effect; leave it out",
    ),
    "clip range of a clipped row": (
        [
            f"{ACTOR}.policy_loss.loss_mode=dapo",
            f"{ACTOR}.loss_agg_mode=token-mean",
            f"{ACTOR}.clip_ratio_high=0.3",
        ],
        r"no effect; set .*_target_=acpo.verl.ACPOPolicyLossConfig .*options.epsilon_high=0.3",
    ),
    "unknown variant": (
        [OURS, f"{ACTOR}.policy_loss.loss_mode=acpo_norouting"],
        r"method='acpo_norouting' is unknown; did you mean 'acpo_no_routing'",
    ),
    "unknown variant, stock section": (
        [f"{ACTOR}.policy_loss.loss_mode=acpo_norouting"],
        r"loss_mode=acpo_norouting is unknown; did you mean acpo_no_routing",
    ),
    "a row that looks like a number": (
        [f"{ACTOR}.policy_loss.loss_mode=8020"],
        r"loss_mode=8020 is read as a number; quote it",
    ),
    "unknown option": (
        [OURS, f"+{ACTOR}.policy_loss.options.ofset=2"],
        r"ofset=2 is not an option of method 'acpo'",
    ),
    "option of verl's": (
        [OURS, f"+{ACTOR}.policy_loss.options.tau_pos=2"],
        r"set actor_rollout_ref.actor.tau_pos instead",
    ),
    "bad temperature": ([f"{ACTOR}.tau_neg=-1"], r"tau_neg=-1.0 must be positive"),
    "Shannon on Megatron": (
        [
            f"{ACTOR}.policy_loss.loss_mode=shannon",
            "model_engine=megatron",
            f"{ACTOR}.strategy=megatron",
        ],
        r"strategy=megatron with .*shannon.*entropy_norm",
    ),
    "80/20 on Megatron": (
        [
            f"{ACTOR}.policy_loss.loss_mode='8020'",
            f"{ACTOR}.loss_agg_mode=token-mean",
            "model_engine=megatron",
            f"{ACTOR}.strategy=megatron",
        ],
        r"strategy=megatron with .*8020.*use fsdp2",
    ),
    "balanced branches on Megatron": (
        [
            f"{ACTOR}.policy_loss.loss_mode=acpo_balanced",
            "model_engine=megatron",
            f"{ACTOR}.strategy=megatron",
        ],
        r"strategy=megatron with .*acpo_balanced.*use fsdp2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_combinations_end_at_validation(tmp_path, case):
    overrides, message = WRONG[case]
    with pytest.raises(Exception, match=message) as error:
        validated([*arguments("qwen3-8b-base-acpo.sh", tmp_path), *overrides])
    chain = (error.value, error.value.__cause__)  # hydra wraps what a config class raises
    assert any(isinstance(link, ACPOError) for link in chain)


@pytest.mark.parametrize("found", ["0.8.0", "0.11.0", "0.7.1"])
def test_other_versions_of_verl_are_refused(monkeypatch, found):
    monkeypatch.setattr(versions, "version", lambda _: found)
    with pytest.raises(ACPOError, match=rf"verl {found} is not supported.*verl>=0.9,<0.11"):
        versions.check_version()


@pytest.mark.parametrize("found", ["0.9.0", "0.9.1", "0.10.0.dev3"])
def test_these_versions_are_accepted(monkeypatch, found):
    monkeypatch.setattr(versions, "version", lambda _: found)
    versions.check_version()


def test_the_manual_names_every_row():
    manual = (Path(__file__).parents[3] / "docs" / "verl.md").read_text()
    rows = manual.partition("## Rows")[2].partition("## Data")[0]
    costs = rows.partition("| rows | engine | cost |")[2]
    for name in acpo.verl.ROWS:
        assert f"`{name}`" in rows and f"`{name}`" in costs, name


def test_options_reach_the_row(tmp_path):
    from verl.utils.config import omega_conf_to_dataclass

    from acpo.engines.verl.config import configured_row

    more = [OURS, f"+{ACTOR}.policy_loss.options.mismatch_scale=auto", f"{ACTOR}.tau_neg=1.1"]
    config = configuration([*arguments("qwen3-8b-base-acpo.sh", tmp_path), *more])
    row = configured_row(omega_conf_to_dataclass(config.actor_rollout_ref.actor))
    assert (row.options["mismatch_scale"], row.options["tau_neg"]) == ("auto", 1.1)


FRESH = """
import sys, time
import verl
assert "acpo.verl" in sys.modules, "the entry point was not loaded"
assert "verl.workers.engine" not in sys.modules, "the entry point is heavy"
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_policy_loss_fn
assert get_policy_loss_fn("acpo").__module__ == "acpo.engines.verl.loss"
assert POLICY_LOSS_REGISTRY["sapo"].__module__ == "verl.trainer.ppo.core_algos"
import torch
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
one = torch.zeros(1, 1)
actor = FSDPActorConfig(
    rollout_n=1, ppo_micro_batch_size_per_gpu=1, strategy="fsdp2",
    loss_agg_mode="seq-mean-token-mean", policy_loss=PolicyLossConfig(loss_mode="acpo"),
)
from verl.workers.engine import EngineRegistry
assert EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__.startswith("ACPO")
try:
    get_policy_loss_fn("acpo")(one, one, one, one, config=actor)
except ValueError as error:
    assert "no mode margin" in str(error) and "external_lib=acpo.verl" in str(error), error
else:
    raise AssertionError("a loss without margin went through")
"""


def test_the_plugin_loads_in_a_fresh_interpreter():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
