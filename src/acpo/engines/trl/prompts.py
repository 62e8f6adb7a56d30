"""Which prompts a run sees: in an order that depends on the seed and a position alone."""

import functools
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler


class PromptStream:
    """Prompts beyond the sampler's, in an order that depends on the seed and a position alone."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.position = size, seed, 0

    def take(self, count: int) -> list[int]:
        """The next `count` indices; every pass over the data is shuffled anew."""
        taken = []
        for position in range(self.position, self.position + count):
            lap, place = divmod(position, self.size)
            taken.append(_shuffled(self.size, self.seed + 1 + lap)[place])
        self.position += count
        return taken


@functools.lru_cache(maxsize=1)
def _shuffled(size: int, seed: int) -> list[int]:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()


class EpochSampler(RepeatSampler):
    """TRL's sampler, whose order in an epoch does not depend on how often the run was restarted."""

    def __init__(self, *args: Any, trainer: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trainer = trainer
        self._lap = -1

    def __iter__(self) -> Any:
        if self.shuffle and self.seed is not None:
            steps = max(1, len(self) // self._trainer.args.generation_batch_size)
            # A callback may have ended epochs early.
            self._lap = max(self._lap + 1, self._trainer.state.global_step // steps)
            self.generator.manual_seed(self.seed)
            for _ in range(self._lap):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()
