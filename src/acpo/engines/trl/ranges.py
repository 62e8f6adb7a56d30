"""Numbers that options may be, told before anything divides by them or trains on them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from acpo.errors import ACPOError

POSITIVE = (
    *("num_train_epochs", "max_completion_length", "steps_per_generation"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("num_generations", "num_generations_eval", "generation_batch_size", "num_iterations"),
    *("logging_steps", "save_steps", "eval_steps", "lora_r", "lora_alpha"),
    *("max_tokens_per_pack", "logits_bytes", "soft_overlong_cache", "sampler_rows"),
    *("max_nonfinite_steps", "record_every", "vllm_importance_sampling_clip_max"),
)
NOT_NEGATIVE = (
    *("learning_rate", "weight_decay", "max_grad_norm", "beta", "warmup_steps", "adam_epsilon"),
    *("dataloader_num_workers", "max_resample_times", "soft_overlong_penalty"),
    *("off_policy_mask_threshold", "vllm_importance_sampling_clip_min"),
)
BELOW_ONE = ("adam_beta1", "adam_beta2", "lora_dropout", "sparse_head")

RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(POSITIVE, ("above 0 and finite", lambda value: 0 < value < math.inf)),
    **dict.fromkeys(NOT_NEGATIVE, ("0 or more and finite", lambda value: 0 <= value < math.inf)),
    **dict.fromkeys(BELOW_ONE, ("in [0, 1)", lambda value: 0 <= value < 1)),
    **dict.fromkeys(("entropy_coef", "reward_weights"), ("finite", math.isfinite)),
    "temperature": ("0.001 or more and finite", lambda value: 1e-3 <= value < math.inf),
    "ref_model_mixup_alpha": ("in [0, 1]", lambda value: 0 <= value <= 1),
    "seed": ("in [0, 2**32)", lambda value: 0 <= value < 2**32),
    "max_steps": ("above 0, or left out for num_train_epochs", lambda value: value != 0),
}
"""Options in words and as a test; not a number is none of them, and unset always is."""


def check_ranges(values: Mapping[str, Any]) -> None:
    """Raise for numbers out of their range."""
    for name, (words, holds) in RANGES.items():
        value = values.get(name)
        numbers = value if isinstance(value, list) else [value]
        if not all(holds(x) for x in numbers if isinstance(x, int | float)):
            raise ACPOError(f"{name}={value} must be {words}")
