"""`ACPOConfig`: TRL's GRPOConfig, with the objective chosen by one name."""

import copy
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from trl import GRPOConfig

from acpo.engines.trl.ranges import check_ranges
from acpo.errors import ACPOError
from acpo.jsonl import json_object
from acpo.objectives import METHODS, Method, get_method
from acpo.objectives.gates import GATES
from acpo.objectives.method import ALIASES, by_our_names

REFUSALS = {
    "loss_type": "the objective is chosen by method=; leave loss_type out",
    "importance_sampling_level": "the method decides; method='gspo' has sequence-level ratios",
    **dict.fromkeys(
        ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
        "set it as k_pos, lambda_pos, k_neg or lambda_neg of method='vespo' in method_options",
    ),
    **dict.fromkeys(
        (
            *("use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max"),
            *("entropy_coef_delta", "entropy_target"),
        ),
        "the adaptive entropy controller is not implemented; use a fixed entropy_coef",
    ),
    "fp16": "loss scaling hides non-finite gradients from the check; use bf16",
    "fp16_full_eval": "use bf16",
    **dict.fromkeys(
        ("torch_compile", "torch_compile_backend", "torch_compile_mode"),
        "the decoder layers are compiled by themselves; see compile_layers",
    ),
    "neftune_noise_alpha": "its noise depends on how sequences are batched; leave it out",
    "label_smoothing_factor": "a policy gradient has no labels to smooth",
    "deepspeed": "DeepSpeed steps the optimizer inside backward, before a non-finite gradient can "
    "be skipped; use FSDP2",
    "use_liger_kernel": "Liger replaces the model's forward; use "
    "model_init_kwargs={'use_kernels': True}",
    "liger_kernel_config": "see use_liger_kernel",
    "optim": "it updates weights during backward, before the last pack; use adamw_torch_fused",
    "parallelism_config": "tensor, context and sequence parallelism are not supported; use FSDP2",
    "ddp_static_graph": "a step runs several packs, not all of which exchange gradients",
    "ignore_data_skip": "a resumed run continues inside its rollout; leave it out",
    "train_sampling_strategy": "prompts are drawn by TRL's own sampler; see shuffle_dataset",
    "length_column_name": "prompts are drawn by TRL's own sampler; leave it out",
    **dict.fromkeys(
        (
            *("top_p", "top_k", "min_p", "repetition_penalty", "generation_kwargs"),
            "vllm_structured_outputs_regex",
        ),
        "drawing from part of the vocabulary, or from other probabilities than the model's, biases "
        "every ratio, and the mode and delta are no longer the sampler's; leave it out",
    ),
    "metric_for_best_model": "the loss of a policy gradient does not say how good a model is, and "
    "is taken where load_best_model_at_end or a schedule asks for a metric; set 'reward'",
    "data_seed": "prompts are drawn with seed; leave data_seed out",
    "average_tokens_across_devices": "normalisers always span all processes; leave it out",
}
"""Options that may only have their default, at which they do nothing here, and why."""

CHANGES_DRAWS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("temperature", "do_sample", "top_h", "penalty_alpha", "dola_layers"), ()),
    **dict.fromkeys(("top_p", "typical_p", "repetition_penalty", "guidance_scale"), (1.0,)),
    **dict.fromkeys(("encoder_repetition_penalty", "num_beams", "num_beam_groups"), (1,)),
    **dict.fromkeys(("top_k", "min_p", "epsilon_cutoff", "eta_cutoff", "diversity_penalty"), (0,)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_tokens"), (0,)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (0.0,)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), ([],)),
    **dict.fromkeys(("sequence_bias", "logit_bias", "allowed_token_ids", "logits_processors"), ()),
    **dict.fromkeys(("bad_words", "bad_words_ids", "force_words_ids", "constraints"), ()),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "structured_outputs"), ()),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config"), ()),
}
"""Generation options of transformers and vLLM under which tokens are no draws of
softmax(logits / temperature), with the values that do nothing, as None does."""

ALSO_FINE: dict[str, Callable[[Any], bool]] = {
    "optim": lambda value: not re.search("lomo|layerwise", str(getattr(value, "value", value))),
    "ddp_static_graph": lambda value: value is False,
    "metric_for_best_model": lambda value: value not in ("loss", "eval_loss"),
    "top_k": lambda value: value in (0, -1),
    "min_p": lambda value: value in (None, 0.0),
    "generation_kwargs": lambda value: not changed_draws(value or {}),
}
"""Options of these that may have some other values too."""


