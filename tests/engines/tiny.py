"""A tiny Qwen3, a tokenizer and data that make a trainer step in milliseconds."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)

WORDS = ["<pad>", "<eos>", *[f"w{i}" for i in range(62)]]


def tiny_tokenizer(chat: bool = False) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    if chat:
        wrapped.chat_template = (
            "{% for m in messages %}{{ m['content'] }} {% endfor %}"
            "{% if add_generation_prompt %}w1 {% endif %}"
        )
    return wrapped


def tiny_model(
    seed: int = 0,
    *,
    tied: bool = True,
    dtype: torch.dtype = torch.float32,
    sharpness: float = 8.0,
    layers: int = 2,
) -> Qwen3ForCausalLM:
    """Random weights, with logits spread enough that tokens differ in confidence."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        pad_token_id=0,
        eos_token_id=1,
        attn_implementation="sdpa",
    )
    model = Qwen3ForCausalLM(config).to(dtype)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(sharpness)
    return model


def prompts(count: int = 16) -> Dataset:
    texts = [" ".join(f"w{(i * 7 + j) % 62}" for j in range(2 + i % 4)) for i in range(count)]
    return Dataset.from_dict({"prompt": texts, "answer": [str(i % 5) for i in range(count)]})


def odd_tokens(completion_ids: Any, **_: Any) -> list[float]:
    """A reward with variance in most groups and a constant one in some."""
    return [float(sum(ids) % 3 == 0) for ids in completion_ids]


def options(folder: Path, **more: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "max_steps": 1,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "seed": 3,
        "max_grad_norm": 0.0,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
    }
    return {**defaults, **more}


class Recorder(TrainerCallback):
    """Keeps the gradient of every step."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
        self.gradients.append(torch.cat([g.flatten() for g in grads]).clone())


def relative(a, b):
    return float((a - b).norm() / b.norm())


ARGUMENTS = ("callbacks", "environment_factory", "eval_dataset", "peft_config", "rollout_func")
"""Those of a trainer; other names are options of its configuration."""


def build(
    folder: Path,
    model: Any = None,
    *,
    rewards: Any = odd_tokens,
    data: Any = None,
    tokenizer: Any = None,
    kind: Any = None,
    **more: Any,
) -> Any:
    """A trainer of a tiny model, not yet begun; `kind` is its class and its configuration's."""
    if kind is None:
        from acpo import ACPOConfig, ACPOTrainer

        kind = ACPOTrainer, ACPOConfig
    trainer, config = kind
    arguments = {name: more.pop(name) for name in ARGUMENTS if name in more}
    return trainer(
        tiny_model() if model is None else model,
        rewards,
        config(**options(folder, **more)),
        prompts() if data is None else data,
        processing_class=tiny_tokenizer() if tokenizer is None else tokenizer,
        **arguments,
    )


def recorded(
    folder: Path, model: Any = None, *, callbacks: Any = (), resume: Any = None, **more: Any
) -> tuple[Any, list[torch.Tensor]]:
    """Train a tiny model; the trainer and every step's gradient."""
    recorder = Recorder()
    trainer = build(folder, model, callbacks=[recorder, *callbacks], **more)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, recorder.gradients
