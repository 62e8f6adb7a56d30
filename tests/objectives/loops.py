"""Independent loop reference for the policy objectives.

Every row is written from its published formula, one token at a time, and differentiated by plain
autograd. It shares no code with the package, so agreement between the two is evidence for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

Key = tuple[int, int]

TOKEN_MEAN = {"dapo", "8020", "gtpo_entropy", "cispo"}
COMMON: dict[str, Any] = {
    "epsilon": 0.2,
    "epsilon_high": 0.2,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "offset": 2.0,
    "mismatch_scale": 3.0,
    "align_tol": 1e-6,
    "entropy_norm": "batch_max",
    "top_entropy_quantile": 0.2,
    "gamma": 0.1,
    "entropy_limit": math.log(2.0),
    "initial_entropy": 0.0,
    "alpha1": 1.0,
    "alpha2": 0.1,
    "norm": "split",
    "beta": 0.0,
    "entropy_coef": 0.0,
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "dapo": {"epsilon_high": 0.28},
    "8020": {"epsilon_high": 0.28},
    "gtpo_entropy": {"epsilon_high": 0.28},
    "gspo": {"epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"epsilon_high": 5.0},
    "gmpo": {"epsilon": 0.4, "epsilon_high": 0.4},
}
BALANCED = {"acpo_balanced": "acpo", "global_sg_balanced": "global_sg"}
"""Our own rows, and the row each of them balances."""


class Batch:
    """Per-token scalars of one mini-batch, keyed by (row, column) of the valid tokens."""

    def __init__(self, logits: Tensor, tokens: Tensor, old_logp: Tensor, mask: Tensor) -> None:
        count, length = tokens.shape
        self.rows = [[t for t in range(length) if bool(mask[i, t])] for i in range(count)]
        self.keys: list[Key] = [(i, t) for i in range(count) for t in self.rows[i]]
        self.tokens = {key: int(tokens[key]) for key in self.keys}
        self.log_probs = {key: torch.log_softmax(logits[key], dim=0) for key in self.keys}
        self.logp = {key: self.log_probs[key][self.tokens[key]] for key in self.keys}
        self.log_ratio = {k: (self.logp[k] - old_logp[k]).clamp(-20.0, 20.0) for k in self.keys}
        self.ratio = {key: torch.exp(self.log_ratio[key]) for key in self.keys}
        self.entropy = {}
        for key in self.keys:
            # Skipping impossible tokens keeps 0 * -inf out of the sum.
            terms = [torch.exp(x) * x for x in self.log_probs[key] if x > -math.inf]
            self.entropy[key] = -torch.stack(terms).sum()
        self.advantages: list[float] = []
        self.groups: list[list[int]] = []
        self.options: dict[str, Any] = {}


def _mean(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).mean()


def _clipped(ratio: Tensor, advantage: float | Tensor, options: dict[str, Any]) -> Tensor:
    low, high = 1.0 - options["epsilon"], 1.0 + options["epsilon_high"]
    return torch.minimum(ratio * advantage, torch.clamp(ratio, low, high) * advantage)


def _token_objective(batch: Batch, method: str) -> dict[Key, Tensor]:
    objective = {}
    threshold = -math.inf
    if method == "8020" and batch.keys:
        entropies = torch.stack([batch.entropy[key].detach() for key in batch.keys])
        threshold = torch.quantile(entropies, 1.0 - batch.options["top_entropy_quantile"])
    for key in batch.keys:
        ratio, advantage = batch.ratio[key], batch.advantages[key[0]]
        if method == "cispo":
            weight = ratio.clamp(max=batch.options["epsilon_high"]).detach()
            objective[key] = weight * advantage * batch.logp[key]
        elif batch.entropy[key].detach() >= threshold:
            objective[key] = _clipped(ratio, advantage, batch.options)
        else:
            objective[key] = torch.zeros_like(ratio)
    return objective


def _sequence_objective(batch: Batch, method: str) -> dict[Key, Tensor]:
    objective = {}
    for i, columns in enumerate(batch.rows):
        if not columns:
            continue
        advantage = batch.advantages[i]
        log_ratios = [batch.log_ratio[i, t] for t in columns]
        if method == "gspo":
            value = _clipped(torch.exp(_mean(log_ratios)), advantage, batch.options)
        elif advantage > 0:
            high = batch.options["epsilon_high"]
            value = torch.exp(_mean(x.clamp(max=high) for x in log_ratios)) * advantage
        else:
            low = -batch.options["epsilon"]
            value = torch.exp(_mean(x.clamp(min=low) for x in log_ratios)) * advantage
        # Repeated over the row, so that the per-row token mean gives the sequence value back.
        for t in columns:
            objective[i, t] = value
    return objective


def _mode_probability(batch: Batch, key: Key) -> tuple[Tensor, bool]:
    """Return the probability at the fixed index v* and whether the sampled token is the mode."""
    log_probs, sampled = batch.log_probs[key], batch.tokens[key]
    mode = int(torch.argmax(log_probs))
    gap = torch.exp(log_probs[mode]) - torch.exp(log_probs[sampled])
    aligned = bool(gap <= batch.options["align_tol"])
    return torch.exp(log_probs[sampled if aligned else mode]), aligned


def _normalised_entropy(batch: Batch, key: Key) -> Tensor:
    norm = batch.options["entropy_norm"]
    if norm == "batch_max":
        return batch.entropy[key] / max(h.detach() for h in batch.entropy.values())
    scaled = batch.entropy[key] / norm
    return torch.ones_like(scaled) if scaled > 1.0 else scaled


def _credit(batch: Batch, method: str, key: Key, tau: float) -> Tensor | float:
    options = batch.options
    offset = 2.0 / options["tau_pos"] if options["offset"] == "auto" else options["offset"]
    scale = options["mismatch_scale"]
    scale = 1.0 + 2.0 / tau if scale == "auto" else scale
    level = _normalised_entropy(batch, key)
    mode_probability, aligned = _mode_probability(batch, key)
    delta = 1.0 - mode_probability
    sg = delta.detach()
    unrouted = (offset + delta, 1.0 - delta)
    positive, nonpositive = {
        "sapo": (1.0, 1.0),
        "fixed": (2.0, 1.0),
        "positive_only": (offset + delta, 1.0),
        "nonpositive_only": (1.0, 1.0 - delta),
        "shannon": (level, 1.0 - level),
        "shannon_offset": (offset + level, 1.0 - level),
        "global_sg": (sg, 1.0 - sg),
        "global_sg_offset": (offset + sg, 1.0 - sg),
        "global_sg_x3": (3.0 * sg, 3.0 * (1.0 - sg)),
        "acpo_no_routing": unrouted,
        "acpo": unrouted if aligned else (scale * sg, scale * (1.0 - sg)),
    }[method]
    return positive if batch.advantages[key[0]] > 0 else nonpositive


def _credit_objective(batch: Batch, method: str) -> dict[Key, Tensor]:
    objective = {}
    for i, t in batch.keys:
        tau = batch.options["tau_pos"] if batch.advantages[i] > 0 else batch.options["tau_neg"]
        gate = 4.0 / tau * torch.sigmoid(tau * (batch.ratio[i, t] - 1.0))
        objective[i, t] = gate * _credit(batch, method, (i, t), tau) * batch.advantages[i]
    return objective


def _balanced_objective(batch: Batch, method: str) -> dict[Key, Tensor]:
    """Each branch divided by the mean weight of its tokens, weighed as in SAPO's own sum."""
    scale = 3.0 if method == "acpo" else 1.0
    totals = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for i, t in batch.keys:
        advantage = batch.advantages[i]
        delta = 1.0 - float(_mode_probability(batch, (i, t))[0].detach())
        size = abs(advantage) / len(batch.rows[i])
        totals[advantage > 0][0] += size * scale * (delta if advantage > 0 else 1.0 - delta)
        totals[advantage > 0][1] += size
    means = {side: max(a / b, 1e-3) if b else 1.0 for side, (a, b) in totals.items()}
    objective = _credit_objective(batch, method)
    return {key: value / means[batch.advantages[key[0]] > 0] for key, value in objective.items()}


