"""Rollouts of a tiny model: as plain tensors, as verl wants them, and their loss by definition."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from acpo.objectives import dense_loss, get_method, group_advantages
from engines.tiny import WORDS, tiny_model, tiny_tokenizer

VOCABULARY, GROUP, PROMPT, RESPONSE = len(WORDS), 4, 6, 9
THEIRS = ("gspo", "sapo", "cispo", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl")
# verl divides by its own length, keeps no mode of the rollout policy, and no likeliest tokens.
ELSEWHERE = ("dr_grpo", "score_baseline", "simko")


class Rollouts(NamedTuple):
    """Left-padded prompts `[B, P]` and right-padded responses `[B, R]`, groups consecutive."""

    prompts: Tensor
    prompt_mask: Tensor
    responses: Tensor
    mask: Tensor
    old_logp: Tensor
    ref_logp: Tensor
    rewards: Tensor

    @property
    def ids(self) -> Tensor:
        return torch.cat([self.prompts, self.responses], 1)

    @property
    def attention(self) -> Tensor:
        return torch.cat([self.prompt_mask, self.mask], 1)


def save_model(folder: Path) -> Path:
    """The tiny model and its tokenizer."""
    tiny_model(tied=False).save_pretrained(folder)
    tiny_tokenizer(chat=True).save_pretrained(folder)
    return folder


@functools.cache
def load_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def response_logits(model: Any, rollouts: Rollouts) -> Tensor:
    """`[B, R, V]` logits that predict each response token."""
    attention = rollouts.attention
    positions = (attention.cumsum(1) - 1).clamp_min(0)
    output = model(input_ids=rollouts.ids, attention_mask=attention, position_ids=positions)
    return output.logits[:, rollouts.prompts.shape[1] - 1 : -1]


def sample(folder: Path, groups: int = 4, temperature: float = 1.0) -> Rollouts:
    """Sampled-looking responses: half of the tokens are the model's mode, old policies differ."""
    generator = torch.Generator().manual_seed(1)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    rows = groups * GROUP
    prompts = integers(2, VOCABULARY, groups, PROMPT).repeat_interleave(GROUP, 0)
    width = integers(2, PROMPT + 1, groups, 1).repeat_interleave(GROUP, 0)
    prompt_mask = (torch.arange(PROMPT) >= PROMPT - width).long()
    mask = (torch.arange(RESPONSE) < integers(2, RESPONSE + 1, rows, 1)).long()
    # A shared first token in most rows gives GTPO conflicts to find.
    responses = integers(2, VOCABULARY, rows, RESPONSE)
    responses[:, 0] = responses[::GROUP, 0].repeat_interleave(GROUP)
    rewards = integers(0, 2, rows).float()
    rewards[:GROUP] = 1.0
    rewards[GROUP : GROUP + 2] = torch.tensor([0.0, 1.0])
    blank = torch.zeros(rows, RESPONSE)
    rollouts = Rollouts(
        prompts * prompt_mask, prompt_mask, responses * mask, mask, blank, blank, rewards
    )
    with torch.no_grad():
        model = load_model(folder)
        for position in range(0, RESPONSE, 2):
            modes = response_logits(model, rollouts)[:, position].argmax(-1)
            rollouts.responses[:, position] = modes * rollouts.mask[:, position]
        scores = (response_logits(model, rollouts) / temperature).log_softmax(-1)
        logp = scores.gather(-1, rollouts.responses[..., None])[..., 0]

    def moved(scale: float) -> Tensor:
        return logp + scale * torch.randn(logp.shape, generator=generator)

    return rollouts._replace(old_logp=moved(0.3), ref_logp=moved(0.2))


def advantages(rollouts: Rollouts, method: str, *, per_token: bool = False) -> Tensor:
    """`[B]`; or `[B, R]`, as a process reward might make them."""
    scale = get_method(method).advantage_scale
    found = group_advantages(rollouts.rewards, GROUP, scale=scale)
    return found[:, None] + torch.sin(rollouts.responses.float()) if per_token else found


def by_definition(folder: Path, rollouts: Rollouts, method: str, **case: Any) -> dict[str, Tensor]:
    """Loss and gradient of the whole mini-batch by `dense_loss`, entropy bonus included."""
    model = load_model(folder)
    model.zero_grad()
    logits = response_logits(model, rollouts)
    temperature = case.get("temperature", 1.0)
    probabilities = (logits / temperature).softmax(-1)
    entropy = -(probabilities * probabilities.log()).sum(-1)
    row = get_method(method, **case.get("options", {}))
    loss = dense_loss(
        row,
        logits=logits,
        tokens=rollouts.responses,
        old_logp=rollouts.old_logp,
        advantages=advantages(rollouts, method, per_token=case.get("per_token", False)),
        mask=rollouts.mask,
        temperature=temperature,
        group_size=GROUP,
        old_entropy=entropy.detach(),
        ref_logp=rollouts.ref_logp if case.get("beta") else None,
        beta=case.get("beta", 0.0),
    )
    if case.get("entropy_coeff"):
        mask = rollouts.mask.float()
        if row.aggregation == "token_mean":
            bonus = (entropy * mask).sum() / mask.sum()
        else:
            bonus = ((entropy * mask).sum(1) / mask.sum(1)).mean()
        loss = loss - case["entropy_coeff"] * bonus
    loss.backward()
    gradient = {name: p.grad.clone() for name, p in model.named_parameters()}
    return {"loss": loss.detach(), **gradient}
