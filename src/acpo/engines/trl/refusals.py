"""GRPOConfig options this trainer does not honour: each is refused, none is ignored."""

from collections.abc import Callable
from typing import Any, NamedTuple

from acpo.errors import ACPOError


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


_VESPO = Refusal(lambda value: value in (2.0, 3.0), "VESPO is not a row of the table; leave it out")
_ADAPTIVE = "the adaptive entropy controller is not implemented; use a fixed entropy_coef"
_COMPILE = "packs differ in shape, so every step would compile anew; leave it out"

REFUSALS: dict[str, Refusal] = {
    "loss_type": Refusal(_only(None), "the objective is chosen by method=; leave loss_type out"),
    "importance_sampling_level": Refusal(
        _only("token"), "the method decides; method='gspo' has sequence-level ratios"
    ),
    "delta": Refusal(
        _only(None), "two-sided clipping belongs to no row of the table; leave it out"
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
        lambda value: "lomo" not in str(getattr(value, "value", value)),
        "LOMO updates weights during backward, before the last pack; use adamw_torch_fused",
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
    for name, refusal in REFUSALS.items():
        value = getattr(config, name, None)
        if not refusal.accepts(value):
            raise ACPOError(f"{name}={value!r} is not honoured: {refusal.reason}")


def refuse_model(model: Any, config: Any) -> None:
    """Raise for models whose update would not be the one asked for."""
    text = model.config.get_text_config()
    coefficient = config.router_aux_loss_coef
    if coefficient is None:
        coefficient = getattr(text, "router_aux_loss_coef", 0.0)
    if hasattr(text, "output_router_logits") and coefficient:
        raise ACPOError(
            f"router_aux_loss_coef={coefficient}: the load-balancing loss of "
            f"{type(model).__name__} depends on how tokens are batched and is not computed; set "
            "router_aux_loss_coef=0.0"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise ACPOError(
            f"{type(model).__name__} is an encoder-decoder; use a decoder-only causal LM"
        )
    for name, adapter in getattr(model, "peft_config", {}).items():
        if getattr(adapter, "is_prompt_learning", False):
            raise ACPOError(
                f"the PEFT adapter {name!r} ({adapter.peft_type}) inserts virtual tokens, which "
                "packs have no place for; use LoRA"
            )
