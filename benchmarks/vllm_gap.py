"""vLLM's log-probabilities against the trainer's on the same tokens, and what the gap does.

Part `gap` of vllm_colocated.py. vLLM draws a rollout and tells, for each token, its
log-probability and the likeliest token's. TRL's own code makes the trainer's pass and the
correction of it. Told apart are the gap (sampler_gap.py), what the trainer's own
rounding makes of the same tokens packed otherwise (`rounding`), and cosines between gradients: with
and without the correction, of draws by the static sampler from the trained weights, and of two sets
of those (`static, static`), which is as near to 1 as samples of this number allow.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from sampler_gap import sampler_gap
from torch import Tensor
from vllm_colocated import Colocated

from acpo.engines.trl.packing import MiniBatch
from acpo.engines.trl.rollout import select_rows, trained_mask
from acpo.objectives import TokenStats, get_method
from acpo.objectives.tokens import is_policy_mode

METHODS = ("grpo", "dapo", "gspo", "sapo", "acpo", "acpo_no_routing")
GRADIENTS = ("sapo", "acpo")
MODES = ("sequence_mask", "token_truncate")


class Told:
    """Stands in for TRL's call of vLLM and keeps what the engine said beyond what TRL asks."""

    def __init__(self, place: Colocated) -> None:
        self.place = place
        self.logp: list[list[float]] = []
        self.top: list[list[float]] = []

    def __call__(self, prompts: Any, **_: Any) -> tuple[Any, ...]:
        from vllm import SamplingParams

        trainer = self.place.trainer
        params = SamplingParams(
            temperature=trainer.temperature, max_tokens=trainer.max_completion_length, logprobs=1
        )
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        answers = self.place.llm.generate(asked, sampling_params=params, use_tqdm=False)
        outputs = [answer.outputs[0] for answer in answers]
        for output in outputs:
            steps = list(zip(output.token_ids, output.logprobs, strict=True))
            self.logp.append([step[token].logprob for token, step in steps])
            self.top.append([max(x.logprob for x in step.values()) for _, step in steps])
        told = [[[x] for x in row] for row in self.logp]
        return prompts, [list(output.token_ids) for output in outputs], told, None

    def stats(self, like: TokenStats) -> TokenStats:
        """As tensors in the shape of the trainer's; ties are judged as the trainer judges them."""

        def table(rows: list[list[float]]) -> Tensor:
            found = torch.zeros_like(like.logp)
            for i, row in enumerate(rows):
                found[i, : len(row)] = torch.tensor(row, device=found.device)
            return found

        logp, top = table(self.logp), table(self.top)
        align_tol = float(self.place.trainer.packed.settings.method.options["align_tol"])
        return TokenStats(logp, top, is_policy_mode(logp, top, align_tol), like.entropy)


