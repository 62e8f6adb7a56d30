"""Group-relative advantages (the paper's Eq. "adv")."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from acpo.errors import ACPOError


def group_advantages(
    rewards: Tensor | Sequence[float | None],
    group_size: int,
    *,
    scale: Literal["std", "none"] = "std",
    eps: float = 1e-6,
) -> Tensor:
    """Standardise rewards within each prompt's group of completions.

    A_i = (r_i - mean) / (std + eps) with the unbiased standard deviation. A group whose rewards
    are all equal gets exactly 0, free of rounding noise.

    Args:
        rewards: `[N]`, groups consecutive. `None` or NaN marks a completion without a verdict: it
            drops out of its group's statistics and gets advantage 0.
        group_size: completions per prompt, G.
        scale: "std" divides by the group's standard deviation; "none" only centres (GTPO).
        eps: added to the standard deviation.

    Returns:
        `[N]` advantages, float64 if the rewards are, else float32.
    """
    if not isinstance(rewards, Tensor):
        listed = [float("nan") if reward is None else float(reward) for reward in rewards]
        exact = torch.tensor(listed, dtype=torch.float64)
        return group_advantages(exact, group_size, scale=scale, eps=eps).float()
    if not eps >= 0:
        raise ACPOError(f"eps={eps} must not be negative")
    if scale not in ("std", "none"):
        raise ACPOError(f"scale={scale!r} is unknown; use 'std' or 'none'")
    _check_rewards(rewards, group_size)
    out_dtype = rewards.dtype if rewards.dtype == torch.float64 else torch.float32
    groups = rewards.double().view(-1, group_size)  # [P, G]
    judged = ~groups.isnan()
    count = judged.sum(1, keepdim=True)
    values = groups.nan_to_num(0.0)
    mean = values.sum(1, keepdim=True) / count.clamp_min(1)
    centred = torch.where(judged, values - mean, 0.0)
    lowest = groups.nan_to_num(torch.inf).amin(1, keepdim=True)
    highest = torch.where(judged, groups, -torch.inf).amax(1, keepdim=True)
    if scale == "std":
        variance = centred.square().sum(1, keepdim=True) / (count - 1).clamp_min(1)
        centred = centred / (variance.sqrt() + eps)
    advantages = torch.where(judged & (highest > lowest), centred, 0.0)
    return advantages.flatten().to(out_dtype)


def _check_rewards(rewards: Tensor, group_size: int) -> None:
    if rewards.dim() != 1:
        raise ACPOError(
            f"rewards has shape {list(rewards.shape)}; flatten it to [N], groups consecutive"
        )
    if group_size < 1 or rewards.numel() % group_size:
        raise ACPOError(
            f"group_size={group_size} does not divide the {rewards.numel()} rewards; pass the "
            "number of completions sampled per prompt (num_generations)"
        )
    if torch.isinf(rewards).any():
        where = int(torch.isinf(rewards).nonzero()[0])
        raise ACPOError(
            f"rewards[{where}]={float(rewards[where])} is infinite; return None for a completion "
            "that could not be judged"
        )
