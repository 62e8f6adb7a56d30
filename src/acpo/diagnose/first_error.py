"""Figures "Entropy around the first reasoning error" and "Full-trajectory entropy profiles"."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from acpo.annotate.annotations import Annotations
from acpo.annotate.pairs import Trajectory, select
from acpo.annotate.settled import Accept, AlignedPair, aligned_pairs
from acpo.diagnose import first_error_tables as tables
from acpo.diagnose.clusters import effect
from acpo.diagnose.finding import Finding, Row, escape
from acpo.diagnose.first_error_figures import aligned_figure, profile_figure
from acpo.diagnose.source import describe
from acpo.errors import ACPOError
from acpo.records import Trace

QUANTITIES = tuple(tables.QUANTITIES)


@dataclass(frozen=True)
class Aligned:
    """One quantity of all pairs, centred at the error.

    Attributes:
        offsets: `[T]` tokens from the error.
        wrong: `[pairs, T]`, NaN where the completion has no token.
        right: `[pairs, T]`, likewise.
    """

    offsets: np.ndarray
    wrong: np.ndarray
    right: np.ndarray


@dataclass(frozen=True)
class Settings:
    """How profiles are compared.

    Attributes:
        window: Tokens on either side of the error.
        every: Only offsets that are multiples of it are compared.
        smooth: Tokens a full profile is averaged over.
        profiles: Full profiles drawn, one prompt each.
        seed: Of the test and the intervals.
    """

    window: int = 32
    every: int = 1
    smooth: int = 16
    profiles: int = 8
    seed: int = 0


def first_error(
    trace: Trace,
    annotations: Annotations,
    *,
    accept: Accept = Accept.SOUND,
    settings: Settings | None = None,
) -> list[Finding]:
    """Compare wrong with right completions around the first error of the wrong ones.

    Args:
        trace: With the token columns `entropy`, `delta`, `start` and `end`.
        annotations: Made from it.
        accept: Which places count.
        settings: How profiles are compared.

    Returns:
        The profiles around the error with the test, and the full profiles.

    Raises:
        ACPOError: No place counts, or nothing lies on both sides of an error.
    """
    settings = settings or Settings()
    trace.require(*QUANTITIES)
    # Further away nothing has a token, and every offset takes memory.
    longest = int(np.diff(trace.starts).max())
    settings = replace(settings, window=min(settings.window, longest))
    selection = select(trace, step=annotations.step)
    pairs, outcomes = aligned_pairs(selection, annotations, accept)
    columns = trace.tokens(*QUANTITIES)
    aligned = {name: align(trace, pairs, columns[name], settings.window) for name in QUANTITIES}
    measured = {name: measure(aligned[name], settings.every) for name in QUANTITIES}
    if not np.isfinite(measured["entropy"]["change"]).any():
        raise ACPOError(
            f"--window {settings.window} --every {settings.every}: no pair has tokens on both "
            "sides of its error"
        )
    source = f"{describe(trace)}; step {selection.step}; {tables.evidence(pairs)}"
    around = _around(pairs, aligned, measured, settings, source, outcomes)
    change = measured["entropy"]["change"]
    return [around, _profiles(trace, pairs, columns, change, settings, source)]


def _around(
    pairs: Sequence[AlignedPair],
    aligned: dict[str, Aligned],
    measured: dict[str, dict[str, np.ndarray]],
    settings: Settings,
    source: str,
    outcomes: dict[str, int],
) -> Finding:
    prompts = [pair.prompt_id for pair in pairs]
    effects = {
        (name, what): effect(values, prompts, seed=settings.seed)
        for name, kinds in measured.items()
        for what, values in kinds.items()
    }
    change = measured["entropy"]["change"]
    shown = representative(_of_the_fullest(change, aligned["entropy"], settings.every))
    rows = tables.offset_rows(aligned, prompts, seed=settings.seed)
    return Finding(
        name="first-error",
        title="Entropy around the first reasoning error",
        source=source,
        reading=_reading(settings, pairs[shown]),
        facts=tables.facts(pairs, outcomes, effects),
        tables=[tables.effect_table(effects)],
        rows=rows,
        figure=aligned_figure(rows, aligned, shown),
        extra={
            "effects": tables.effect_rows(effects),
            "pairs": tables.pair_rows(pairs, measured),
        },
    )


def align(trace: Trace, pairs: Sequence[AlignedPair], values: np.ndarray, window: int) -> Aligned:
    """One quantity of every pair around its error."""
    offsets = np.arange(-window, window + 1)
    wrong = np.full((len(pairs), len(offsets)), np.nan)
    right = np.full_like(wrong, np.nan)
    for row, pair in enumerate(pairs):
        sides = ((wrong, pair.wrong, pair.error), (right, pair.right, pair.corresponding))
        for target, trajectory, place in sides:
            own = of(trace, trajectory, values)
            at = place.span.first + offsets
            there = (at >= 0) & (at < len(own))
            target[row, there] = own[at[there]]
    return Aligned(offsets, wrong, right)


def of(trace: Trace, trajectory: Trajectory, values: np.ndarray) -> np.ndarray:
    """A completion's part of a column."""
    return values[trace.starts[trajectory.row] : trace.starts[trajectory.row + 1]]


