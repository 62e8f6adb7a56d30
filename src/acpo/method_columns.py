"""What a method makes of every token of a trace: its advantage, its credit, its update."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.objectives import METHODS, Method, TokenStats, get_method, group_advantages
from acpo.objectives.gates import TokenInputs, segment_mean
from acpo.objectives.loss import TokenCoefficients, token_coefficients
from acpo.objectives.method import entropy_maximum
from acpo.records import Trace
from acpo.scoring.credit import token_credit

NEEDED = ("token_id", "logp", "log_pmax", "is_mode", "entropy")
OPTIONAL = ("old_logp", "tail_p2", "tail_p2_logp")


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


def methods_to_show(trace: Trace, names: str | None) -> list[Method]:
    """The methods named, with commas; without a word, SAPO and the trace's own (or ACPO).

    A trace that was not scored can show none, unless one is named: then `method_columns` refuses.
    """
    if names is None:
        own = trace.header.get("method")
        default = f"sapo,{own if isinstance(own, str) and own in METHODS else 'acpo'}"
        names = default if trace.columns >= set(NEEDED) else ""
    wanted = dict.fromkeys(name.strip() for name in names.split(","))
    return [traced_method(trace, name) for name in wanted if name]


def traced_method(trace: Trace, name: str) -> Method:
    """A method with the options it was trained with, where the trace is of a run of it."""
    options = trace.header.get("method_options") if trace.header.get("method") == name else None
    return get_method(name, **options) if isinstance(options, dict) else get_method(name)


def method_columns(trace: Trace, method: str | Method) -> MethodColumns:
    """A method's columns; all completions of one training step count as one mini-batch.

    Completions with numbers that are not finite, as of a policy that diverged, have no columns and
    count for nobody's.

    Raises:
        ACPOError: The trace lacks a column, or the method needs what the trace does not hold.
    """
    method = method if isinstance(method, Method) else traced_method(trace, method)
    columns = _columns(trace)
    rollout = {"old_entropy", "old_log_pmax"} & set(method.shaping.group_needs)
    on_policy = (columns["logp"] == columns["old_logp"]) | columns["logp"].isnan()
    if rollout and not on_policy.all():
        raise ACPOError(
            f"method {method.name!r} needs the mode or entropy of the policy that sampled, and "
            f"{trace.path} was scored with another: leave it out of --methods"
        )
    out = MethodColumns(*(np.full(len(trace), np.nan, dtype=np.float32) for _ in range(3)))
    facts = {name: trace.rollouts[name].to_pylist() for name in ("advantage", "reward")}
    alike = _stored_scale(trace) == method.advantage_scale
    lengths = np.diff(trace.starts)
    for step, groups in _groups_by_step(trace).items():
        rows = [row for group in groups for row in group]
        where = np.concatenate([np.arange(*trace.starts[row : row + 2]) for row in rows])
        if not len(where):
            continue
        sizes = sorted({len(group) for group in groups})
        if method.shaping.group_needs and len(sizes) > 1:
            raise ACPOError(
                f"method {method.name!r} compares groups of one size, and step {step} of "
                f"{trace.path} has groups of {sizes[0]} and of {sizes[-1]}: leave it out of "
                "--methods"
            )
        result = _step_columns(
            method,
            batch={name: values[where] for name, values in columns.items()},
            lengths=lengths[rows],
            advantages=torch.cat(
                [_advantages(facts, method, group, scaled_alike=alike) for group in groups]
            ),
            group_size=sizes[0],
        )
        for target, values in zip(out, result, strict=True):
            target[where] = values.numpy()
    return out


def _columns(trace: Trace) -> dict[str, Tensor]:
    trace.require(*NEEDED)
    names = (*NEEDED, *(name for name in OPTIONAL if name in trace.columns))
    kinds = {"is_mode": bool, "token_id": np.int64}
    columns = {
        name: torch.from_numpy(np.array(values, dtype=kinds.get(name, np.float64)))
        for name, values in trace.tokens(*names).items()
    }
    columns.setdefault("old_logp", columns["logp"])
    return columns


def _groups_by_step(trace: Trace) -> dict[int, list[list[int]]]:
    """Rows of the completions, by step and by prompt."""
    steps: dict[int, dict[str, list[int]]] = {}
    keys = (trace.rollouts[name].to_pylist() for name in ("step", "prompt_id"))
    for row, (step, prompt_id) in enumerate(zip(*keys, strict=True)):
        steps.setdefault(step, {}).setdefault(prompt_id, []).append(row)
    return {step: list(groups.values()) for step, groups in steps.items()}


def _advantages(
    facts: dict[str, list[float | None]], method: Method, rows: list[int], *, scaled_alike: bool
) -> Tensor:
    """One per completion of a group: the trace's, or made of the rewards as the method scales them.

    The trace's are as its own method scales them. A completion with neither gets 0, as in training.
    """
    stored = [facts["advantage"][row] for row in rows]
    if scaled_alike and all(a is not None and np.isfinite(a) for a in stored):
        return torch.tensor(stored, dtype=torch.float64)
    rewards = [facts["reward"][row] for row in rows]
    return group_advantages(rewards, len(rows), scale=method.advantage_scale).double()


def _stored_scale(trace: Trace) -> str:
    """How the trace's advantages are scaled; as most are, if it does not say by what method."""
    own = METHODS.get(str(trace.header.get("method")))
    return "std" if own is None else own.advantage_scale


