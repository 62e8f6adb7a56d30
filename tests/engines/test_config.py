"""Every option of GRPOConfig is honoured, inherited unchanged, or refused with a reason."""

import dataclasses
import math

import pytest
import torch
from trl import GRPOConfig, TrlParser

from acpo import ACPOConfig
from acpo.engines.trl.config import METHOD_OPTIONS, REFUSALS
from acpo.engines.trl.identity import DECISIVE
from acpo.errors import ACPOError
from acpo.objectives import METHODS
from engines.tiny import options

MAY_CHANGE = """
accelerator_config auto_find_batch_size batch_eval_metrics bf16_full_eval cache_implementation
dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_timeout debug disable_tqdm
do_eval do_predict do_train ds3_gather_for_generation enable_jit_checkpoint
eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps eval_strategy
eval_use_gather_object fsdp fsdp_config full_determinism gradient_accumulation_steps
gradient_checkpointing gradient_checkpointing_kwargs greater_is_better hub_always_push
hub_model_id hub_private_repo hub_revision hub_strategy hub_token include_for_metrics
include_num_input_tokens_seen label_names load_best_model_at_end local_rank log_completions
log_completions_hub_repo log_level log_level_replica log_multimodal log_on_each_node
log_unique_prompts logging_first_step logging_nan_inf_filter logging_steps logging_strategy
max_steps model_init_kwargs num_completions_to_print num_generations_eval num_train_epochs
output_dir pad_to_multiple_of per_device_eval_batch_size per_device_train_batch_size
prediction_loss_only project push_to_hub remove_unused_columns report_to
restore_callback_states_from_checkpoint resume_from_checkpoint router_aux_loss_coef run_name
save_on_each_node save_only_model save_steps save_strategy save_total_limit skip_memory_metrics
steps_per_generation tf32 torch_empty_cache_steps trackio_bucket_id trackio_space_id
trackio_static_space_id transformers_continuous_batching_config trust_remote_code use_cache
use_cpu use_transformers_continuous_batching use_transformers_paged use_vllm
vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap
vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host
vllm_server_port vllm_server_timeout vllm_tensor_parallel_size
"""
"""Told otherwise in a run's identity, or without a part in its weights; the trainer, or code of TRL
and transformers that runs unchanged, reads them."""
DRAWS = {"optim", "top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs"}
"""Refused at some values, and kept by a run at the others."""


def test_every_field_of_grpo_config_is_classed_once():
    """Kept by a resumed run, free to change in one, refused, or of the method."""
    assert set(REFUSALS) & set(DECISIVE) == DRAWS
    classes = [set(DECISIVE) - DRAWS, set(MAY_CHANGE.split()), set(REFUSALS), set(METHOD_OPTIONS)]
    for field in dataclasses.fields(GRPOConfig):
        found = sum(field.name in group for group in classes)
        assert found == 1, f"{field.name}: keep it, let it change or refuse it"


WRONG = {
    "loss_type": "dapo",
    "importance_sampling_level": "sequence",
    "vespo_k_pos": 1.0,
    "vespo_lambda_pos": 1.0,
    "vespo_k_neg": 1.0,
    "vespo_lambda_neg": 1.0,
    "use_adaptive_entropy": True,
    "entropy_coef_min": 0.1,
    "entropy_coef_max": 0.5,
    "entropy_coef_delta": 0.1,
    "entropy_target": 0.3,
    "fp16_full_eval": True,
    "torch_compile_mode": "default",
    "neftune_noise_alpha": 5.0,
    "label_smoothing_factor": 0.1,
    "use_liger_kernel": True,
    "optim": "lomo",
    "ddp_static_graph": True,
    "ignore_data_skip": True,
    "train_sampling_strategy": "group_by_length",
    "length_column_name": "size",
    "metric_for_best_model": "eval_loss",
    "data_seed": 1,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "vllm_structured_outputs_regex": "[0-9]+",
    "generation_kwargs": {"top_p": 0.9},
    "average_tokens_across_devices": False,
}


