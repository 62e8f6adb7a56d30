"""The arithmetic of a run: what a rollout, an update and the whole training consist of."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from acpo.texts import markdown_table
from acpo.train.recipe import Recipe


@dataclass(frozen=True)
class BatchPlan:
    """How completions become updates."""

    rollout: int  # completions sampled at a time, over all processes
    prompts: int  # prompts they belong to
    per_update: int  # completions behind one optimizer step
    updates_per_rollout: int  # optimizer steps taken on one rollout
    updates: int  # optimizer steps in all
    rollouts: int  # rollouts in all
    epochs: float  # how often every problem is used


def plan_batches(recipe: Recipe, problems: int) -> BatchPlan:
    """The plan of a recipe on that many problems."""
    config: Any = recipe.config
    rollout, accumulation = config.generation_batch_size, config.gradient_accumulation_steps
    prompts = rollout // config.num_generations
    updates_per_rollout = config.steps_per_generation * config.num_iterations // accumulation
    updates = config.max_steps
    if updates <= 0:  # as transformers counts: part of an update is a whole one
        per_pass = problems // prompts * updates_per_rollout
        updates = math.ceil(config.num_train_epochs * per_pass)
    rollouts = math.ceil(updates / updates_per_rollout)
    return BatchPlan(
        rollout=rollout,
        prompts=prompts,
        per_update=config.per_device_train_batch_size * config.world_size * accumulation,
        updates_per_rollout=updates_per_rollout,
        updates=updates,
        rollouts=rollouts,
        epochs=rollouts * prompts / problems,
    )


def in_updates(steps: float, plan: BatchPlan) -> int:
    """`save_steps` or `eval_steps` as a number of updates; below 1, it is a share of them all."""
    return math.ceil(plan.updates * steps) if steps < 1 else int(steps)


def prompts_used(recipe: Recipe) -> int | None:
    """Prompts of a run whose length does not depend on the data; None where it does."""
    if recipe.config.max_steps <= 0:
        return None
    plan = plan_batches(recipe, problems=1)
    return plan.rollouts * plan.prompts


def training_bytes(parameters: int, *, dtype: str | None, shards: int) -> int:
    """Weights, gradients and Adam's two moments on each of `shards` processes."""
    size = 2 if dtype in ("bfloat16", "float16") else 4
    return 4 * size * parameters // shards


SHAPES = {
    # layers, hidden, feed-forward, heads, key-value heads, head width, vocabulary, tied embeddings
    "Qwen2.5-0.5B": (24, 896, 4864, 14, 2, 64, 151936, True),
    "Qwen2.5-1.5B": (28, 1536, 8960, 12, 2, 128, 151936, True),
    "Qwen3-4B": (36, 2560, 9728, 32, 8, 128, 151936, True),
    "Qwen2.5-7B": (28, 3584, 18944, 28, 4, 128, 152064, False),
    "Qwen3-8B": (36, 4096, 12288, 32, 8, 128, 151936, False),
    "Qwen3-32B": (64, 5120, 25600, 64, 8, 128, 151936, False),
}
"""Decoders people train, by shape."""

CARDS = (24, 48, 80, 141)
"""Memory of common GPUs, in GB."""

GPUS = (1, 2, 4, 8, 16, 32, 64)
SAFE = 0.9
CACHED = 8
"""Completions whose keys and values a sampler should be able to hold at a time."""


def print_plan(tokens: int) -> None:
    """The table of `acpo doctor --plan`, as Markdown, for sequences of so many tokens."""
    heads = ("model", "state", "+ sequence, logits", "or + copy, cache")
    rows = ([name, *_model_plan(shape, tokens)] for name, shape in SHAPES.items())
    print(f"GPUs for sequences of {tokens:,} tokens (computed, not measured; GB = 10^9 bytes)\n")
    print(*markdown_table([*heads, *(f"{card} GB" for card in CARDS)], rows), sep="\n")


def _model_plan(shape: tuple[int, ...], tokens: int) -> list[str]:
    """A model's columns: what it takes, and for every card the fewest that hold it.

    The state is weights, gradients and Adam's moments in float32, over all GPUs together. An update
    holds activations of a longest sequence, recomputed between layers, and a chunk of logits with
    the head's gradient beside it; sampling a copy in bf16 and the keys and values of `CACHED`
    longest completions. Logits are told for the largest card.
    """
    from acpo.engines.trl.packing import activation_bytes

    layers, hidden, wide, heads, kv_heads, width, vocabulary, tied = shape
    attention = hidden * width * (2 * heads + 2 * kv_heads)
    parameters = layers * (attention + 3 * hidden * wide) + hidden * vocabulary * (2 - tied)
    config = SimpleNamespace(
        hidden_size=hidden,
        intermediate_size=wide,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width,
        num_hidden_layers=layers,
    )
    per_token = activation_bytes(config, itemsize=2, checkpointing=True)
    state = training_bytes(parameters, dtype=None, shards=1) / 1e9
    sequence, copy = tokens * per_token / 1e9, 2 * parameters / 1e9
    cache = CACHED * tokens * 4 * layers * kv_heads * width / 1e9
    counts = []
    for card in CARDS:
        logits = min(5.0, card / 16) + 4 * hidden * vocabulary / 1e9
        beside = max(sequence + logits, copy + cache)
        fewest = (n for n in GPUS if state / n + beside <= SAFE * card)
        counts.append(str(next(fewest, "no")))
    beside_state = f"{sequence:.1f} + {logits:.1f}", f"{copy:.1f} + {cache:.1f}"
    return [f"{state:.0f}", *beside_state, *counts]
