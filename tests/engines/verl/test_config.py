"""Recipes pass verl's own validation; wrong combinations end there, with the remedy."""

import json
import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
from hydra.errors import InstantiationException
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

import acpo.verl
from acpo.engines.verl import checks, internals, versions
from acpo.engines.verl.checks import AGGREGATION, WEIGHS
from acpo.engines.verl.internals import check_internals
from acpo.errors import ACPOError, ACPOWarning
from acpo.objectives import METHODS
from engines.verl.launch import ENVIRONMENT
from engines.verl.recipes import FOLDER, ROWS, SCRIPTS, arguments, configuration, manual

MANUAL = Path(__file__).parents[3] / "docs" / "verl.md"
ACTOR = "actor_rollout_ref.actor"
OURS = f"{ACTOR}.policy_loss._target_=acpo.verl.ACPOPolicyLossConfig"


def validated(overrides):
    config = configuration(overrides)
    validate_config(config, need_reference_policy(config), need_critic(config))
    return config


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_recipe_is_valid_with_every_row(tmp_path, script, row):
    says = pytest.warns(ACPOWarning, match="initial_entropy=0.0 is not measured here")
    with says if row == "gtpo" else nullcontext():
        config = validated(arguments(script, tmp_path, METHOD=row))
    assert config.trainer.default_local_dir.endswith(f"-{row}"), "rows share no checkpoints"
    actor = config.actor_rollout_ref.actor
    method = METHODS[actor.policy_loss.loss_mode]
    assert method.name == row
    updates = config.data.train_batch_size // actor.ppo_mini_batch_size
    assert (updates, actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n) == (8, 128)
    sequence_mean = actor.loss_agg_mode == "seq-mean-token-mean"
    assert sequence_mean == (method.aggregation == "sequence_mean")
    assert config.algorithm.norm_adv_by_std_in_grpo == (method.advantage_scale == "std")


def test_the_manuals_command_is_valid_and_needs_every_line():
    command = manual()
    config = validated(command)
    assert not need_critic(config)
    for start in ("adv_estimator=", "rollout.n=", "use_dynamic_bsz="):
        with pytest.raises((ACPOError, InstantiationException)):
            validated([word for word in command if start not in word])
    with pytest.warns(ACPOWarning, match="loss_agg_mode=token-mean"):
        validated([word for word in command if "loss_agg_mode=" not in word])


def test_a_driver_without_accelerator_validates(tmp_path, monkeypatch):
    monkeypatch.delenv("VERL_ENGINE_DEVICE")
    validated(arguments("qwen3-8b-base.sh", tmp_path))


def test_the_last_arguments_win(tmp_path):
    config = validated(arguments(SCRIPTS[0], tmp_path, "trainer.total_epochs=7"))
    assert config.trainer.total_epochs == 7


MEGATRON = ["model_engine=megatron", f"{ACTOR}.strategy=megatron"]
WHOLE_GROUPS = ["trainer.use_v1=False", "trainer.balance_batch=False"]
UNSCALED = "algorithm.norm_adv_by_std_in_grpo=False"

