"""What is looked at: a trace, or one step of it, and its token columns in chunks.

Memory grows with the trace's largest part, not with its parts.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from acpo.annotate.annotations import Annotations
from acpo.diagnose.geometry import COLUMNS, TokenScalars
from acpo.errors import ACPOError
from acpo.intervals import student_quantile
from acpo.records import Trace

CHUNK = 1 << 16
ROUNDING = 1e-5
"""By how much float32 statistics may leave their range: log p_max ≤ 0, H ≥ 0."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive usable tokens."""

    columns: dict[str, np.ndarray]  # what was asked for, `[n]` each, float64
    advantage: np.ndarray  # of the token's completion; NaN where it has none
    prompt: np.ndarray  # number of the token's prompt, counted over the trace
    left_out: int  # tokens dropped: a value is missing, not finite or out of range

    def __len__(self) -> int:
        return len(self.advantage)

    @property
    def scalars(self) -> TokenScalars:
        """The columns the closed forms need."""
        values = {name: self.columns[name] for name in COLUMNS}
        return TokenScalars(**{**values, "is_mode": values["is_mode"] > 0})


def annotated(trace: Trace, annotations: Annotations) -> Trace:
    """What a trace holds of the step that annotations are of."""
    annotations.require_step(trace)
    return trace.of_step(annotations.step)


def parts_of(trace: Trace) -> Iterator[Trace]:
    """Each part as a trace of its own."""
    for part in trace.parts:
        yield Trace(trace.path, trace.header, (part,))


def chunks(trace: Trace, *names: str, size: int = CHUNK) -> Iterator[Chunk]:
    """Token columns, part by part; at most one part is in memory."""
    trace.require(*names)
    prompts: dict[str, int] = {}
    for part in parts_of(trace):
        if not len(part):
            continue
        table, rollouts = part.table(*names), part.rollouts
        lengths = rollouts["tokens"].to_numpy()
        advantage = np.repeat(_numbers(rollouts["advantage"]), lengths)
        ids = [prompts.setdefault(key, len(prompts)) for key in rollouts["prompt_id"].to_pylist()]
        prompt = np.repeat(np.array(ids, dtype=np.int64), lengths)
        for start in range(0, len(part), size):
            piece = table.slice(start, size)
            columns = {name: _numbers(piece[name]) for name in names}
            here = slice(start, start + size)
            yield _usable(columns, advantage[here], prompt[here])


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.float64()).to_numpy()


def _usable(columns: dict[str, np.ndarray], advantage: np.ndarray, prompt: np.ndarray) -> Chunk:
    keep = np.ones(len(advantage), dtype=bool)
    for name, values in columns.items():
        keep &= np.isfinite(values)
        if name == "log_pmax":
            keep &= values <= ROUNDING
        elif name in ("entropy", "tail_p2", "tail_p2_logp2"):
            keep &= values >= -ROUNDING
    kept = {name: values[keep] for name, values in columns.items()}
    for name in kept.keys() & {"logp", "log_pmax"}:
        kept[name] = np.minimum(kept[name], 0.0)
    for name in kept.keys() & {"entropy", "tail_p2", "tail_p2_logp2"}:
        kept[name] = np.maximum(kept[name], 0.0)
    return Chunk(kept, advantage[keep], prompt[keep], int(len(keep) - keep.sum()))


BRANCHES = {"all": None, "Â > 0": 1, "Â < 0": -1, "Â = 0": 0}
"""Tokens by the sign of their completion's advantage; `all` are all, those without one too."""

Measure = Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]
SumsByBranch = dict[str, tuple[np.ndarray, np.ndarray]]
"""`[prompts, quantities]` sums and `[prompts]` tokens, of the prompts that are in a branch."""


def sums_by_prompt(
    trace: Trace, names: Sequence[str], measure: Measure
) -> tuple[SumsByBranch, int]:
    """Sums over tokens of what `measure` makes of each; and tokens left out.

    Branches without tokens are left out.
    """
    sums: dict[str, np.ndarray] = {}  # [prompts, quantities and 1]
    left_out = 0
    for chunk in chunks(trace, *names):
        left_out += chunk.left_out
        columns = [*measure(chunk.columns), np.ones(len(chunk))]
        for branch, sign in BRANCHES.items():
            own = np.full(len(chunk), True) if sign is None else np.sign(chunk.advantage) == sign
            new = np.stack([np.bincount(chunk.prompt[own], x[own]) for x in columns], axis=1)
            total = np.zeros((max(len(new), len(sums.get(branch, new))), len(columns)))
            for part in (sums.get(branch, new[:0]), new):
                total[: len(part)] += part
            sums[branch] = total
    found = {branch: own[own[:, -1] > 0] for branch, own in sums.items() if own[:, -1].any()}
    return {branch: (own[:, :-1], own[:, -1]) for branch, own in found.items()}, left_out


def clustered_share(
    within: np.ndarray, total: np.ndarray, *, most: float | np.ndarray = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over all tokens with 95% intervals; tokens of one prompt are not independent.

    From `[prompts, quantities]` counts or sums and `[prompts]` tokens to mean, lower and upper end,
    `[quantities]` each; the ends are NaN with a single prompt. No mean exceeds `most`.
    """
    share = within.sum(0) / total.sum()
    prompts = len(total)
    if prompts < 2:
        nothing = np.full_like(share, np.nan)
        return share, nothing, nothing
    residual = within - share * total[:, None]
    error = np.sqrt(prompts / (prompts - 1) * (residual**2).sum(0)) / total.sum()
    half = student_quantile(prompts - 1) * error
    return share, np.clip(share - half, 0, most), np.clip(share + half, 0, most)


@dataclass
class Survey:
    """What a trace holds, from one pass over it."""

    every_token: bool  # evaluate each branch on every token, whatever its advantage
    tokens: int = 0  # usable ones
    left_out: int = 0
    h_max: float = 0.0  # the largest entropy, nats
    # [aligned?, branch] tokens; branch 0 is A < 0, 1 is A = 0, 2 is A > 0, 3 none.
    counts: np.ndarray = field(default_factory=lambda: np.zeros((2, 4), dtype=np.int64))

    @property
    def aligned(self) -> int:
        return int(self.counts[1].sum())

    @property
    def by_advantage(self) -> bool:
        """Whether advantages say which tokens belong to a branch."""
        return not self.every_token and bool(self.counts[:, :3].sum())

    def mask(self, chunk: Chunk, *, positive: bool) -> np.ndarray:
        """Tokens of a branch; all of them if advantages do not count."""
        if not self.by_advantage:
            return np.ones(len(chunk), dtype=bool)
        return chunk.advantage > 0 if positive else chunk.advantage < 0

    def expected(self, *, aligned: bool, positive: bool | None = None) -> int:
        """Tokens that `mask` will select among the aligned or the mismatched ones."""
        row = self.counts[int(aligned)]
        if positive is None or not self.by_advantage:
            return int(row.sum())
        return int(row[2 if positive else 0])

    def note(self) -> list[str]:
        """What a reader has to know about the tokens that were counted."""
        notes = []
        if self.left_out:
            notes.append(
                f"{self.left_out:,} tokens were left out: their statistics are missing, not "
                "finite or out of range."
            )
        if not self.by_advantage:
            why = "As asked," if self.every_token else "No completion has an advantage, so"
            notes.append(f"{why} each branch is evaluated on every token.")
        return notes


def survey(trace: Trace, *, every_token: bool = False) -> Survey:
    """Count the tokens of a trace and find its largest entropy."""
    result = Survey(every_token)
    for chunk in chunks(trace, *COLUMNS):
        result.left_out += chunk.left_out
        if not len(chunk):
            continue
        result.tokens += len(chunk)
        result.h_max = max(result.h_max, float(chunk.columns["entropy"].max()))
        sign = np.sign(chunk.advantage)
        branch = np.where(np.isnan(sign), 3, sign + 1).astype(np.int64)
        aligned = (chunk.columns["is_mode"] > 0).astype(np.int64)
        result.counts += np.bincount(4 * aligned + branch, minlength=8).reshape(2, 4)
    require_usable(trace, result.tokens, result.left_out)
    return result


def require_usable(trace: Trace, tokens: int, left_out: int) -> None:
    """Refuse a trace of which no token is left."""
    if not tokens:
        raise ACPOError(f"{trace.path}: none of its {left_out} tokens has usable statistics")


def describe(trace: Trace | None, *, pools: bool = True) -> str:
    """The trace in a line: model, data, temperature, completions, tokens.

    What `pools` steps says so.
    """
    if trace is None:
        return "no trace"
    header = trace.header
    named = [
        f"{key} {header[key]}"
        for key in ("model", "task", "data", "temperature")
        if header.get(key) is not None
    ]
    rollouts = sum(part["rollouts"] for part in trace.parts)
    steps = {part["step"] for part in trace.parts}
    if steps - {0}:
        several = f"s {min(steps)} to {max(steps)}, {len(steps)} {'pooled' if pools else 'of them'}"
        named.append("step" + (several if len(steps) > 1 else f" {min(steps)}"))
    return ", ".join([*named, f"{rollouts:,} completions", f"{len(trace):,} tokens"])


def require_temperatures(**temperatures: float) -> None:
    """Refuse gate temperatures that make no gate."""
    for name, value in temperatures.items():
        if not 0 < value < math.inf:
            raise ACPOError(f"{name}={value} must be positive and finite")


def vocabulary(header: dict[str, Any]) -> int:
    """The header's `vocab_size`."""
    size = header.get("vocab_size")
    if type(size) is not int or not 1 <= size < 2**31:
        raise ACPOError(f"the trace's vocab_size={size!r:.50} is no vocabulary: give --support")
    return size