def changed_draws(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of generation's options that change the draws."""
    return {
        name: options[name]
        for name, plain in CHANGES_DRAWS.items()
        if options.get(name) is not None and options[name] not in plain
    }


def refuse_unhonoured(config: Any, names: Iterable[str] = REFUSALS) -> None:
    """Raise for the first of these options set to something this trainer would have to ignore."""
    defaults = {entry.name: entry.default for entry in dataclasses.fields(config)}
    for name in names:
        value = getattr(config, name)
        if value != defaults[name] and not (name in ALSO_FINE and ALSO_FINE[name](value)):
            raise ACPOError(f"{name}={value!r} is not honoured: {REFUSALS[name]}")


def _option(text: str, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


def _of_method(text: str) -> Any:
    return _option(f"{text} Unset: the method's value.")


WORDS = {
    "update_layout": ("auto", "packed", "padded"),
    "sampler": ("generate", "static"),
    "scale_rewards": ("group", "batch", "none"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}
"""Options that take one of a few words; TRL tells of its own after the first rollout."""

DIVIDING = ("scale_rewards", "multi_objective_aggregation")
"""Options that choose by which deviations advantages are divided."""

NEEDS = {
    "max_resample_times": "dynamic_sampling",
    "soft_overlong_penalty": "soft_overlong_cache",
    "record_every": "record_rollouts",
    "sync_ref_model": "beta",
    **dict.fromkeys(("ref_model_mixup_alpha", "ref_model_sync_steps"), "sync_ref_model"),
    "dataloader_persistent_workers": "dataloader_num_workers",
}
"""Options that do nothing unless another is set."""

STATIC: dict[str, tuple[Any, ...]] = {
    "use_vllm": (False,),
    "use_transformers_continuous_batching": (False,),
    "cast_lm_head_to_fp32": (False,),
    "generation_kwargs": (None, {}),
    "cache_implementation": (None,),
}
"""Generation options beyond `REFUSALS` that sampler='static' takes at these values alone."""


@dataclass
class ACPOConfig(GRPOConfig):
    """Training options. Every GRPOConfig option works, or is refused at construction.

    What the fields below mean, their `help` says (`acpo train --help` prints it). Unset, `bf16` is
    on where there is a CUDA device. See also `docs/training.md`.
    """

    method: str = _option("The objective: a row of METHODS.", "acpo")
    method_options: dict[str, Any] | str | None = _option(  # noqa: RUF009
        "Options of the method that have no field here, as a mapping; rows of your own included."
    )
    update_layout: str = _option("'packed', 'padded', or 'auto' to choose by device.", "auto")
    compile_layers: bool | None = _option(
        "Compile decoder layers for the update; the first two steps take some twenty seconds "
        "longer. Unset: on CUDA, when packed."
    )
    max_tokens_per_pack: int | None = _option(
        "Token budget of one forward pass. Unset: from free memory."
    )
    logits_bytes: int | None = _option(
        "Memory for a chunk of logits in the head. Unset: from the device's size."
    )
    sparse_head: float | None = _option(
        "Leave out the head's gradient entries below this share of their token's weight. 1e-5 "
        "halves the head's time at a hidden size of 4096 and leaves the gradient's error where "
        "bfloat16 puts it (results/head_h200.json). Unset: none."
    )
    gradient_checkpointing: bool | None = _option(  # type: ignore[assignment]
        "Recompute activations. Unset: only if a longest sequence would not fit without."
    )
    dynamic_sampling: bool = _option(
        "Replace groups whose rewards are all equal by fresh ones.", False
    )
    max_resample_times: int = _option(
        "Rounds of dynamic sampling before training on what there is.", 3
    )
    soft_overlong_cache: int | None = _option(
        "Tokens before max_completion_length over which soft_overlong_penalty grows linearly."
    )
    soft_overlong_penalty: float = _option("Reward lost by a completion of the full length.", 1.0)
    max_nonfinite_steps: int = _option("Consecutive skipped steps before training stops.", 10)
    stop_on_collapse: bool = _option(
        "Stop when the reward stays under a quarter of its best; the best checkpoint is kept and "
        "its weights are loaded.",
        False,
    )
    record_rollouts: bool = _option("Write rollouts, token by token, to output_dir/trace.", False)
    record_every: int = _option("Of so many rollouts, record_rollouts keeps one.", 1)
    sampler: str = _option(
        "'generate' leaves rollouts to TRL (transformers or vLLM); 'static' samples with a fixed "
        "cache and CUDA graphs, which suits small models on one GPU.",
        "generate",
    )
    sampler_rows: int | None = _option(
        "Completions the static sampler runs together. Unset: a process's whole rollout."
    )

    loss_type: str | None = _option("Not used; see method.")  # type: ignore[assignment]
    scale_rewards: str | None = _option(  # type: ignore[assignment]
        "'group', 'batch' or 'none'. Unset: the method's."
    )
    epsilon: float | None = _of_method("Lower clip range.")  # type: ignore[assignment]
    epsilon_high: float | None = _option(
        "Upper clip range. Unset: epsilon, if that is set and the method clips both sides alike; "
        "else the method's value."
    )
    delta: float | None = _option("Bound on w where A <= 0: TRL's two-sided clipping.")
    top_entropy_quantile: float | None = _of_method(  # type: ignore[assignment]
        "Share of tokens trained by 80/20."
    )
    sapo_temperature_pos: float | None = _of_method(  # type: ignore[assignment]
        "TRL's name of tau_pos."
    )
    sapo_temperature_neg: float | None = _of_method(  # type: ignore[assignment]
        "TRL's name of tau_neg."
    )
    tau_pos: float | None = _of_method("Gate temperature where the advantage is positive.")
    tau_neg: float | None = _of_method("Gate temperature elsewhere.")
    offset: float | str | None = _of_method("ACPO's offset, a number or 'auto' (2/tau_pos).")
    mismatch_scale: float | str | None = _of_method("Scale of mismatched tokens, or 'auto'.")
    align_tol: float | None = _of_method("Tie tolerance of the policy mode.")
    entropy_norm: float | str | None = _of_method("H_max: a number or 'batch_max'.")
    gamma: float | None = _of_method("GTPO's entropy weight.")
    entropy_limit: float | None = _of_method("GTPO's entropy limit.")
    initial_entropy: float | None = _option("GTPO: entropy of the initial policy. Unset: measured.")
    alpha1: float | None = _of_method("GTPO (token entropy): weight of the outcome.")
    alpha2: float | None = _of_method("GTPO (token entropy): weight of the entropy share.")
    norm: str | None = _of_method("GTPO (token entropy): 'split' or 'joint' whitening.")

    def __post_init__(self) -> None:
        check_ranges(vars(self))
        for name in ("offset", "mismatch_scale", "entropy_norm"):
            setattr(self, name, _number(getattr(self, name)))
        self.method = get_method(self.method).name
        if isinstance(self.method_options, str):
            self.method_options = _mapping(self.method_options)
        if self.bf16 is None and not self.fp16:
            self.bf16 = not self.use_cpu and torch.cuda.is_available()
        method = self.objective
        if self.scale_rewards is None:
            self.scale_rewards = "none" if method.advantage_scale == "none" else "group"
        refuse_unhonoured(self, ["deepspeed"])  # for which transformers wants a file and a package
        super().__post_init__()
        for name in DIVIDING if method.advantage_scale == "none" else ():
            if (value := getattr(self, name)) not in ("none", "sum_then_normalize"):
                raise ACPOError(
                    f"{name}={value!r} divides by deviations, and the advantages of method="
                    f"{self.method!r} are only centred; leave it out"
                )
        refuse_unhonoured(self)
        self._check_correction(method)
        self._check_values()
        self._check_switches()
        self._check_batch()

    @property
    def objective(self) -> Method:
        """The method with this configuration's options."""
        fields = {name: getattr(self, name) for name in METHOD_OPTIONS}
        fields = {name: value for name, value in fields.items() if value is not None}
        own = {k: _number(v) for k, v in (self.method_options or {}).items()}  # type: ignore[union-attr]
        given = by_our_names(fields, own)
        if self.method in METHODS and "epsilon" in given and "epsilon_high" not in given:
            usual = METHODS[self.method].options
            if usual.get("epsilon_high") == usual.get("epsilon"):
                given["epsilon_high"] = given["epsilon"]
        if self.method in METHODS and "max_length" in METHODS[self.method].options:
            given.setdefault("max_length", self.max_completion_length)
        return get_method(self.method, **{k: v for k, v in given.items() if v is not None})

    def _check_correction(self, method: Method) -> None:
        mode = self.vllm_importance_sampling_mode
        corrects = self.use_vllm and self.vllm_importance_sampling_correction
        if corrects and GATES[method.gate].to_sampler and not mode.startswith("token"):
            raise ACPOError(
                f"vllm_importance_sampling_mode={mode!r}: method={self.method!r} takes the "
                "correction token by token, into its own ratio; use 'token_truncate' or "
                "'token_mask'"
            )

    def _check_values(self) -> None:
        for name, words in WORDS.items():
            if (value := getattr(self, name)) not in words:
                raise ACPOError(f"{name}={value!r} is unknown; use {' or '.join(map(repr, words))}")
        GenerationConfig(cache_implementation=self.cache_implementation)  # refuses an unknown one
        known = inspect.signature(torch.utils.checkpoint.checkpoint).parameters
        if unknown := set(self.gradient_checkpointing_kwargs or ()) - set(known):
            raise ACPOError(
                f"gradient_checkpointing_kwargs: {', '.join(sorted(unknown))} is no option of "
                "torch.utils.checkpoint; leave it out"
            )
        if self.max_completion_length is None:
            raise ACPOError("max_completion_length=None: completions need a bound; give a number")
        if self.objective.candidates and self.sparse_head is not None:
            raise ACPOError(
                f"method={self.method!r} moves the likeliest tokens too, which sparse_head leaves "
                "out; train without it"
            )
        cache, limit = self.soft_overlong_cache, self.max_completion_length
        if cache is not None and cache >= limit:
            raise ACPOError(
                f"soft_overlong_cache={cache} must be shorter than max_completion_length={limit}"
            )
        if cache is not None and self.multi_objective_aggregation != "sum_then_normalize":
            raise ACPOError(
                f"soft_overlong_cache={cache} needs "
                "multi_objective_aggregation='sum_then_normalize', which has one reward to lower"
            )

    def _check_switches(self) -> None:
        for name, switch in NEEDS.items():
            value = getattr(self, name)
            if value != getattr(ACPOConfig, name) and not getattr(self, switch):
                raise ACPOError(f"{name}={value} does nothing without {switch}; leave it out")
        static = self.sampler == "static"
        if self.sampler_rows is not None and not static:
            raise ACPOError(
                f"sampler_rows={self.sampler_rows} is for sampler='static'; leave it out"
            )
        for name, plain in STATIC.items() if static else ():
            if (value := getattr(self, name)) not in plain:
                raise ACPOError(
                    f"{name}={value!r} is not honoured by sampler='static'; use sampler='generate'"
                )

    def _check_batch(self) -> None:
        steps, accumulation = self.steps_per_generation, self.gradient_accumulation_steps
        assert steps is not None and self.num_generations is not None
        if steps % accumulation:
            raise ACPOError(
                f"steps_per_generation={steps} is not a multiple of gradient_accumulation_steps="
                f"{accumulation}, so one optimizer step would mix rollouts; make it "
                f"{accumulation * max(1, round(steps / accumulation))}"
            )
        rows = self.per_device_train_batch_size * steps
        if self.dynamic_sampling and rows % self.num_generations:
            raise ACPOError(
                "dynamic_sampling needs whole groups on every process, but "
                f"per_device_train_batch_size * steps_per_generation = {rows} is not a multiple of "
                f"num_generations={self.num_generations}; change one of them"
            )

    def per_optimizer_step(self) -> "ACPOConfig":
        """A copy in which a training step is an optimizer step.

        What TRL would split into `gradient_accumulation_steps` micro-batches becomes one batch;
        rollout sizes, updates per rollout and the learning-rate schedule stay as they are.
        """
        whole = copy.copy(self)
        accumulation = self.gradient_accumulation_steps
        assert self.steps_per_generation is not None
        whole.gradient_accumulation_steps = 1
        whole.per_device_train_batch_size = self.per_device_train_batch_size * accumulation
        whole.steps_per_generation = self.steps_per_generation // accumulation
        return whole


METHOD_OPTIONS = tuple(
    name
    for name in ACPOConfig.__annotations__
    if name in {*ALIASES, *(option for method in METHODS.values() for option in method.options)}
)
"""Fields that set an option of the method; unset, the method's own value holds."""


def _number(value: Any) -> Any:
    """Command lines and YAML may hand numbers over as text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _mapping(text: str) -> dict[str, Any]:
    """`method_options` from a command line, as JSON."""
    try:
        return json_object(text)
    except ValueError as error:
        words = f"method_options={text!r} must be a mapping, e.g. '{{\"gamma\": 0.2}}'"
        raise ACPOError(words) from error