WRONG = {
    "fused kernels": (
        ["actor_rollout_ref.model.use_fused_kernels=True"],
        r"use_fused_kernels=True with .*loss_mode=acpo.*set .*use_fused_kernels=False",
    ),
    "engine": ([f"{ACTOR}.strategy=torchtitan"], r"strategy=torchtitan.*fsdp, fsdp2, megatron"),
    "clip range": (
        [f"{ACTOR}.clip_ratio_high=0.28"],
        r"clip_ratio_high=0.28 with .*acpo has no effect; leave it out",
    ),
    "clip range of both sides": (
        [
            f"{ACTOR}.policy_loss.loss_mode=dapo",
            f"{ACTOR}.loss_agg_mode=token-mean",
            f"{ACTOR}.clip_ratio=0.1",
        ],
        r"clip_ratio=0.1 with .*dapo has no effect; set .*options.epsilon=0.1",
    ),
    "dual clip": (
        [f"{ACTOR}.clip_ratio_c=10.0"],
        r"clip_ratio_c=10.0 with .*acpo has no effect; leave it out",
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
        r"loss_mode=acpo_norouting is unknown; did you mean acpo_no_routing",
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
            *MEGATRON,
            f"{ACTOR}.megatron.pipeline_model_parallel_size=2",
        ],
        r"pipeline_model_parallel_size=2 with .*shannon.*set it to 1, or .*entropy_norm",
    ),
    "80/20 on Megatron": (
        [
            f"{ACTOR}.policy_loss.loss_mode='8020'",
            f"{ACTOR}.loss_agg_mode=token-mean",
            *MEGATRON,
            f"{ACTOR}.megatron.pipeline_model_parallel_size=2",
        ],
        r"pipeline_model_parallel_size=2 with .*8020.*set it to 1, or use fsdp2",
    ),
    "balanced branches on Megatron": (
        [
            f"{ACTOR}.policy_loss.loss_mode=acpo_balanced",
            *MEGATRON,
            f"{ACTOR}.megatron.pipeline_model_parallel_size=2",
        ],
        r"pipeline_model_parallel_size=2 with .*acpo_balanced.*set it to 1, or use fsdp2",
    ),
    "rows in capitals": (
        [f"{ACTOR}.policy_loss.loss_mode=ACPO"],
        r"loss_mode=ACPO is unknown; did you mean acpo",
    ),
    "a made-up name": (
        [f"{ACTOR}.policy_loss.loss_mode=frobnicate"],
        r"loss_mode=frobnicate is unknown; use one of 8020, .*acpo.*vanilla",
    ),
    "a made-up name, without external_lib": (
        [f"{ACTOR}.policy_loss.loss_mode=frobnicate", "actor_rollout_ref.model.external_lib=null"],
        r"loss_mode=frobnicate is unknown",
    ),
    "a critic nobody asked for": (
        ["algorithm.adv_estimator=gae"],
        r"adv_estimator=gae with .*acpo: .*critic.*set algorithm.adv_estimator=acpo",
    ),
    "options beside a loss of verl's": (
        [OURS, f"{ACTOR}.policy_loss.loss_mode=gspo", f"+{ACTOR}.policy_loss.options.epsilon=3e-4"],
        r"policy_loss.options=\{'epsilon': 0.0003\} has no effect: .*loss_mode=gspo is verl's own",
    ),
    "TRL's name of an option of verl's": (
        [OURS, f"+{ACTOR}.policy_loss.options.sapo_temperature_neg=2"],
        r"set actor_rollout_ref.actor.tau_neg instead",
    ),
    "groups of one under a loss of verl's": (
        [f"{ACTOR}.policy_loss.loss_mode=sapo", "actor_rollout_ref.rollout.n=1"],
        r"rollout.n=1 with .*sapo: .*set .*rollout.n=8",
    ),
    "advantages that always divide": (
        [
            f"{ACTOR}.policy_loss.loss_mode=gtpo",
            *WHOLE_GROUPS,
            UNSCALED,
            "algorithm.adv_estimator=grpo_vectorized",
        ],
        r"adv_estimator=grpo_vectorized with .*gtpo: .*set algorithm.adv_estimator=acpo",
    ),
    "pass@k advantages that divide": (
        [
            f"{ACTOR}.policy_loss.loss_mode=gtpo",
            *WHOLE_GROUPS,
            "algorithm.adv_estimator=grpo_passk",
        ],
        r"norm_adv_by_std_in_grpo=True with .*gtpo: ",
    ),
    "GTPO on shuffled mini-batches": (
        [
            f"{ACTOR}.policy_loss.loss_mode=gtpo",
            *WHOLE_GROUPS,
            UNSCALED,
            f"{ACTOR}.shuffle=True",
        ],
        r"actor.shuffle=True with .*gtpo: .*set .*actor.shuffle=False",
    ),
    "GTPO with rejected tokens": (
        [
            f"{ACTOR}.policy_loss.loss_mode=gtpo",
            *WHOLE_GROUPS,
            UNSCALED,
            "algorithm.rollout_correction.rollout_rs=token_k1",
        ],
        r"rollout_rs=token_k1 with .*gtpo: .*reject sequences",
    ),
    **{
        f"{name} that a bypass leaves out": (
            [f"algorithm.rollout_correction.{setting}" for setting in (given, "bypass_mode=True")],
            rf"{given} with .*acpo: with bypass_mode only .*set .*bypass_mode=False",
        )
        for name, given in (
            ("weights", "rollout_is=token"),
            ("rejection", "rollout_rs=seq_mean_k3"),
            ("a loss", "loss_type=reinforce"),
        )
    },
    "groups of one": (["actor_rollout_ref.rollout.n=1"], r"rollout.n=1 with .*set .*rollout.n=8"),
    "GTPO with scaled advantages": (
        [f"{ACTOR}.policy_loss.loss_mode=gtpo", *WHOLE_GROUPS],
        r"norm_adv_by_std_in_grpo=True with .*gtpo: .*set .*norm_adv_by_std_in_grpo=False",
    ),
    "GTPO on the v1 trainer": (
        [f"{ACTOR}.policy_loss.loss_mode=gtpo", UNSCALED],
        r"trainer.use_v1=True with .*gtpo: .*set trainer.use_v1=False trainer.balance_batch=False",
    ),
    "GTPO on balanced batches": (
        [f"{ACTOR}.policy_loss.loss_mode=gtpo", UNSCALED, "trainer.use_v1=False"],
        r"trainer.balance_batch=True with .*gtpo: .*trainer.balance_batch=False",
    ),
    "Dr. GRPO without its constant": (
        [
            f"{ACTOR}.policy_loss.loss_mode=dr_grpo",
            f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",
            UNSCALED,
        ],
        r"loss_scale_factor=None with .*dr_grpo: .*loss_scale_factor=\$.data.max_response_length",
    ),
    "a row of the likeliest tokens": (
        [f"{ACTOR}.policy_loss.loss_mode=simko", f"{ACTOR}.loss_agg_mode=token-mean"],
        r"loss_mode=simko with .*: the row moves the likeliest tokens.*TRL engine",
    ),
    **{
        f"draws with {setting}": (
            [f"actor_rollout_ref.rollout.{setting}"],
            rf"rollout.{setting} with .*acpo: .*biases every ratio.*set .*rollout.{remedy}$",
        )
        for setting, remedy in (
            ("top_p=0.95", "top_p=1.0"),
            ("top_k=50", "top_k=-1"),
            ("do_sample=False", "do_sample=True"),
        )
    },
    **{
        f"draws with {setting}": (
            [f"+actor_rollout_ref.rollout.{setting}"],
            rf"rollout.{setting} with .*set .*rollout.{remedy}$",
        )
        for setting, remedy in (
            ("min_p=0.1", "min_p=0.0"),
            ("repetition_penalty=1.1", "repetition_penalty=1.0"),
        )
    },
    "token entropies without the pass that has them": (
        [
            f"{ACTOR}.policy_loss.loss_mode=gtpo_entropy",
            f"{ACTOR}.loss_agg_mode=token-mean",
            *WHOLE_GROUPS,
            "algorithm.rollout_correction.bypass_mode=True",
        ],
        r"bypass_mode=True with .*gtpo_entropy: .*bypass_mode=False",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_combinations_end_at_validation(tmp_path, case):
    overrides, message = WRONG[case]
    with pytest.raises(Exception, match=message) as error:
        validated([*arguments("qwen3-8b-base.sh", tmp_path), *overrides])
    chain = (error.value, error.value.__cause__)  # hydra wraps what a config class raises
    assert any(isinstance(link, ACPOError) for link in chain)


def test_another_aggregation_is_a_warning_that_names_the_difference(tmp_path):
    overrides = [f"{ACTOR}.loss_agg_mode=token-mean"]
    with pytest.warns(
        ACPOWarning, match=r"long responses count more; ACPO is defined with .*seq-mean-token-mean"
    ):
        validated([*arguments("qwen3-8b-base.sh", tmp_path), *overrides])
    assert set(WEIGHS) >= set(AGGREGATION.values())


def test_dr_grpo_with_its_constant(tmp_path):
    overrides = [f"{ACTOR}.policy_loss.loss_mode=dr_grpo", UNSCALED]
    overrides += [f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"]
    overrides += [f"{ACTOR}.loss_scale_factor=${{data.max_response_length}}"]
    validated([*arguments("qwen3-8b-base.sh", tmp_path), *overrides])


def test_what_verl_does_not_measure_is_said(tmp_path):
    more = [OURS, f"+{ACTOR}.policy_loss.options.initial_entropy=1.2"]
    script = arguments("qwen3-8b-base.sh", tmp_path, METHOD="gtpo")
    with pytest.warns(ACPOWarning, match=r"gtpo: initial_entropy=0.0 is not measured here"):
        validated(script)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ACPOWarning)
        validated([*script, *more])


@pytest.mark.parametrize("method", ["shannon", "'8020'", "acpo_balanced"])
def test_one_pipeline_stage_sees_the_whole_mini_batch(tmp_path, method):
    row = METHODS[method.strip("'")]
    overrides = [f"{ACTOR}.policy_loss.loss_mode={method}", *MEGATRON]
    overrides += [f"{ACTOR}.loss_agg_mode={AGGREGATION[row.aggregation]}"]
    validated([*arguments("qwen3-8b-base.sh", tmp_path), *overrides])


def test_a_critic_that_was_asked_for(tmp_path):
    overrides = ["algorithm.adv_estimator=gae", "critic.enable=True"]
    config = configuration([*arguments("qwen3-8b-base.sh", tmp_path), *overrides])
    checks.check_run(config, acpo.verl.ROWS)


def test_a_trainer_that_validates_nothing_is_checked_where_it_asks_for_a_critic(tmp_path):
    from verl.trainer.ppo import utils

    config = configuration([*arguments("qwen3-8b-base.sh", tmp_path)])
    assert utils.need_critic(config) is False
    config.actor_rollout_ref.rollout.n = 1
    with pytest.raises(ACPOError, match=r"rollout.n=1 with .*acpo"):
        utils.need_critic(config)


def test_a_clip_range_left_to_another_key_is_none(tmp_path):
    more = [f"{ACTOR}.policy_loss.loss_mode=dapo", f"{ACTOR}.loss_agg_mode=token-mean"]
    more += [f"{ACTOR}.clip_ratio_low=null"]
    validated([*arguments("qwen3-8b-base.sh", tmp_path), *more])


def test_losses_of_other_libraries_are_not_ours_to_judge(tmp_path):
    overrides = ["actor_rollout_ref.model.external_lib=json"]
    overrides += [f"{ACTOR}.policy_loss.loss_mode=theirs"]
    validated([*arguments("qwen3-8b-base.sh", tmp_path), *overrides])


def test_rewards_without_their_judge(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    with pytest.raises(ACPOError, match="pip install math-verify"):
        validated(arguments("qwen3-8b-base.sh", tmp_path))


def changed(**methods):
    """verl's FSDP engine with some methods as another version might have them."""
    return type("Engine", (FSDPEngineWithLMHead,), methods)


def test_names_that_the_plugin_leans_on(monkeypatch):
    stock = changed()
    check_internals(stock, internals.FSDP)
    with pytest.raises(ACPOError, match=r"verl .* has no loss_function of Engine.forward_backward"):
        check_internals(changed(forward_backward_batch=lambda self, data: 0), internals.BATCH)
    with pytest.raises(ACPOError, match=r"has no Engine._gather_and_unpad_packed"):
        check_internals(changed(_gather_and_unpad_packed=None), internals.FSDP)
    with pytest.raises(ACPOError, match=r'has no "no_such_key" of Engine.prepare_model_inputs'):
        check_internals(stock, {"prepare_model_inputs": ('"no_such_key"',)})
    monkeypatch.setattr(internals, "LOSS", "partial(other_loss")
    with pytest.raises(ACPOError, match=r"partial\(other_loss.* of verl.workers.engine_workers"):
        check_internals(stock, {})


def test_the_manual_lists_the_names_that_the_plugin_leans_on():
    manual = MANUAL.read_text()
    for name, words in (internals.FSDP | internals.MEGATRON).items():
        assert f"`{name}`" in manual, name
        for word in words:
            assert f"`{word.strip(chr(34))}`" in manual, (name, word)
    assert f"`{internals.LOSS}...)`" in manual


BROKEN = """
import json, sys
{breakage}
import verl
from verl.utils.config import validate_config
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from engines.verl.recipes import configuration
for overrides in json.loads(sys.argv[1]):
    config = configuration(overrides)
    validate_config(config, need_reference_policy(config), need_critic(config))
    print("valid", flush=True)
"""
BREAKAGES = {
    "another verl": (
        "import importlib.metadata as m; old = m.version; "
        "m.version = lambda name: '0.12.0' if name == 'verl' else old(name)",
        "verl 0.12.0 is not supported",
    ),
    "a missing dependency": ("sys.modules['acpo.verify'] = None", "acpo.verify"),
}


@pytest.mark.parametrize(
    ("breakage", "library"), [("another verl", "null"), ("a missing dependency", "acpo.verl")]
)
def test_a_plugin_that_cannot_load_stops_the_run_and_leaves_others_alone(
    tmp_path, breakage, library
):
    line, reason = BREAKAGES[breakage]
    others = arguments("qwen3-8b-base.sh", tmp_path, METHOD="sapo")
    others += ["actor_rollout_ref.model.external_lib=null", "algorithm.adv_estimator=grpo"]
    ours = arguments("qwen3-8b-base.sh", tmp_path)
    ours += [f"actor_rollout_ref.model.external_lib={library}"]
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(breakage=line), json.dumps([others, ours])],
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("valid\n") == 1, "the first alone"
    assert done.returncode != 0
    assert "acpo.verl, which this run needs, cannot be loaded" in done.stderr
    assert reason in done.stderr


@pytest.mark.parametrize("command", ["train", "doctor", "compare"])
def test_commands_that_need_trl_say_so_in_one_line(tmp_path, command):
    done = subprocess.run(
        [sys.executable, "-m", "acpo", command, str(FOLDER.parent / "quickstart.yaml")],
        env=os.environ | ENVIRONMENT,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "needs TRL" in done.stderr and "docs/verl.md" in done.stderr


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
    rows = MANUAL.read_text().partition("## Rows")[2].partition("## Data")[0]
    costs = rows.partition("| rows | engine | cost |")[2]
    for name in acpo.verl.ROWS:
        assert f"`{name}`" in rows and f"`{name}`" in costs, name


def test_options_reach_the_row(tmp_path):
    from verl.utils.config import omega_conf_to_dataclass

    from acpo.engines.verl.config import configured_row

    more = [OURS, f"+{ACTOR}.policy_loss.options.mismatch_scale=auto", f"{ACTOR}.tau_neg=1.1"]
    config = configuration([*arguments("qwen3-8b-base.sh", tmp_path), *more])
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
