"""What a method makes of every token of a trace: its advantage, its credit, its update.

The maths is `acpo.objectives`'; here it meets the columns of a trace. All completions of one
training step count as one mini-batch.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives import Method, TokenStats, get_method, group_advantages, token_advantages
from acpo.objectives.batch import entropy_maximum
from acpo.objectives.gates import segment_mean
from acpo.objectives.loss import TokenCoefficients, evaluate_tokens, token_coefficients
from acpo.records import Trace

NEEDED = ("token_id", "logp", "log_pmax", "is_mode", "entropy")
TAILS = ("tail_p2", "tail_p2_logp")


class MethodColumns(NamedTuple):
    """Per token of the trace.

    Attributes:
        credit: The multiplier c.
        advantage: A, after the method's shaping.
        update: The component of the logit gradient ∇J along the token's own direction e_y - p.
            Positive raises the token's probability. NaN where the trace lacks the sums it takes.
    """

    credit: np.ndarray
    advantage: np.ndarray
    update: np.ndarray


def replayable(trace: Trace) -> bool:
    """Whether the trace has the columns a replay takes."""
    return trace.columns >= set(NEEDED)


def replay(trace: Trace, method: str | Method) -> MethodColumns:
    """A method's columns, for every token of a trace.

    Raises:
        ACPOError: The trace lacks a column, or the method needs what no trace holds.
    """
    method = get_method(method)
    trace.require(*NEEDED)
    columns = _columns(trace)
    step_of = trace.rollouts["step"].to_numpy()
    out = MethodColumns(*(np.full(len(trace), np.nan, dtype=np.float32) for _ in range(3)))
    sequence_advantages = _sequence_advantages(trace, method)
    owner = np.repeat(np.arange(len(step_of)), np.diff(trace.starts))
    for step in np.unique(step_of):
        rows = np.flatnonzero(step_of == step)
        where = np.flatnonzero(np.isin(owner, rows))
        if not len(where):
            continue
        batch = {name: values[where] for name, values in columns.items()}
        ids = torch.from_numpy(owner[where])
        advantages = _token_advantages(method, trace, batch, ids, sequence_advantages)
        result = _replay_step(method, batch, ids, advantages)
        for target, values in zip(out, result, strict=True):
            target[where] = values.numpy()
    return out


def _columns(trace: Trace) -> dict[str, Tensor]:
    optional = [name for name in ("old_logp", *TAILS) if name in trace.columns]
    columns = {
        name: torch.from_numpy(np.array(values, dtype=bool if name == "is_mode" else np.float64))
        for name, values in trace.tokens(*NEEDED, *optional).items()
    }
    columns.setdefault("old_logp", columns["logp"])
    for name in ("logp", "old_logp", "log_pmax", "entropy"):
        bad = torch.isfinite(columns[name]).logical_not().sum()
        if bad:
            raise ACPOError(f"{trace.path}: {name} is not finite at {int(bad)} token(s)")
    return columns


def _groups(trace: Trace) -> dict[tuple[int, str], list[int]]:
    """Rows of the completions that were sampled for one prompt at one step."""
    groups: dict[tuple[int, str], list[int]] = {}
    keys = zip(
        trace.rollouts["step"].to_pylist(), trace.rollouts["prompt_id"].to_pylist(), strict=True
    )
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return groups


def _sequence_advantages(trace: Trace, method: Method) -> Tensor:
    """One per completion: the trace's own, or from the rewards where the method scales otherwise.

    A completion with neither reward nor advantage gets 0, as in training.
    """
    stored = trace.rollouts["advantage"].to_pylist()
    rewards = trace.rollouts["reward"].to_pylist()
    advantages = torch.zeros(len(stored), dtype=torch.float64)
    for rows in _groups(trace).values():
        known = [stored[row] for row in rows]
        if method.advantage_scale != "std" or any(a is None for a in known):
            values = torch.tensor(
                [float("nan") if rewards[r] is None else rewards[r] for r in rows]
            )
            made = group_advantages(values.double(), len(rows), scale=method.advantage_scale)
        else:
            made = torch.tensor(known, dtype=torch.float64)
        advantages[rows] = made.nan_to_num(0.0)
    return advantages


def _token_advantages(
    method: Method, trace: Trace, batch: dict[str, Tensor], ids: Tensor, of_sequence: Tensor
) -> Tensor:
    if method.shaping in (None, "top_entropy"):  # local to the token, given all of them
        return token_advantages(
            method,
            advantages=of_sequence[ids],
            mask=torch.ones(len(ids), 1, dtype=torch.bool),
            entropy=batch["entropy"][:, None],
        )[:, 0]
    if method.shaping == "entropy_reward" and not torch.equal(batch["logp"], batch["old_logp"]):
        raise ACPOError(
            f"method {method.name!r} needs the entropy of the policy that sampled, and the trace "
            "was scored with another: leave it out of --methods"
        )
    shaped = torch.zeros(len(ids), dtype=torch.float64)
    for rows in _groups(trace).values():
        where = [torch.arange(*torch.searchsorted(ids, torch.tensor([r, r + 1]))) for r in rows]
        longest = max(map(len, where))
        if not longest:
            continue
        positions = torch.full((len(rows), longest), -1)
        for row, at in enumerate(where):
            positions[row, : len(at)] = at
        mask = positions >= 0
        entropy = batch["entropy"][positions] * mask
        shaped[positions[mask]] = token_advantages(
            method,
            advantages=of_sequence[rows],
            mask=mask,
            entropy=entropy,
            old_entropy=entropy,
            tokens=batch["token_id"][positions].long(),
            group_size=len(rows),
        )[mask]
    return shaped


def _replay_step(
    method: Method, batch: dict[str, Tensor], ids: Tensor, advantages: Tensor
) -> MethodColumns:
    stats = TokenStats(batch["logp"], batch["log_pmax"], batch["is_mode"], batch["entropy"])
    everywhere = torch.ones_like(batch["is_mode"])
    maximum = entropy_maximum(method, batch["entropy"], everywhere)
    common = {
        "stats": stats,
        "old_logp": batch["old_logp"],
        "advantages": advantages,
        "sequence_mean": segment_mean(ids),
        "entropy_max": maximum,
    }
    _, credit = evaluate_tokens(method, **common)
    coefficients = token_coefficients(method, **common)
    return MethodColumns(credit.value, advantages, own_update(coefficients, stats, batch))


def own_update(c: TokenCoefficients, stats: TokenStats, sums: dict[str, Tensor]) -> Tensor:
    """⟨∇J, d⟩ / |d|² with d = e_y - p: a + bm on a sampled mode.

    Beside another mode, ⟨e_v* - p, d⟩ = Σp² - p_y - m, and the entropy's direction has
    ⟨-p(log p + H), d⟩ = Σp²(log p + H) - p_y(log p_y + H): both take sums over the vocabulary,
    which `tail_p2` and `tail_p2_logp` hold without the mode's term.
    """
    unknown = torch.full_like(stats.logp, torch.nan)
    p, m, entropy = stats.logp.exp(), stats.log_pmax.exp(), stats.entropy
    p2 = sums.get("tail_p2", unknown) + m**2
    p2_logp = sums.get("tail_p2_logp", unknown) + m**2 * stats.log_pmax
    square = 1 - 2 * p + p2
    mode = torch.where(stats.is_mode, 1.0, (p2 - p - m) / square)
    spread = (p2_logp + p2 * entropy - p * (stats.logp + entropy)) / square
    along_mode = torch.where(c.b == 0, 0.0, c.b * m * mode)
    along_entropy = torch.where((c.h == 0) | (square <= 0), 0.0, c.h * spread)
    return c.a + along_mode + along_entropy