def _shared_length(row: list[int], positives: list[list[int]], negatives: list[list[int]]) -> int:
    """Count the leading tokens of a row that both sides of the group hold at the same place."""
    for u, token in enumerate(row):
        for side in (positives, negatives):
            if not any(len(other) > u and other[u] == token for other in side):
                return u
    return len(row)


def _gtpo_objective(batch: Batch) -> dict[Key, Tensor]:
    objective = {}
    options = batch.options
    for group in batch.groups:
        text = {i: [batch.tokens[i, t] for t in batch.rows[i]] for i in group}
        above = [text[i] for i in group if batch.advantages[i] > 0]
        below = [text[i] for i in group if batch.advantages[i] < 0]
        above_reversed, below_reversed = [x[::-1] for x in above], [x[::-1] for x in below]
        for i in group:
            columns, advantage = batch.rows[i], batch.advantages[i]
            if not columns:
                continue
            prefix = suffix = 0
            if advantage != 0:
                prefix = _shared_length(text[i], above, below)
                suffix = _shared_length(text[i][::-1], above_reversed, below_reversed)
            level = _mean(batch.entropy[i, t] for t in columns).detach()
            limit = options["entropy_limit"]
            kept = 0.0 if options["initial_entropy"] < limit and level > limit else 1.0
            for place, t in enumerate(columns):
                conflict = 1.0
                if place < prefix:
                    conflict *= 2.0 if advantage > 0 else 0.0
                if place >= len(columns) - suffix:
                    conflict *= 2.0 if advantage > 0 else 0.0
                shaped = kept * (advantage - options["gamma"] * level) * conflict
                objective[i, t] = shaped * batch.ratio[i, t]
    return objective