def _step_columns(
    method: Method,
    *,
    batch: dict[str, Tensor],
    lengths: np.ndarray,
    advantages: Tensor,
    group_size: int,
) -> tuple[Tensor, Tensor, Tensor]:
    stats = TokenStats(batch["logp"], batch["log_pmax"], batch["is_mode"], batch["entropy"])
    credit, of_token, marks = token_credit(
        method,
        stats=stats,
        old_logp=batch["old_logp"],
        tokens=batch["token_id"],
        lengths=lengths,
        advantages=advantages,
        group_size=group_size,
    )
    finite = ~credit.isnan()
    ids = torch.arange(len(lengths)).repeat_interleave(torch.from_numpy(lengths))
    inputs = TokenInputs(stats, batch["old_logp"], of_token, segment_mean(ids), method.options)
    highest = entropy_maximum(method, stats.entropy.where(finite, 0.0), finite)
    coefficients = token_coefficients(method, inputs._replace(entropy_max=highest, marks=marks))
    update = own_update(coefficients, stats, batch)
    return credit, of_token, update.where(finite, torch.nan)


def own_update(c: TokenCoefficients, stats: TokenStats, sums: dict[str, Tensor]) -> Tensor:
    """⟨∇J, d⟩ / |d|² with d = e_y - p: a + bm on a sampled mode.

    Beside another mode, ⟨e_v* - p, d⟩ = Σp² - p_y - m, and the entropy's direction has
    ⟨-p(log p + H), d⟩ = Σp²(log p + H) - p_y(log p_y + H): both take sums over the vocabulary,
    which `tail_p2` and `tail_p2_logp` hold without the mode's term. A sampled mode's own terms are
    taken together, p(p - 1): apart, they would cancel all that is left near p = 1. What is shared
    with the likeliest tokens (simko) takes their probabilities, which no trace holds: unknown, NaN.
    """
    unknown = torch.full_like(stats.logp, torch.nan)
    p, m, entropy = stats.logp.exp(), stats.log_pmax.exp(), stats.entropy
    tail, tail_logp = (sums.get(name, unknown) for name in ("tail_p2", "tail_p2_logp"))
    square = stats.logp.expm1() ** 2 + tail + (m**2 - p**2)
    mode = torch.where(stats.is_mode, 1.0, (tail + m**2 - p - m) / square)
    own, top = stats.logp + entropy, stats.log_pmax + entropy
    spread = tail_logp + tail * entropy + (m**2 * top - p**2 * own) + p * stats.logp.expm1() * own
    spread = spread / square
    along_mode = torch.where(c.b == 0, 0.0, c.b * m * mode)
    along_entropy = torch.where((c.h == 0) | (square <= 0), 0.0, c.h * spread)
    update = c.a + along_mode + along_entropy
    return update if c.top is None else update.where((c.top == 0).all(-1), torch.nan)