def measure(place: Colocated, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    trainer = place.trainer
    trainer.model.train()
    inputs = place.inputs(seed=1)
    trainer.vllm_generation.sync_weights()
    told = Told(place)
    rollout = _rollout(place, inputs, told)
    stats, mask = trainer.rollouts.stats, trained_mask(rollout)
    sampler = told.stats(stats)
    known = {"advantages": rollout["advantages"], "mask": mask, "methods": METHODS}
    record: dict[str, Any] = {
        "rows": len(mask),
        "gap": sampler_gap(sampler=sampler, trainer=stats, **known),
    }
    again = _packed_otherwise(trainer, rollout)
    record["rounding"] = sampler_gap(sampler=again, trainer=stats, **known)
    record["histogram"] = _histogram((stats.logp - sampler.logp)[mask].abs())
    save(record)
    # Half of the groups: a gradient of all is no nearer to the expected one by much.
    few = range(len(inputs) // trainer.num_generations // 2 * trainer.num_generations)
    drawn = {"vllm": select_rows(rollout, few)}
    drawn |= {f"static {n}": _static(place, [inputs[i] for i in few]) for n in (1, 2)}
    trainer.rollouts._sampler = None  # its memory is the gradients'
    record["gradient_rows"] = len(few)
    record["cosines"] = {}
    for name in GRADIENTS:
        record["cosines"][name] = _cosines(trainer, drawn, name)
        save(record)
    trainer._metrics["train"].clear()
    return record


def _rollout(place: Colocated, inputs: Any, generate: Callable[..., Any]) -> dict[str, Any]:
    """TRL's rollout of what `generate` draws in vLLM's place."""
    trainer = place.trainer
    generation, inner = trainer.vllm_generation, trainer.vllm_generation.generate
    # TRL synchronises weights at a new step only; they have been.
    trainer._last_loaded_step = trainer.state.global_step
    generation.generate = generate
    try:
        return trainer._generate_and_score_completions(inputs)
    finally:
        generation.generate = inner
        trainer._last_loaded_step = -1


def _packed_otherwise(trainer: Any, rollout: dict[str, Any]) -> TokenStats:
    settings = trainer.packed.settings
    budget = settings.budget
    settings.budget = max(256, budget // 3)
    try:
        return trainer.rollouts.rollout_statistics(rollout)
    finally:
        settings.budget = budget


def _histogram(differences: Tensor) -> dict[str, list[float]]:
    """Counts by powers of ten: how many tokens differ by how much."""
    edges = [0.0, *(10.0 ** (k / 2) for k in range(-12, 5))]
    places = torch.bucketize(differences.double().cpu(), torch.tensor(edges[1:]).double())
    return {"edges": edges, "counts": torch.bincount(places, minlength=len(edges)).tolist()}


def _cosines(trainer: Any, drawn: dict[str, dict[str, Any]], name: str) -> dict[str, float]:
    """Between gradients of one row, of the draws as they are and with the correction."""
    cap = trainer.vllm_importance_sampling_clip_max
    rollouts = {
        **drawn,
        **{
            f"vllm {mode}": {
                **drawn["vllm"],
                "importance_sampling_ratio": _ratio(drawn["vllm"], mode, cap),
            }
            for mode in MODES
        },
    }
    rollouts["vllm"] = {**drawn["vllm"], "importance_sampling_ratio": None}
    settings = trainer.packed.settings
    before, settings.method = settings.method, get_method(name)
    try:
        found = {which: _gradient(trainer, rollout) for which, rollout in rollouts.items()}
    finally:
        settings.method = before
    return {
        f"{a}, {b}": float(torch.nn.functional.cosine_similarity(found[a], found[b], dim=0))
        for a, b in itertools.combinations(found, 2)
    }


def _ratio(rollout: dict[str, Any], mode: str, cap: float) -> Tensor:
    """TRL's correction in another mode than the recipe's, from the same columns."""
    difference = rollout["old_per_token_logps"] - rollout["sampling_per_token_logps"]
    difference = torch.where(trained_mask(rollout), difference, 0.0)
    if mode.startswith("sequence"):
        difference = difference.sum(1, keepdim=True)
    ratio = difference.exp()
    return ratio.masked_fill(ratio > cap, 0.0) if mode.endswith("mask") else ratio.clamp(max=cap)


def _static(place: Colocated, inputs: Any) -> dict[str, Any]:
    """A rollout by the static sampler, told as if vLLM had drawn it."""

    def generate(prompts: Any, **_: Any) -> tuple[Any, ...]:
        drawn = place.trainer.rollouts.sample_static(prompts)  # other numbers at every call
        return prompts, drawn.tokens, [[[x] for x in row] for row in drawn.logp], None

    return {**_rollout(place, inputs, generate), "importance_sampling_ratio": None}


def _gradient(trainer: Any, rollout: dict[str, Any]) -> Tensor:
    batch = MiniBatch.read(rollout, share=1.0)
    with trainer.packed.ready(trainer.policy):
        trainer.packed.run(trainer.model, batch, backward=torch.Tensor.backward)
    parts = [p.grad.flatten() for p in trainer.policy.parameters() if p.grad is not None]
    found = torch.cat(parts)
    trainer.model.zero_grad(set_to_none=True)
    return found