@pytest.mark.parametrize(
    "asked", [{"load_best_model_at_end": True}, {"lr_scheduler_type": "reduce_lr_on_plateau"}]
)
def test_no_checkpoint_and_no_rate_is_chosen_by_the_loss(tmp_path, asked):
    """Which transformers takes where no metric is named."""
    asked |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(ACPOError, match=r"metric_for_best_model='loss' .*set 'reward'"):
        ACPOConfig(**options(tmp_path, **asked))
    ACPOConfig(**options(tmp_path, metric_for_best_model="reward", **asked))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_honoured_is_refused_with_a_reason(tmp_path, name):
    pattern = "torch_compile" if name == "torch_compile_mode" else name
    with pytest.raises(ACPOError, match=f"{pattern}=.* is not honoured: "):
        ACPOConfig(**options(tmp_path, **{name: WRONG[name]}))


def test_generation_options_are_refused_where_they_change_the_draws(tmp_path):
    changing = {"no_repeat_ngram_size": 2, "bad_words_ids": [[3]], "top_h": 0.4, "min_tokens": 4}
    changing |= {"suppress_tokens": [3], "min_new_tokens": 5, "guidance_scale": 2.0}
    for name, value in changing.items():
        with pytest.raises(ACPOError, match=f"generation_kwargs=.*{name}.*biases every ratio"):
            ACPOConfig(**options(tmp_path, generation_kwargs={name: value}))
    plain = {"no_repeat_ngram_size": 0, "suppress_tokens": [], "bad_words_ids": None, "top_p": 1}
    ACPOConfig(**options(tmp_path, generation_kwargs={**plain, "stop_strings": "w7"}))
    with pytest.raises(ACPOError, match="top_k=None"):  # transformers would take its 50
        ACPOConfig(**options(tmp_path, top_k=None))


def test_defaults_are_accepted_and_every_method_configures(tmp_path):
    for method in METHODS:
        config = ACPOConfig(**options(tmp_path, method=method))
        longest = {"max_length": 12} if method == "dr_grpo" else {}
        assert config.objective == METHODS[method](**longest)
        assert config.scale_rewards == ("none" if method in ("gtpo", "dr_grpo") else "group")


def test_two_sided_clipping_is_an_option_of_rows_that_clip(tmp_path):
    assert ACPOConfig(**options(tmp_path, method="dapo", delta=4.0)).objective.options["delta"] == 4
    with pytest.raises(ACPOError, match=r"delta=4.0 is not an option of method 'acpo'"):
        ACPOConfig(**options(tmp_path, delta=4.0))


def test_precision_is_chosen_from_the_device_when_unset(tmp_path):
    for more in ({}, {"use_cpu": True}):
        config = ACPOConfig(output_dir=str(tmp_path), report_to=[], **more)
        assert config.bf16 == (torch.cuda.is_available() and not more)
    assert ACPOConfig(**options(tmp_path, bf16=True)).bf16


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "grpo", "scale_rewards": "grop"},
        {"multi_objective_aggregation": "sum"},
        {"soft_overlong_cache": 2, "soft_overlong_penalty": float("nan")},
        {"soft_overlong_cache": 2, "soft_overlong_penalty": -1.0},
    ],
    ids=lambda wrong: list(wrong)[-1],
)
def test_words_and_penalties_are_checked_before_anything_is_sampled(tmp_path, wrong):
    with pytest.raises(ACPOError, match=f"{list(wrong)[-1]}=.*(is unknown|must be 0 or more)"):
        ACPOConfig(**options(tmp_path, **wrong))


