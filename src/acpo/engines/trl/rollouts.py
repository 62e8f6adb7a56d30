"""Rollouts as dictionaries of tensors: choosing rows, joining, drawing more prompts."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from trl.trainer.utils import RepeatSampler

LEFT_PADDED = ("prompt_ids", "prompt_mask")

Rollout = dict[str, Any]


def select_rows(rollout: Rollout, rows: Sequence[int]) -> Rollout:
    """The same rollout with only some of its rows, in the given order."""
    index = list(rows)
    return {
        name: value[index] if isinstance(value, Tensor) and value.dim() else value
        for name, value in rollout.items()
    }


def join_rollouts(parts: Sequence[Rollout], *, pad_token_id: int) -> Rollout:
    """Rows of several rollouts under one another, padded to a common width."""
    joined: Rollout = {}
    for name, first in parts[0].items():
        if not isinstance(first, Tensor) or first.dim() == 0:
            joined[name] = first
            continue
        tensors = [part[name] for part in parts]
        if first.dim() == 2:
            width = max(x.shape[1] for x in tensors)
            value = pad_token_id if name.endswith("_ids") else 0
            tensors = [_widen(x, width, value, left=name in LEFT_PADDED) for x in tensors]
        joined[name] = torch.cat(tensors)
    return joined


def _widen(x: Tensor, width: int, value: int, *, left: bool) -> Tensor:
    missing = width - x.shape[1]
    return F.pad(x, (missing, 0) if left else (0, missing), value=value)


def trained_tokens(rollout: Rollout) -> Tensor:
    """How many completion tokens of a rollout the loss sees."""
    mask = rollout["completion_mask"]
    return (mask * rollout["tool_mask"] if "tool_mask" in rollout else mask).sum()


def informative_groups(advantages: Tensor, group_size: int) -> list[int]:
    """Indices of the groups with any non-zero advantage."""
    return (advantages.view(-1, group_size) != 0).any(1).nonzero()[:, 0].tolist()


def group_rows(groups: Sequence[int], group_size: int) -> list[int]:
    """Row indices of whole groups."""
    return [g * group_size + i for g in groups for i in range(group_size)]


class PromptStream:
    """Prompts beyond the sampler's, in an order that depends on the seed and a position alone."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.position = size, seed, 0

    def take(self, count: int) -> list[int]:
        """The next `count` indices; every pass over the data is shuffled anew."""
        taken = []
        for position in range(self.position, self.position + count):
            lap, place = divmod(position, self.size)
            taken.append(self._order(lap)[place])
        self.position += count
        return taken

    def _order(self, lap: int) -> list[int]:
        if getattr(self, "_lap", None) != lap:
            generator = torch.Generator().manual_seed(self.seed + 1 + lap)
            self._lap = lap
            self._permutation = torch.randperm(self.size, generator=generator).tolist()
        return self._permutation


class EpochSampler(RepeatSampler):
    """TRL's sampler, whose order in an epoch does not depend on how often the run was restarted."""

    def __init__(self, *args: Any, trainer: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trainer = trainer

    def __iter__(self) -> Any:
        if self.shuffle and self.seed is not None:
            steps = max(1, len(self) // self._trainer.args.generation_batch_size)
            self.generator.manual_seed(self.seed)
            for _ in range(self._trainer.state.global_step // steps):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()
