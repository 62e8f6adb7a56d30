"""Rollouts from `acpo.sampling` in place of TRL's generation: `sampler="static"`."""

from typing import Any

import torch

from acpo.engines.trl.scoring import ScoringTrainer
from acpo.errors import ACPOError
from acpo.sampling import Samples, StaticSampler

_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_vllm": (False,),
    "use_transformers_continuous_batching": (False,),
    "top_p": (1.0,),
    "top_k": (0, None),
    "min_p": (None, 0.0),
    "repetition_penalty": (1.0,),
    "generation_kwargs": (None, {}),
}
"""Generation options and the values at which they do nothing."""


class SamplingTrainer(ScoringTrainer):
    """Samples with the static sampler where the configuration asks for it.

    A rollout's random numbers depend on the seed, the update and the process alone: runs that
    differ in the method share them, and a resumed run draws what it would have drawn.
    """

    _sampler: StaticSampler | None = None
    _drawn_at: tuple[int, int] = (-1, 0)

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        if self.args.sampler != "static":
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        step = self.state.global_step
        calls = self._drawn_at[1] + 1 if self._drawn_at[0] == step else 0
        self._drawn_at = (step, calls)
        training = int(self.model.training)
        seed = (self.args.seed, step, calls, training, self.accelerator.process_index)
        return self.sample_static(prompt_ids, seed=seed).tokens, None

    def sample_static(self, prompt_ids: Any, *, seed: tuple[int, ...]) -> Samples:
        """Completions of tokenized prompts by the policy as it is now."""
        if self._sampler is None:
            args, half = self.args, self.accelerator.mixed_precision == "bf16"
            self._sampler = StaticSampler(
                self.policy,
                rows=args.sampler_rows
                or args.per_device_train_batch_size * args.steps_per_generation,
                max_new_tokens=self.max_completion_length,
                eos=self.eos_token_ids,
                pad=self._tokenizer.pad_token_id,
                temperature=self.temperature,
                autocast=torch.bfloat16 if half else None,
            )
        return self._sampler.sample(prompt_ids, seed=seed)


def refuse_sampler(trainer: Any) -> None:
    """Raise at construction for what the static sampler would have to ignore."""
    args = trainer.args
    if args.sampler != "static":
        if args.sampler_rows is not None:
            raise ACPOError(
                f"sampler_rows={args.sampler_rows} is for sampler='static'; leave it out"
            )
        return
    for name, plain in _PLAIN.items():
        value = getattr(args, name)
        if value not in plain:
            raise ACPOError(
                f"{name}={value!r} is not honoured by sampler='static'; use sampler='generate'"
            )
    if trainer.tools or trainer.rollout_func is not None:
        raise ACPOError("sampler='static' samples plain completions; use sampler='generate'")
    if trainer.is_fsdp_enabled:
        raise ACPOError(
            "sampler='static' reads whole weights, which FSDP shards; use sampler='generate'"
        )
