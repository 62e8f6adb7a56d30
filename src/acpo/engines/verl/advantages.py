"""Advantages for verl: relative to the group, or per token as the reward manager gave them."""

import warnings
from typing import Any, Literal

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from acpo.errors import ACPOError, ACPOWarning
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


@register_adv_est("acpo_tokens")
def per_token(
    token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, **_: Any
) -> tuple[Tensor, Tensor]:
    """`algorithm.adv_estimator=acpo_tokens`: rewards per token are the advantages as they are.

    Args:
        token_level_rewards: `[B, T]`; NaN at every token of a response is no verdict.
        response_mask: `[B, T]`.
        config: verl's algorithm section; tokens that `rollout_correction` has rejected keep rewards
            outside the mask.
    """
    mask = response_mask.bool()
    if config is not None and (config.get("rollout_correction") or {}).get("rollout_rs"):
        token_level_rewards = token_level_rewards.masked_fill(~mask, 0.0)
    unjudged = (token_level_rewards.isnan() | ~mask).all(1, keepdim=True)
    rewards = torch.where(mask & unjudged, 0.0, token_level_rewards)
    for wrong, what in (
        (mask & ~rewards.isfinite(), "give one finite number per token, or NaN at all of them"),
        (~mask & (rewards != 0), "the response has no token there; give one number per token"),
    ):
        if wrong.any():
            response, token = wrong.nonzero()[0].tolist()
            value = float(rewards[response, token])
            raise ACPOError(f"token_level_rewards[{response}, {token}]={value}: {what}")
    later = mask.flip(1).cumsum(1).flip(1) > 1  # all tokens of a response but its last
    if bool(later.any() and rewards.any()) and not bool((rewards[later] != 0).any()):
        warnings.warn(
            "algorithm.adv_estimator=acpo_tokens, but every reward stands at the last token of its "
            "response: the reward manager gives one number per response; use adv_estimator=acpo",
            ACPOWarning,
            stacklevel=2,
        )
    return rewards, rewards