def test_options_of_the_method(tmp_path):
    config = ACPOConfig(**options(tmp_path, tau_neg=1.2, offset="2.0", mismatch_scale="auto"))
    given = config.objective.options
    assert (given["tau_neg"], given["offset"], given["mismatch_scale"]) == (1.2, 2.0, "auto")
    trl_name = ACPOConfig(**options(tmp_path, method="sapo", sapo_temperature_neg=1.3))
    assert trl_name.objective.options["tau_neg"] == 1.3
    with pytest.raises(ACPOError, match="name the same option"):
        ACPOConfig(**options(tmp_path, tau_neg=1.2, sapo_temperature_neg=1.3))
    with pytest.raises(ACPOError, match=r"epsilon=0.2 is not an option of method 'acpo'"):
        ACPOConfig(**options(tmp_path, epsilon=0.2))
    for twice in (
        {"tau_neg": 1.2, "method_options": {"sapo_temperature_neg": 1.3}},
        {"sapo_temperature_neg": 1.2, "method_options": {"tau_neg": 1.3}},
        {"tau_neg": 1.2, "method_options": {"tau_neg": 1.3}},
    ):
        with pytest.raises(ACPOError, match=r"=1\.3 name the same option"):
            ACPOConfig(**options(tmp_path, method="sapo", **twice))
    same = {"tau_neg": 1.2, "method_options": {"sapo_temperature_neg": 1.2}}
    config = ACPOConfig(**options(tmp_path, method="sapo", **same))
    assert config.objective.options["tau_neg"] == 1.2
    with pytest.raises(ACPOError, match="did you mean 'grpo'"):
        ACPOConfig(**options(tmp_path, method="grop"))
    with pytest.raises(ACPOError, match="scale_rewards='group' divides"):
        ACPOConfig(**options(tmp_path, method="gtpo", scale_rewards="group"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "make it 4"),
        ({"update_layout": "dense"}, "update_layout='dense' is unknown"),
        ({"max_tokens_per_pack": 0}, "max_tokens_per_pack=0 must be above 0"),
        ({"max_resample_times": -1}, "must be 0 or more"),
        ({"learning_rate": math.nan}, "learning_rate=nan must be 0 or more"),
        ({"learning_rate": math.inf}, "learning_rate=inf must be 0 or more and finite"),
        ({"temperature": 0.0}, "temperature=0.0 must be 0.001 or more"),
        ({"temperature": 1e-300}, "temperature=1e-300 must be 0.001 or more"),
        ({"tau_pos": math.nan}, "tau_pos=nan must be a finite number"),
        ({"method_options": {"tau_pos": math.nan}}, "tau_pos=nan must be a finite number"),
        ({"align_tol": 2.0}, "align_tol=2.0 must lie in"),
        ({"method": "score_normalised", "method_options": {"exponent": 1e9}}, "exponent="),
        ({"num_generations": 0}, "num_generations=0 must be above 0"),
        ({"reward_weights": [1.0, math.nan]}, r"reward_weights=\[1.0, nan\] must be finite"),
        ({"off_policy_mask_threshold": -1.0}, "off_policy_mask_threshold=-1.0 must be 0 or more"),
        ({"max_steps": 0}, "max_steps=0 must be above 0, or left out"),
        ({"sparse_head": 1.0}, r"sparse_head=1.0 must be in \[0, 1\)"),
        ({"gradient_checkpointing_kwargs": {"nope": 1}}, "nope is no option of torch.utils"),
        ({"method": "simko", "sparse_head": 1e-5}, "'simko' moves the likeliest tokens too"),
        ({"method": "vespo", "use_vllm": True}, "takes the correction token by token"),
        (
            {"method": "dr_grpo", "multi_objective_aggregation": "normalize_then_sum"},
            "method='dr_grpo' are only centred",
        ),
        ({"soft_overlong_cache": 12}, "shorter than max_completion_length=12"),
        (
            {"soft_overlong_cache": 2, "multi_objective_aggregation": "normalize_then_sum"},
            "sum_then_normalize",
        ),
    ],
)
def test_ranges(tmp_path, more, message):
    with pytest.raises(ACPOError, match=message):
        ACPOConfig(**options(tmp_path, **more))


def test_an_optimizer_step_keeps_the_users_arithmetic(tmp_path):
    config = ACPOConfig(**options(tmp_path, gradient_accumulation_steps=4, steps_per_generation=8))
    whole = config.per_optimizer_step()
    assert whole.per_device_train_batch_size == 32 and whole.gradient_accumulation_steps == 1
    assert whole.steps_per_generation == 2
    assert whole.generation_batch_size == config.generation_batch_size == 64
    assert config.gradient_accumulation_steps == 4


def test_trls_parser_reads_every_option(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"output_dir: {tmp_path}\nuse_cpu: true\nbf16: false\nmethod: acpo\noffset: auto\n"
        "report_to: none\ntau_neg: 1.2\ndynamic_sampling: true\n"
    )
    (config,) = TrlParser(ACPOConfig).parse_args_and_config(
        ["--config", str(recipe), "--tau_neg", "1.3", "--mismatch_scale", "2.5"]
    )
    assert config.objective.options["tau_neg"] == 1.3
    assert config.objective.options["mismatch_scale"] == 2.5
    assert config.dynamic_sampling and config.offset == "auto"
