"""`ACPOConfig`: TRL's GRPOConfig, with the objective chosen by one name."""

import copy
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from acpo.engines.trl.refusals import refuse_unhonoured
from acpo.errors import ACPOError
from acpo.objectives import Method, get_method

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
    "top_entropy_quantile",
    "gamma",
    "entropy_limit",
    "initial_entropy",
    "alpha1",
    "alpha2",
    "norm",
)
"""Fields that set an option of the method; unset, the method's own value holds."""


def _option(text: str) -> Any:
    return field(default=None, metadata={"help": f"{text} Unset: the method's value."})


@dataclass
class ACPOConfig(GRPOConfig):
    """Training options. Every GRPOConfig option works, or is refused at construction.

    Args:
        method: a row of `acpo.objectives.METHODS`.
        update_layout: "packed", "padded" or "auto".
        max_tokens_per_pack: token budget of one forward pass; from free memory when unset.
        logits_bytes: memory for a chunk of logits in the head; from the device's size when unset.
        gradient_checkpointing: when unset, on only if a longest sequence would not fit without.
        dynamic_sampling: replace groups without reward variance by fresh ones.
        max_resample_times: how often to resample before training on what there is.
        soft_overlong_cache: tokens before `max_completion_length` over which the reward falls
            linearly by `soft_overlong_penalty`.
        max_nonfinite_steps: consecutive skipped steps after which training stops.
        record_rollouts: keep rollouts and their token statistics in `output_dir/trace`.
        record_every: of so many rollouts, one is kept.
        sampler: "generate" leaves rollouts to TRL (transformers or vLLM); "static" samples with
            `acpo.sampling`, which suits small models on one GPU.
        sampler_rows: completions "static" samples together; a process's whole rollout when unset.

    The remaining fields set options of the method (see `docs/training.md`).
    """

    method: str = field(default="acpo", metadata={"help": "The objective: a row of METHODS."})
    update_layout: str = field(
        default="auto", metadata={"help": "'packed', 'padded', or 'auto' to choose by device."}
    )
    max_tokens_per_pack: int | None = field(
        default=None, metadata={"help": "Token budget of one forward pass; from free memory."}
    )
    logits_bytes: int | None = field(
        default=None,
        metadata={"help": "Memory for a chunk of logits; from the device's size when unset."},
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
        whole = self.dynamic_sampling or self.objective.shaping in ("conflict", "entropy_reward")
        if whole and rows % self.num_generations:
            what = "dynamic_sampling" if self.dynamic_sampling else f"method={self.method!r}"
            raise ACPOError(
                f"{what} needs whole groups on every process, but per_device_train_batch_size * "
                f"steps_per_generation = {rows} is not a multiple of num_generations="
                f"{self.num_generations}; change one of them"
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