def _gtpo_entropy_objective(batch: Batch, old_entropy: Tensor) -> dict[Key, Tensor]:
    objective = {key: torch.zeros_like(batch.ratio[key]) for key in batch.keys}
    alpha1, alpha2 = batch.options["alpha1"], batch.options["alpha2"]
    for group in batch.groups:
        whitening_sets: list[dict[Key, Tensor]] = []
        for sign in (1.0, -1.0):
            rows = [i for i in group if sign * batch.advantages[i] > 0]
            # Floored entropies, not an epsilon in the sums: see the package's docs/method.md.
            share = {(i, t): old_entropy[i, t].clamp(min=1e-8) for i in rows for t in batch.rows[i]}
            if sign < 0:
                share = {key: 1.0 / h for key, h in share.items()}
            rewards = {}
            for i, t in share:
                column = [share[k, u] for k, u in share if u == t]
                bonus = len(column) * share[i, t] / sum(column)
                rewards[i, t] = sign * (alpha1 + alpha2 * bonus)
            whitening_sets.append(rewards)
        if batch.options["norm"] == "joint":
            whitening_sets = [whitening_sets[0] | whitening_sets[1]]
        for rewards in whitening_sets:
            if len(rewards) < 2:
                continue
            values = torch.stack(list(rewards.values()))
            alike = bool(values.max() - values.min() < 1e-12)
            for key, reward in rewards.items():
                shaped = (reward - values.mean()) / (values.std(unbiased=True) + 1e-8)
                shaped = torch.zeros_like(shaped) if alike else shaped
                objective[key] = _clipped(batch.ratio[key], shaped, batch.options)
    return objective


def loop_loss(
    method: str,
    *,
    logits: Tensor,
    tokens: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    temperature: float = 1.0,
    group_size: int | None = None,
    old_entropy: Tensor | None = None,
    ref_logp: Tensor | None = None,
    old_log_pmax: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Compute the loss of one method, token by token.

    Args:
        method: Name of the row.
        logits: Raw logits [B, T, V].
        tokens: Sampled tokens [B, T].
        old_logp: Log-probability of the sampled tokens under the rollout policy [B, T].
        advantages: Sequence-level advantages [B], used as given.
        mask: Valid tokens [B, T].
        temperature: Divides the logits.
        group_size: Consecutive rows per prompt, for the two GTPO rows.
        old_entropy: Entropy of the rollout policy [B, T], for ``gtpo_entropy``.
        ref_logp: Log-probability under the reference policy [B, T], when ``beta`` is not 0.
        old_log_pmax: Read by no row here.
        **options: Overrides of the method's defaults.

    Returns:
        The scalar loss, the negated objective.
    """
    defaults = COMMON | OVERRIDES.get(method, {})
    if unknown := set(options) - set(defaults):
        raise TypeError(f"unknown options {sorted(unknown)}")
    batch = Batch(logits / temperature, tokens, old_logp, mask)
    batch.options = defaults | options
    batch.advantages = [float(a) for a in advantages]
    count, size = len(batch.rows), group_size or len(batch.rows)
    batch.groups = [list(range(start, start + size)) for start in range(0, count, size)]

    if method in ("grpo", "dapo", "8020", "cispo"):
        objective = _token_objective(batch, method)
    elif method in ("gspo", "gmpo"):
        objective = _sequence_objective(batch, method)
    elif method == "gtpo":
        objective = _gtpo_objective(batch)
    elif method == "gtpo_entropy":
        objective = _gtpo_entropy_objective(batch, old_entropy)
    elif method in BALANCED:
        objective = _balanced_objective(batch, BALANCED[method])
    else:
        objective = _credit_objective(batch, method)
    for key in batch.keys:
        objective[key] = objective[key] + batch.options["entropy_coef"] * batch.entropy[key]
        if batch.options["beta"]:
            d = ref_logp[key] - batch.logp[key]
            objective[key] = objective[key] - batch.options["beta"] * (torch.exp(d) - d - 1.0)

    zero = logits.new_zeros(())
    if method in TOKEN_MEAN:
        return -torch.stack([zero, *objective.values()]).sum() / max(len(objective), 1)
    rows = [[objective[i, t] for t in columns] for i, columns in enumerate(batch.rows)]
    return -_mean(_mean(row) if row else zero for row in rows)