def compared(aligned: Aligned, every: int) -> np.ndarray:
    """`[pairs, T]` where both completions have a token."""
    both = np.isfinite(aligned.wrong) & np.isfinite(aligned.right)
    return both & (aligned.offsets % every == 0)


def measure(aligned: Aligned, every: int) -> dict[str, np.ndarray]:
    """`EFFECTS` of every pair; NaN where a side has no token.

    Only offsets that both completions have are compared, so that the difference is always one
    between tokens at the same distance from the error.
    """
    both = compared(aligned, every)
    difference = aligned.wrong - aligned.right
    before, after = both & (aligned.offsets < 0), both & (aligned.offsets > 0)

    def change(values: np.ndarray) -> np.ndarray:
        return _mean(values, after) - _mean(values, before)

    return {
        "change": change(difference),
        "before": _mean(difference, before),
        "at": _mean(difference, both & (aligned.offsets == 0)),
        "after": _mean(difference, after),
        "wrong": change(aligned.wrong),
        "right": change(aligned.right),
    }


def _mean(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """`[pairs]` means over the offsets in `where`; NaN without any."""
    count = where.sum(axis=1)
    total = np.where(where, values, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)


def representative(values: np.ndarray) -> int:
    """The pair in the middle: the lower median, the first of those that tie."""
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    return int(order[(len(order) - 1) // 2])


def _of_the_fullest(change: np.ndarray, aligned: Aligned, every: int) -> np.ndarray:
    """The changes of the pairs with the most offsets to compare, NaN elsewhere."""
    offsets = np.where(np.isfinite(change), compared(aligned, every).sum(axis=1), 0)
    return np.where(offsets == offsets.max(), change, np.nan)


def _reading(settings: Settings, shown: AlignedPair) -> str:
    only = f", multiples of {settings.every} only" if settings.every > 1 else ""
    return (
        "Wrong and right completions of the same prompt, centred at t = 0: the first token of the "
        "wrong one's first error, and of what corresponds to it in the right one. (a, d): of the "
        "pairs with the most offsets to compare, the one with the median change (prompt "
        f"{escape(shown.prompt_id[:40])}, wrong {shown.wrong.sample}, right "
        f"{shown.right.sample}). (b, e): mean ± standard deviation over pairs. (c, f): wrong minus "
        "right at each offset, mean over prompts with its 95% interval. Before: t = "
        f"-{settings.window} to -1, after: t = 1 to {settings.window}{only}, wherever both "
        "completions have a token."
    )


def smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """A centred moving average, over fewer tokens at the ends."""
    if not len(values):
        return values
    kernel = np.ones(min(width, len(values)))
    total = np.convolve(values, kernel, mode="same")
    return total / np.convolve(np.ones(len(values)), kernel, mode="same")


def _profiles(
    trace: Trace,
    pairs: Sequence[AlignedPair],
    columns: dict[str, np.ndarray],
    change: np.ndarray,
    settings: Settings,
    source: str,
) -> Finding:
    chosen = [pairs[row] for row in _one_each(pairs, change)[: settings.profiles]]
    rows = [
        row
        for name in QUANTITIES
        for pair in chosen
        for row in _profile_rows(trace, pair, name, columns[name], settings.smooth)
    ]
    return Finding(
        name="first-error-profiles",
        title="Full-trajectory entropy profiles",
        source=source,
        reading=(
            f"Entropy and δ over whole completions, averaged over {settings.smooth} tokens, of one "
            f"pair from each of the first {len(chosen)} prompts: the one whose change is the "
            "median of its prompt. Dotted lines: the first error of the wrong completion and the "
            "corresponding token of the right one. Profiles illustrate; the test is in "
            "first-error.md."
        ),
        facts=[f"{len(chosen)} of {len({pair.prompt_id for pair in pairs})} prompts are drawn."],
        rows=rows,
        figure=profile_figure(rows),
    )


def _profile_rows(
    trace: Trace, pair: AlignedPair, quantity: str, values: np.ndarray, width: int
) -> list[Row]:
    rows: list[Row] = []
    sides = (("wrong", pair.wrong, pair.error), ("right", pair.right, pair.corresponding))
    for side, trajectory, place in sides:
        own = of(trace, trajectory, values)
        for token, (value, level) in enumerate(zip(own, smoothed(own, width), strict=True)):
            rows.append(
                {
                    "quantity": quantity,
                    "prompt_id": pair.prompt_id,
                    "side": side,
                    "sample": trajectory.sample,
                    "error": place.span.first,
                    "token": token,
                    "value": float(value),
                    "smoothed": float(level),
                }
            )
    return rows


def _one_each(pairs: Sequence[AlignedPair], change: np.ndarray) -> list[int]:
    """The median pair of every prompt that has one with tokens on both sides, in order."""
    members: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        if np.isfinite(change[row]):
            members.setdefault(pair.prompt_id, []).append(row)
    return [rows[representative(change[rows])] for rows in members.values()]
