"""Random mini-batches for the objective tests."""

from typing import Any

import torch

from acpo.objectives import METHODS, shape_tokens

ROWS = list(METHODS)
EXTRAS: dict[str, dict[str, Any]] = {
    "gtpo": {"initial_entropy": 1.0},
    "gspo": {"epsilon": 0.3},
    "clip_cov": {"cov_share": 0.1, "cov_low": 0.1},
    "kl_cov": {"cov_share": 0.1},
    "dr_grpo": {"max_length": 9},
}
"""Options at which a row has something to do on a small batch."""
SHAPED_BY = ("advantages", "mask", "old_entropy", "tokens", "group_size", "old_logp")
SHAPED_BY += ("old_log_pmax",)


def shaped_tokens(row: str, batch: dict[str, Any], stats: Any, **options: Any) -> Any:
    """Advantages and marks of a batch, from the statistics of its current policy."""
    return shape_tokens(
        row,
        entropy=stats.entropy,
        log_pmax=stats.log_pmax,
        logp=stats.logp,
        **{name: batch[name] for name in SHAPED_BY},
        **options,
    )


def random_batch(
    seed: int = 0,
    *,
    rows: int = 6,
    length: int = 7,
    vocab: int = 11,
    group_size: int = 3,
    ratios: tuple[float, float] = (0.05, 4.0),
    temperature: float = 1.0,
    sharpness: float = 2.0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Any]:
    """About half the tokens are the mode, advantages have both signs, rows are right-padded."""
    g = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(rows, length, vocab, generator=g, dtype=dtype)
    tokens = torch.randint(vocab, (rows, length), generator=g)
    aligned = torch.rand(rows, length, generator=g) < 0.5
    tokens = torch.where(aligned, logits.argmax(-1), tokens)
    # Shared first and last tokens give GTPO something to find.
    tokens[:, 0] = tokens[0, 0]
    lengths = torch.randint(1, length + 1, (rows,), generator=g)
    lengths[0] = length
    mask = torch.arange(length)[None] < lengths[:, None]
    logp = torch.log_softmax(logits / temperature, -1).gather(-1, tokens[..., None]).squeeze(-1)
    low, high = (torch.tensor(r, dtype=dtype).log() for r in ratios)
    old_logp = logp - (low + (high - low) * torch.rand(rows, length, generator=g, dtype=dtype))
    advantages = torch.randn(rows, generator=g, dtype=dtype)
    advantages[0], advantages[1] = advantages[0].abs(), -advantages[1].abs()
    old_entropy = torch.rand(rows, length, generator=g, dtype=dtype) * 2
    return {
        "logits": logits,
        "tokens": tokens,
        "old_logp": old_logp,
        "advantages": advantages,
        "mask": mask,
        "temperature": temperature,
        "group_size": group_size,
        "old_entropy": old_entropy,
        "old_log_pmax": torch.log_softmax(logits / temperature, -1).amax(-1).maximum(old_logp),
    }


def loss_and_gradient(loss, batch: dict[str, Any], *args: Any, **options: Any):
    """Value and logit gradient of `loss(method, **batch)`."""
    logits = batch["logits"].clone().requires_grad_()
    value = loss(*args, **{**batch, "logits": logits}, **options)
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient
