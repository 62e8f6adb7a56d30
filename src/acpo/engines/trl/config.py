"""`ACPOConfig`: TRL's GRPOConfig, with the objective chosen by one name."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from trl import GRPOConfig

from acpo.errors import ACPOError
from acpo.objectives import METHODS, Method, get_method

METHOD_OPTIONS = (
    "tau_pos",
    "tau_neg",
    "sapo_temperature_pos",
    "sapo_temperature_neg",
    "offset",
    "mismatch_scale",
    "align_tol",
    "entropy_norm",
    "epsilon",
    "epsilon_high",
    "delta",
    "top_entropy_quantile",
    "gamma",
    "entropy_limit",
    "initial_entropy",
    "alpha1",
    "alpha2",
    "norm",
)
"""Fields that set an option of the method; unset, the method's own value holds."""


class Refusal(NamedTuple):
    """Values an option may have, and why it may have no other.

    Attributes:
        accepts: whether a value does nothing here.
        reason: the rest of the message, remedy included.
    """

    accepts: Callable[[Any], bool]
    reason: str


def _only(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


_VESPO = Refusal(
    lambda value: value in (2.0, 3.0),
    "set it as k_pos, lambda_pos, k_neg or lambda_neg of method='vespo' in method_options",
)
_ADAPTIVE = "the adaptive entropy controller is not implemented; use a fixed entropy_coef"
_COMPILE = "the decoder layers are compiled by themselves; see compile_layers"

IN_BACKWARD = ("lomo", "layerwise")
REFUSALS: dict[str, Refusal] = {
    "loss_type": Refusal(_only(None), "the objective is chosen by method=; leave loss_type out"),
    "importance_sampling_level": Refusal(
        _only("token"), "the method decides; method='gspo' has sequence-level ratios"
    ),
    "vespo_k_pos": _VESPO,
    "vespo_lambda_pos": _VESPO,
    "vespo_k_neg": _VESPO,
    "vespo_lambda_neg": _VESPO,
    "use_adaptive_entropy": Refusal(_only(False), _ADAPTIVE),
    "entropy_coef_min": Refusal(_only(0.0), _ADAPTIVE),
    "entropy_coef_max": Refusal(_only(1.0), _ADAPTIVE),
    "entropy_coef_delta": Refusal(_only(0.005), _ADAPTIVE),
    "entropy_target": Refusal(_only(0.2), _ADAPTIVE),
    "fp16": Refusal(
        _only(False), "loss scaling hides non-finite gradients from the check; use bf16"
    ),
    "fp16_full_eval": Refusal(_only(False), "use bf16"),
    "torch_compile": Refusal(_only(False), _COMPILE),
    "torch_compile_backend": Refusal(_only(None), _COMPILE),
    "torch_compile_mode": Refusal(_only(None), _COMPILE),
    "neftune_noise_alpha": Refusal(
        _only(None), "its noise depends on how sequences are batched; leave it out"
    ),
    "label_smoothing_factor": Refusal(_only(0.0), "a policy gradient has no labels to smooth"),
    "deepspeed": Refusal(
        _only(None),
        "DeepSpeed steps the optimizer inside backward, before a non-finite gradient can be "
        "skipped; use FSDP2",
    ),
    "use_liger_kernel": Refusal(
        _only(False),
        "Liger replaces the model's forward; use model_init_kwargs={'use_kernels': True}",
    ),
    "liger_kernel_config": Refusal(_only(None), "see use_liger_kernel"),
    "optim": Refusal(
        lambda value: not any(word in str(getattr(value, "value", value)) for word in IN_BACKWARD),
        "it updates weights during backward, before the last pack; use adamw_torch_fused",
    ),
    "parallelism_config": Refusal(
        _only(None), "tensor, context and sequence parallelism are not supported; use FSDP2"
    ),
    "ddp_static_graph": Refusal(
        _only(None, False), "a step runs several packs, not all of which exchange gradients"
    ),
    "ignore_data_skip": Refusal(
        _only(False), "a resumed run continues inside its rollout; leave it out"
    ),
    "train_sampling_strategy": Refusal(
        _only("random"), "prompts are drawn by TRL's own sampler; see shuffle_dataset"
    ),
    "length_column_name": Refusal(
        _only("length"), "prompts are drawn by TRL's own sampler; leave it out"
    ),
    "data_seed": Refusal(_only(None), "prompts are drawn with seed; leave data_seed out"),
    "average_tokens_across_devices": Refusal(
        _only(True), "normalisers always span all processes; leave it out"
    ),
}


def refuse_unhonoured(config: Any) -> None:
    """Raise for the first option set to something this trainer would have to ignore."""
    if config.deepspeed is None and getattr(config, "deepspeed_plugin", None) is not None:
        raise ACPOError(f"DeepSpeed was chosen by the launcher: {REFUSALS['deepspeed'].reason}")
    for name, refusal in REFUSALS.items():
        value = getattr(config, name, None)
        if not refusal.accepts(value):
            raise ACPOError(f"{name}={value!r} is not honoured: {refusal.reason}")


def _option(text: str) -> Any:
    return field(default=None, metadata={"help": f"{text} Unset: the method's value."})


@dataclass
class ACPOConfig(GRPOConfig):
    """Training options. Every GRPOConfig option works, or is refused at construction.

    Args:
        method: a row of `acpo.objectives.METHODS`.
        method_options: options of the method that have no field of their own, rows registered by
            the user included.
        update_layout: "packed", "padded" or "auto".
        compile_layers: compile the decoder layers for the update. Unset: on CUDA, where sequences
            are packed; the first two steps take some twenty seconds longer.
        max_tokens_per_pack: token budget of one forward pass; from free memory when unset.
        logits_bytes: memory for a chunk of logits in the head; from the device's size when unset.
        sparse_head: leave out the head's gradient entries below this share of their token's
            weight. 1e-5 halves the head's time at a hidden size of 4096 and leaves the gradient's
            error where bfloat16 puts it (results/head_h200.json); unset, nothing is left out.
        gradient_checkpointing: when unset, on only if a longest sequence would not fit without.
        dynamic_sampling: replace groups without reward variance by fresh ones.
        max_resample_times: how often to resample before training on what there is.
        soft_overlong_cache: tokens before `max_completion_length` over which the reward falls
            linearly by `soft_overlong_penalty`.
        max_nonfinite_steps: consecutive skipped steps after which training stops.
        stop_on_collapse: stop when the reward stays under a quarter of its best, with the best
            checkpoint kept and its weights loaded.
        record_rollouts: keep rollouts and their token statistics in `output_dir/trace`.
        record_every: of so many rollouts, one is kept.
        sampler: "generate" leaves rollouts to TRL (transformers or vLLM); "static" samples with
            `acpo.sampling`, which suits small models on one GPU.
        sampler_rows: completions "static" samples together; a process's whole rollout when unset.

    Unset, `bf16` is on where there is a CUDA device. The remaining fields set options of the method
    (see `docs/training.md`).
    """

    method: str = field(default="acpo", metadata={"help": "The objective: a row of METHODS."})
    method_options: dict[str, Any] | str | None = field(
        default=None,
        metadata={"help": "Options of the method that have no field here, as a mapping."},
    )
    update_layout: str = field(
        default="auto", metadata={"help": "'packed', 'padded', or 'auto' to choose by device."}
    )
    compile_layers: bool | None = field(
        default=None,
        metadata={"help": "Compile decoder layers for the update. Unset: on CUDA, when packed."},
    )
    max_tokens_per_pack: int | None = field(
        default=None, metadata={"help": "Token budget of one forward pass; from free memory."}
    )
    logits_bytes: int | None = field(
        default=None,
        metadata={"help": "Memory for a chunk of logits; from the device's size when unset."},
    )
    sparse_head: float | None = field(
        default=None,
        metadata={"help": "Leave out head gradients below this share, e.g. 1e-5. Unset: none."},
    )
    gradient_checkpointing: bool | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Recompute activations. Unset: only if memory asks for it."},
    )
    dynamic_sampling: bool = field(
        default=False, metadata={"help": "Replace groups whose rewards are all equal."}
    )
    max_resample_times: int = field(
        default=3, metadata={"help": "Rounds of dynamic sampling before giving up."}
    )
    soft_overlong_cache: int | None = field(
        default=None, metadata={"help": "Length over which the soft overlong penalty grows."}
    )
    soft_overlong_penalty: float = field(
        default=1.0, metadata={"help": "Reward lost by a completion of the full length."}
    )
    max_nonfinite_steps: int = field(
        default=10, metadata={"help": "Consecutive non-finite steps before training stops."}
    )
    stop_on_collapse: bool = field(
        default=False,
        metadata={"help": "Stop a run whose reward collapsed; keep its best checkpoint."},
    )
    record_rollouts: bool = field(
        default=False, metadata={"help": "Write rollouts, token by token, to output_dir/trace."}
    )
    record_every: int = field(
        default=1, metadata={"help": "Of so many rollouts, record_rollouts keeps one."}
    )

    sampler: str = field(
        default="generate",
        metadata={"help": "'generate' (TRL's own) or 'static' (fixed cache, CUDA graphs)."},
    )
    sampler_rows: int | None = field(
        default=None, metadata={"help": "Completions the static sampler runs together."}
    )

    loss_type: str | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Not used; see method."}
    )
    scale_rewards: str | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "'group', 'batch' or 'none'. Unset: the method's."}
    )
    epsilon: float | None = _option("Lower clip range.")  # type: ignore[assignment]
    epsilon_high: float | None = _option("Upper clip range.")
    top_entropy_quantile: float | None = _option(  # type: ignore[assignment]
        "Share of tokens trained by 80/20."
    )
    sapo_temperature_pos: float | None = _option("TRL's name of tau_pos.")  # type: ignore[assignment]
    sapo_temperature_neg: float | None = _option("TRL's name of tau_neg.")  # type: ignore[assignment]
    tau_pos: float | None = _option("Gate temperature where the advantage is positive.")
    tau_neg: float | None = _option("Gate temperature elsewhere.")
    offset: float | str | None = _option("ACPO's offset, a number or 'auto' (2/tau_pos).")
    mismatch_scale: float | str | None = _option("Scale of mismatched tokens, or 'auto'.")
    align_tol: float | None = _option("Tie tolerance of the policy mode.")
    entropy_norm: float | str | None = _option("H_max: a number or 'batch_max'.")
    gamma: float | None = _option("GTPO's entropy weight.")
    entropy_limit: float | None = _option("GTPO's entropy limit.")
    initial_entropy: float | None = field(
        default=None,
        metadata={"help": "GTPO: entropy of the initial policy. Unset: measured."},
    )
    alpha1: float | None = _option("GTPO (token entropy): weight of the outcome.")
    alpha2: float | None = _option("GTPO (token entropy): weight of the entropy share.")
    norm: str | None = _option("GTPO (token entropy): 'split' or 'joint' whitening.")

    def __post_init__(self) -> None:
        for name in ("offset", "mismatch_scale", "entropy_norm"):
            setattr(self, name, _number(getattr(self, name)))
        if isinstance(self.method_options, str):
            self.method_options = _mapping(self.method_options)
        if self.bf16 is None and not self.fp16:
            self.bf16 = not self.use_cpu and torch.cuda.is_available()
        method = self.objective
        if self.scale_rewards is None:
            self.scale_rewards = "none" if method.advantage_scale == "none" else "group"
        super().__post_init__()
        if method.advantage_scale == "none" and self.scale_rewards != "none":
            raise ACPOError(
                f"scale_rewards={self.scale_rewards!r} contradicts method={self.method!r}, whose "
                "advantages are only centred; leave scale_rewards out"
            )
        refuse_unhonoured(self)
        self._check_ranges()
        self._check_batch()

    @property
    def objective(self) -> Method:
        """The method with this configuration's options."""
        given = {name: getattr(self, name) for name in METHOD_OPTIONS}
        for ours, theirs in (
            ("tau_pos", "sapo_temperature_pos"),
            ("tau_neg", "sapo_temperature_neg"),
        ):
            if given[ours] is not None and given[theirs] not in (None, given[ours]):
                raise ACPOError(
                    f"{ours}={given[ours]} and {theirs}={given[theirs]} name the same option; "
                    "set one"
                )
        given |= {k: _number(v) for k, v in (self.method_options or {}).items()}  # type: ignore[union-attr]
        if self.method in METHODS and "max_length" in METHODS[self.method].options:
            given.setdefault("max_length", self.max_completion_length)
        return get_method(self.method, **{k: v for k, v in given.items() if v is not None})

    def _check_ranges(self) -> None:
        if self.update_layout not in ("auto", "packed", "padded"):
            raise ACPOError(
                f"update_layout={self.update_layout!r} is unknown; use 'auto', 'packed' or 'padded'"
            )
        if self.sampler not in ("generate", "static"):
            raise ACPOError(f"sampler={self.sampler!r} is unknown; use 'generate' or 'static'")
        counts = ("max_tokens_per_pack", "logits_bytes", "soft_overlong_cache", "sampler_rows")
        for name in (*counts, "max_nonfinite_steps", "record_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ACPOError(f"{name}={value} must be positive, or left out")
        if self.sparse_head is not None and not 0 <= self.sparse_head < 1:
            raise ACPOError(f"sparse_head={self.sparse_head} must lie in [0, 1), or be left out")
        if self.sparse_head is not None and self.beta and self.use_bias_correction_kl:
            raise ACPOError(
                f"sparse_head={self.sparse_head} has no effect with use_bias_correction_kl, whose "
                "gradient is taken another way; leave one of them out"
            )
        if self.max_resample_times < 0:
            raise ACPOError(f"max_resample_times={self.max_resample_times} must not be negative")
        cache, limit = self.soft_overlong_cache, self.max_completion_length
        if cache is not None and (limit is None or cache >= limit):
            raise ACPOError(
                f"soft_overlong_cache={cache} must be shorter than max_completion_length={limit}"
            )
        if cache is not None and self.multi_objective_aggregation != "sum_then_normalize":
            raise ACPOError(
                f"soft_overlong_cache={cache} needs "
                "multi_objective_aggregation='sum_then_normalize', which has one reward to lower"
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
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ACPOError(f"method_options={text!r} must be a mapping, e.g. '{{\"gamma\": 0.2}}'")
    return value
