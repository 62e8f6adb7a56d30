"""Group-relative advantages for verl; completions without a verdict leave their group."""

from typing import Any, Literal

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from acpo.objectives import group_advantages


@register_adv_est("acpo")
def group_relative(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Any,
    config: Any = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """`algorithm.adv_estimator=acpo`: GRPO's advantages; a reward of NaN is no verdict.

    Args:
        token_level_rewards: `[B, T]`, each sequence's reward at its last token.
        response_mask: `[B, T]`.
        index: `[B]` names of the prompts; rows of a group need not be consecutive.
        config: verl's algorithm section; `norm_adv_by_std_in_grpo` is honoured.
    """
    rewards = token_level_rewards.sum(-1)
    centred_only = config is not None and not config.get("norm_adv_by_std_in_grpo", True)
    scale: Literal["none", "std"] = "none" if centred_only else "std"
    groups: dict[Any, list[int]] = {}
    for row, name in enumerate(index):
        groups.setdefault(name, []).append(row)
    advantages = torch.zeros_like(rewards)
    for rows in groups.values():
        advantages[rows] = group_advantages(rewards[rows], len(rows), scale=scale).to(rewards)
    spread = advantages[:, None] * response_mask
    return spread, spread
