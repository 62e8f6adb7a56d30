"""Models, optimizers and launches that are refused: the update would not be the one asked for.

Configurations say what was asked for; what trains is what accelerate, transformers and the launcher
made of it. So most of these look at the trainer after its construction.
"""

from typing import Any

import torch
from accelerate.utils import is_peft_model
from transformers import ProcessorMixin

from acpo.errors import ACPOError
from acpo.head import language_model_head
from acpo.sampling.cache import refuse_attention

DATA_LOADING = {
    "split_batches": (False,),
    "dispatch_batches": (None, False),
    "even_batches": (True,),
}
"""Options of accelerate that change how many rows a process reads, and what they may be."""


def refuse_several_gpus(config: Any) -> None:
    """Raise where one process sees several GPUs, over which transformers would split the model."""
    if config.world_size == 1 and config.n_gpu > 1:
        raise ACPOError(
            f"one process sees {config.n_gpu} GPUs, and the model would be split over them; start "
            "a process for each with accelerate launch (recipes/accelerate), or show it one with "
            "CUDA_VISIBLE_DEVICES=0; acpo doctor plans either with --processes N"
        )


def refuse_model(model: Any, config: Any) -> None:
    """Raise for models whose update would not be the one asked for."""
    places = set(getattr(model, "hf_device_map", {}).values())
    if len(places) > 1:
        raise ACPOError(
            f"device_map put parts of the model on {', '.join(sorted(map(str, places)))}; the "
            "update needs all of it on one device: leave device_map out, and shard what does not "
            "fit with FSDP2 (recipes/accelerate)"
        )
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
    policy = model.get_base_model() if is_peft_model(model) else model
    language_model_head(policy)
    if config.sampler == "static":
        refuse_attention(policy)


def refuse_built(trainer: Any) -> None:
    """Raise for what a launcher or a nested option made of the trainer behind the options' back."""
    _refuse_tokenizer(trainer)
    accelerator, state = trainer.accelerator, trainer.accelerator.state
    _refuse_rounding(trainer)
    args = trainer.args
    if args.sync_ref_model and trainer.is_fsdp_enabled and args.save_strategy != "no":
        raise ACPOError(
            "sync_ref_model=True under FSDP: no checkpoint holds the sharded reference, and a "
            "resumed run would begin with another; set save_strategy='no'"
        )
    if (steps := args.gradient_accumulation_steps) != 1:
        raise ACPOError(
            f"gradient_accumulation_kwargs={{'num_steps': {steps}}} would step the optimizer every "
            f"{steps} updates; set gradient_accumulation_steps={steps} instead"
        )
    if trainer.is_deepspeed_enabled or getattr(state, "deepspeed_plugin", None) is not None:
        raise ACPOError(
            "DeepSpeed was chosen by the launcher: it steps the optimizer inside backward, before "
            "a non-finite gradient can be skipped; use FSDP2 (recipes/accelerate)"
        )
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise ACPOError(
            f"mixed_precision={accelerator.mixed_precision} was chosen by the launcher; use bf16"
        )
    backend = str(getattr(getattr(state, "dynamo_plugin", None), "backend", "NO"))
    if not backend.upper().endswith("NO"):
        raise ACPOError(f"dynamo_backend={backend} was chosen by the launcher; leave it out")
    if getattr(getattr(state, "fsdp_plugin", None), "fsdp_version", 2) != 2:
        raise ACPOError(
            "FSDP version 1 was chosen by the launcher, under which no update was ever checked; "
            "set fsdp_version: 2 (recipes/accelerate)"
        )
    for name, plain in DATA_LOADING.items():
        if (value := getattr(accelerator, name)) not in plain:
            raise ACPOError(
                f"accelerator_config={{{name!r}: {value}}} would have processes read other rows "
                "than a rollout is made of; leave it out"
            )
    if getattr(state, "megatron_lm_plugin", None) is not None:
        raise ACPOError("Megatron was chosen by the launcher; use FSDP2, or the verl plugin")


def _refuse_tokenizer(trainer: Any) -> None:
    if isinstance(trainer.processing_class, ProcessorMixin):
        raise ACPOError(
            f"{trainer.model.config.model_type} comes with an image processor, and images are not "
            "supported: the update would not see them; pass the tokenizer as processing_class, "
            "with text-only data"
        )
    tokenizer = trainer.processing_class
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        # transformers makes one of nothing where a folder holds none.
        raise ACPOError(
            f"the tokenizer of {trainer.model.config._name_or_path!r} has no tokens but special "
            "ones; save the model's own beside its weights, or pass it as processing_class"
        )


def _refuse_rounding(trainer: Any) -> None:
    """TRL casts the policy itself for continuous batching, and small updates are lost in it."""
    args, policy = trainer.args, trainer.model
    rounded = args.use_transformers_continuous_batching and args.bf16
    if rounded and any(p.dtype == torch.float32 for p in policy.parameters() if p.requires_grad):
        raise ACPOError(
            "use_transformers_continuous_batching=True with bf16=True makes TRL round the float32 "
            "weights that are trained to bfloat16; load them in bfloat16, or sample otherwise "
            "(sampler='static', or vLLM)"
        )


def refuse_optimizer(optimizer: Any) -> None:
    """Raise for an optimizer that updates weights during backward, before the last pack."""
    inner = getattr(optimizer, "optimizer", optimizer)
    kind = type(inner).__name__
    if "LayerWise" in kind or "lomo" in kind.lower():
        raise ACPOError(
            f"{kind} updates weights during backward, before the last pack; use adamw_torch_fused"
        )
