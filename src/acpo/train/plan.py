"""The arithmetic of a run: what a rollout, an update and the whole training consist of."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from acpo.train.recipe import Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class BatchPlan:
    """How completions become updates.

    Attributes:
        rollout: completions sampled at a time, over all processes.
        prompts: prompts they belong to.
        per_update: completions behind one optimizer step.
        updates_per_rollout: optimizer steps taken on one rollout.
        updates: optimizer steps in all.
        rollouts: rollouts in all.
        epochs: how often every problem is used.
    """

    rollout: int
    prompts: int
    per_update: int
    updates_per_rollout: int
    updates: int
    rollouts: int
    epochs: float


def plan_batches(recipe: Recipe, problems: int, processes: int) -> BatchPlan:
    """The plan of a recipe on `processes` processes."""
    config = recipe.config
    group = config.num_generations or 1
    micro = config.per_device_train_batch_size * processes
    if "generation_batch_size" in recipe.given:
        rollout = config.generation_batch_size or micro
        steps = max(1, rollout // micro)
    else:
        steps = config.steps_per_generation or config.gradient_accumulation_steps
        rollout = micro * steps
    accumulation = config.gradient_accumulation_steps
    prompts = max(1, rollout // group)
    updates_per_rollout = max(1, steps * config.num_iterations // accumulation)
    if config.max_steps > 0:
        rollouts = math.ceil(config.max_steps / updates_per_rollout)
    else:
        rollouts = math.floor(config.num_train_epochs * (problems // prompts))
    updates = config.max_steps if config.max_steps > 0 else rollouts * updates_per_rollout
    return BatchPlan(
        rollout=rollout,
        prompts=prompts,
        per_update=micro * accumulation,
        updates_per_rollout=updates_per_rollout,
        updates=updates,
        rollouts=rollouts,
        epochs=rollouts * prompts / problems,
    )


def prompts_used(recipe: Recipe, processes: int) -> int | None:
    """Prompts of a run whose length does not depend on the data; None where it does."""
    if recipe.config.max_steps <= 0:
        return None
    plan = plan_batches(recipe, problems=1, processes=processes)
    return plan.rollouts * plan.prompts


def count_parameters(config: "PreTrainedConfig") -> int:
    """Parameters of the model a configuration describes, without allocating it."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config).num_parameters()


def training_bytes(parameters: int, *, dtype: str | None, shards: int) -> int:
    """Weights, gradients and Adam's two moments on each of `shards` processes."""
    size = 2 if dtype in ("bfloat16", "float16") else 4
    return 4 * size * parameters // shards


class MeasuredRollout(NamedTuple):
    """Tokens per second of both samplers on one model, on the GPU named."""

    parameters: int
    static: float
    vllm: float
    gpu: str


MEASURED_ROLLOUTS: tuple[MeasuredRollout, ...] = ()
"""One row for each results/vllm_rollout*.json; where there is none, nothing is recommended."""


def sampler_advice(
    parameters: int, *, measured: tuple[MeasuredRollout, ...] = MEASURED_ROLLOUTS
) -> str | None:
    """Which sampler was faster for a model of this size; None if none near it was measured."""
    near = [row for row in measured if 0.5 <= parameters / row.parameters <= 2]
    if not near:
        return None
    row = min(near, key=lambda row: abs(math.log(parameters / row.parameters)))
    ours = row.static >= row.vllm
    return (
        f"on {row.gpu}, a model of {row.parameters / 1e9:.2g}B sampled {row.static:,.0f} tokens/s "
        f"with sampler=static and {row.vllm:,.0f} with use_vllm: "
        + ("sampler=static is the faster" if ours else "use_vllm=true is the faster")
    )
