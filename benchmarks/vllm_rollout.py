"""A rollout by vLLM and by the static sampler: the same model, weights and prompts.

Part `rollout` of vllm_colocated.py. Both draw one completion for each of 64 prompts x 8, up to the
recipe's longest, at its temperature. vLLM's seconds have the synchronisation of weights apart. The
first rollout of the static sampler compiles and captures; the engine's start has done so for vLLM.
"""

from collections.abc import Callable
from typing import Any

import torch
from measuring import clock
from vllm_colocated import Colocated, gib_in_use

REPEATS = 2


def measure(place: Colocated, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    trainer = place.trainer
    inputs = place.inputs()
    prompts = place.tokens(inputs)
    record: dict[str, Any] = {
        "prompts": len(prompts) // trainer.num_generations,
        "group": trainer.num_generations,
        "max_new_tokens": trainer.max_completion_length,
        "parameters": sum(p.numel() for p in trainer.policy.parameters()),
        "gib_with_engine": gib_in_use(),
    }
    for name, sampler in {"vllm": _by_vllm(trainer), "static": _by_static(trainer)}.items():
        record[name] = _timed(sampler, prompts)
        save(record)
    engine, static = place.seconds["engine"], record["static"]["seconds"][0]
    first = record["vllm"]["sync_seconds"][0] + record["vllm"]["seconds"][0]
    without = place.seconds["to_trainer"] - engine
    record["seconds_to_first_rollout"] = {
        "vllm": round(without + engine + first, 2),
        "static": round(without + static, 2),
    }
    save(record)
    record["dynamic_sampling"] = _resampled(trainer, inputs)
    trainer.rollouts._sampler = None  # its memory is the update's
    return record


def _resampled(trainer: Any, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """A rollout of a quarter of the prompts, silent groups replaced."""
    few = inputs[: max(4, len(inputs) // 4 // trainer.num_generations) * trainer.num_generations]
    trainer.model.train()
    before, trainer.args.dynamic_sampling = trainer.args.dynamic_sampling, True
    metrics = trainer._metrics["train"]
    try:
        began = clock()
        rollout = trainer.rollouts.make(few)
        return {
            "rows": len(rollout["advantages"]),
            "silent_rows": int((rollout["advantages"] == 0).sum()),
            "rounds": metrics["dynamic_sampling/rounds"][-1],
            "groups_missing": metrics["dynamic_sampling/groups_missing"][-1],
            "seconds": round(clock() - began, 2),
        }
    finally:
        trainer.args.dynamic_sampling = before
        trainer.rollouts.fresh_prompts.position = 0
        metrics.clear()


def _timed(sampler: Callable[[Any], tuple[float, list[Any]]], prompts: Any) -> dict[str, Any]:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {"seconds": [], "sync_seconds": [], "tokens": []}
    for _ in range(REPEATS + 1):
        began = clock()
        sync, completions = sampler(prompts)
        found["seconds"].append(round(clock() - began - sync, 3))
        found["sync_seconds"].append(round(sync, 3))
        found["tokens"].append(sum(map(len, completions)))
    late = zip(found["tokens"][1:], found["seconds"][1:], strict=True)
    found["tokens_per_second"] = [round(tokens / seconds) for tokens, seconds in late]
    found["gib_in_use"] = gib_in_use()
    if torch.cuda.is_available():
        found["peak_allocated_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return found


def _by_vllm(trainer: Any) -> Callable[[Any], tuple[float, list[Any]]]:
    def sample(prompts: Any) -> tuple[float, list[Any]]:
        began = clock()
        trainer.vllm_generation.sync_weights()
        sync = clock() - began
        _, completions, _, _ = trainer.vllm_generation.generate(
            prompts=prompts, images=None, num_generations=trainer.num_generations
        )
        return sync, completions

    return sample


def _by_static(trainer: Any) -> Callable[[Any], tuple[float, list[Any]]]:
    return lambda prompts: (0.0, trainer.rollouts.sample_static(prompts).tokens)
