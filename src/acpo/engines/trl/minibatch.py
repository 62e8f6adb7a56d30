"""One optimizer step's sequences, read from TRL's tensors once and for all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acpo.engines.trl.packing import Rows, find_rows


@dataclass
class MiniBatch:
    """The sequences of one optimizer step on one process.

    Attributes:
        ids: `[B, L]`, prompts left-padded, completions right-padded.
        first: the column at which completions begin.
        mask: `[B, C]`, true at completion tokens that are trained on.
        rows: where the sequences are.
        columns: per-token tensors, `[B, C]` each: old_logp, ref_logp, ...
        advantages: `[B]`.
        num_tokens: trained tokens of an average optimizer step, over all processes.
    """

    ids: Tensor
    first: int
    mask: Tensor
    rows: Rows
    columns: dict[str, Tensor]
    advantages: Tensor
    num_tokens: Tensor

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def __len__(self) -> int:
        return self.ids.shape[0]

    @classmethod
    def read(cls, inputs: Mapping[str, Any], *, share: float) -> "MiniBatch":
        """From what TRL's rollout hands over.

        Args:
            inputs: tensors named as in `GRPOTrainer._generate_and_score_completions`.
            share: this mini-batch's part of the rollout `num_items_in_batch` counts.
        """
        completion_mask = inputs["completion_mask"].bool()
        mask = completion_mask
        if inputs.get("tool_mask") is not None:
            mask = mask & inputs["tool_mask"].bool()
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attended = torch.cat([inputs["prompt_mask"].bool(), completion_mask], 1)
        first = inputs["prompt_ids"].shape[1]
        names = {
            "old_per_token_logps": "old_logp",
            "ref_per_token_logps": "ref_logp",
            "sampling_per_token_logps": "sampling_logp",
            "importance_sampling_ratio": "sampling_ratio",
            "conflict_hits": "conflict_hits",
            "token_advantages": "token_advantages",
        }
        columns = {
            ours: inputs[theirs].expand(mask.shape)
            for theirs, ours in names.items()
            if inputs.get(theirs) is not None
        }
        return cls(
            ids,
            first,
            mask,
            rows_of(attended, mask),
            columns,
            inputs["advantages"].float(),
            inputs["num_items_in_batch"].float() * share,
        )

    def sequence_mean(self, x: Tensor) -> Tensor:
        """Mean over each row's trained tokens, `[B, 1]`."""
        total = torch.where(self.mask, x, 0.0).sum(1, keepdim=True)
        return total / self.mask.sum(1, keepdim=True).clamp_min(1)


def rows_of(attended: Tensor, mask: Tensor) -> Rows:
    """Row spans from an `[B, L]` attention mask and a mask of the last columns to predict."""
    targets = torch.zeros_like(attended)
    targets[:, attended.shape[1] - mask.shape[1] :] = mask
    return find_rows(attended=attended.cpu(), targets=targets.cpu())
