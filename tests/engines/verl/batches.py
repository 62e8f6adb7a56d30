"""Rollouts in the form verl's workers get them. Imported by processes that have verl."""

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import left_right_2_no_padding

from engines.verl.rollouts import GROUP, Rollouts, advantages


def verl_batch(
    rollouts: Rollouts, method: str, rows: slice, *, per_token: bool = False, **settings: Any
) -> TensorDict:
    """Some rows of the rollouts as the trainer dispatches them to a data-parallel rank."""
    attention = rollouts.attention
    spread = advantages(rollouts, method, per_token=per_token)
    spread = (spread if per_token else spread[:, None]) * rollouts.mask
    tensors = {
        "input_ids": rollouts.ids,
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp_min(0),
        "prompts": rollouts.prompts,
        "responses": rollouts.responses,
        "response_mask": rollouts.mask,
        "old_log_probs": rollouts.old_logp,
        "ref_log_prob": rollouts.ref_logp,
        "advantages": spread,
    }
    uids = [f"prompt{row // GROUP}" for row in range(len(attention))]
    data = tu.get_tensordict(
        {**{name: value[rows] for name, value in tensors.items()}, "uid": uids[rows]},
        {"temperature": 1.0, **settings},
    )
    return left_right_2_no_padding(data)


def nested(data: TensorDict) -> TensorDict:
    """The same rows without padding anywhere, as verl's v1 trainer keeps them."""
    lengths = data["response_mask"].sum(1).tolist()
    prompts = data["attention_mask"][:, : data["prompts"].shape[1]].bool()

    def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    for name in ("responses", "response_mask", "old_log_probs", "ref_log_prob", "advantages"):
        data[name] = jagged([row[:n] for row, n in zip(data[name], lengths, strict=True)])
    data["prompts"] = jagged(
        [row[keep] for row, keep in zip(data["prompts"], prompts, strict=True)]
    )
    data["loss_mask"] = data["response_mask"]
    del data["attention_mask"], data["max_response_len"]
    return data
