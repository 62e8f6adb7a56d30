"""The mode margin z_y / T - z_max / T <= 0 of each token, from whole or vocabulary-sharded logits.

Together with log p_y it gives p_max and whether the sampled token is the mode, without a softmax.
verl divides by T in the dtype of its logits, and log p_y knows only what that rounding left; the
two logits of the margin are divided in the same way.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def _pick(z: Tensor, index: Tensor, temperature: Tensor) -> Tensor:
    """z / T, as verl rounds it, at one place of the last dimension, in float32.

    `gather` would keep z, which is later overwritten.
    """
    rows = z.reshape(-1, z.shape[-1])
    place = torch.arange(len(rows), device=z.device)
    picked = rows[place, index.reshape(-1)].view(index.shape)
    return (picked / temperature.clamp(min=1e-8).to(z.dtype)).float()


def mode_margin(
    *, logits: Tensor, tokens: Tensor, temperature: Tensor, differentiable: bool
) -> Tensor:
    """The margin from whole logits, float32; exactly 0 where the sampled token attains the maximum.

    Args:
        logits: `[..., V]`, not yet divided by the temperature.
        tokens: `[...]` sampled ids.
        temperature: of the rollout, broadcastable to `[...]`.
        differentiable: whether gradient flows through z_y and z_max.
    """
    z = logits if differentiable else logits.detach()
    mode = z.detach().argmax(-1)
    return _pick(z, tokens, temperature) - _pick(z, mode, temperature)


def sharded_mode_margin(
    *,
    logits: Tensor,
    tokens: Tensor,
    temperature: Tensor,
    differentiable: bool,
    group: Any,
) -> Tensor:
    """The same from this rank's slice of the vocabulary, one all-reduce of two numbers per token.

    Logits are `[..., V / ranks]`, slices in rank order of the tensor-parallel group; tokens are ids
    of the whole vocabulary.
    """
    width = logits.shape[-1]
    z = logits if differentiable else logits.detach()
    local = tokens - dist.get_rank(group) * width
    inside = (local >= 0) & (local < width)
    z_y = _pick(z, local.clamp(0, width - 1), temperature)
    z_max = _pick(z, z.detach().argmax(-1), temperature)
    here = torch.stack([z_max.detach(), torch.where(inside, z_y.detach(), -torch.inf)])
    whole = here.clone()
    dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group)
    if not differentiable:
        return whole[1] - whole[0]
    # Equal maxima in several slices: the first rank's counts, as argmax would have it.
    first = torch.where(here[0] == whole[0], dist.get_rank(group), dist.get_world_size(group))
    dist.all_reduce(first, op=dist.ReduceOp.MIN, group=group)
    owner = first == dist.get_rank(group)
    # Values of the whole vocabulary, gradient of this slice.
    z_max = whole[0] + torch.where(owner, z_max - z_max.detach(), 0.0)
    z_y = whole[1] + torch.where(inside, z_y - z_y.detach(), 0.0)
    return z_y - z_max
