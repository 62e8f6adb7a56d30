"""Pairs of completions centred at the first error of the wrong one, as numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acpo.annotate.evidence import AlignedPair
from acpo.diagnose.clusters import cluster_means, interval
from acpo.diagnose.report import Row

FEWEST_PROMPTS = 5
"""Offsets that fewer prompts have are not drawn; or than half of the most, where that is less."""

QUANTITIES = {"entropy": "entropy (nats)", "delta": "δ = 1 - p_max"}

EFFECTS = {
    "change": "after minus before, wrong minus right",
    "before": "before, wrong minus right",
    "at": "at the error, wrong minus right",
    "after": "after, wrong minus right",
    "wrong": "after minus before, wrong",
    "right": "after minus before, right",
}
"""What is measured on each pair. The first is the question; the others say what it is made of."""


@dataclass(frozen=True)
class Aligned:
    """One quantity of all pairs, centred at the error."""

    offsets: np.ndarray  # [T] tokens from the error
    wrong: np.ndarray  # [pairs, T], NaN where the completion has no token
    right: np.ndarray  # likewise


def align(pairs: Sequence[AlignedPair], values: np.ndarray, window: int) -> Aligned:
    """One quantity of every pair around its error."""
    offsets = np.arange(-window, window + 1)
    wrong = np.full((len(pairs), len(offsets)), np.nan)
    right = np.full_like(wrong, np.nan)
    for row, pair in enumerate(pairs):
        for target, (trajectory, place) in zip((wrong, right), pair.sides, strict=True):
            own = values[trajectory.rows]
            at = place.span.first + offsets
            there = (at >= 0) & (at < len(own))
            target[row, there] = own[at[there]]
    return Aligned(offsets, wrong, right)


def compared(aligned: Aligned) -> np.ndarray:
    """`[pairs, T]` where both completions have a token."""
    return np.isfinite(aligned.wrong) & np.isfinite(aligned.right)


def measure(aligned: Aligned) -> dict[str, np.ndarray]:
    """`EFFECTS` of every pair; NaN where a side has no token.

    Only offsets that both completions have are compared, so that the difference is always one
    between tokens at the same distance from the error.
    """
    both = compared(aligned)
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


def pair_rows(
    pairs: Sequence[AlignedPair], measured: Mapping[str, Mapping[str, np.ndarray]]
) -> list[Row]:
    """Every pair with its places and its own effects."""
    return [
        {
            "prompt_id": pair.wrong.prompt_id,
            "wrong": pair.wrong.sample,
            "right": pair.right.sample,
            "error": pair.error.span.first,
            "corresponding": pair.corresponding.span.first,
            "evidence": str(pair.evidence),
            **{
                f"{name} {what}": float(values[row])
                for name, kinds in measured.items()
                for what, values in kinds.items()
            },
        }
        for row, pair in enumerate(pairs)
    ]


def offset_rows(aligned: Mapping[str, Aligned], prompts: Sequence[str]) -> list[Row]:
    """One row per quantity and offset: both sides over pairs, their difference over prompts."""
    rows: list[dict[str, Any]] = []
    for quantity, one in aligned.items():
        for column, offset in enumerate(one.offsets):
            row = _offset_row(one, column, prompts)
            if row is not None:
                rows.append({"quantity": quantity, "t": int(offset), **row})
    most = max((row["prompts"] for row in rows), default=0)
    return [{**row, "shown": int(row["prompts"] >= min(FEWEST_PROMPTS, most / 2))} for row in rows]


def shared_prefixes(pairs: Sequence[AlignedPair]) -> int:
    """Pairs whose completions are the same up to the error: there they agree by construction."""
    before = [
        {one.completion[: int(one.starts[place.span.first])] for one, place in pair.sides}
        for pair in pairs
    ]
    return sum(len(texts) == 1 for texts in before)


def _offset_row(one: Aligned, column: int, prompts: Sequence[str]) -> Row | None:
    wrong, right = one.wrong[:, column], one.right[:, column]
    both = np.isfinite(wrong) & np.isfinite(right)
    if not both.any():
        return None
    difference = np.where(both, wrong - right, np.nan)
    means = cluster_means(difference, prompts)
    low, high = interval(difference, prompts)
    row: dict[str, Any] = {"pairs": int(both.sum()), "prompts": len(means)}
    for side, values in (("wrong", wrong[both]), ("right", right[both])):
        row[f"{side}_mean"] = float(values.mean())
        row[f"{side}_std"] = float(values.std(ddof=1)) if len(values) > 1 else np.nan
    return row | {"difference": float(means.mean()), "low": low, "high": high}


def representative(values: np.ndarray) -> int:
    """The pair in the middle: the lower median, the first of those that tie."""
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    return int(order[(len(order) - 1) // 2])


def of_the_fullest(change: np.ndarray, aligned: Aligned) -> np.ndarray:
    """The changes of the pairs with the most offsets to compare, NaN elsewhere."""
    offsets = np.where(np.isfinite(change), compared(aligned).sum(axis=1), 0)
    return np.where(offsets == offsets.max(), change, np.nan)


def smoothed(values: np.ndarray, width: int, cut: int) -> np.ndarray:
    """The mean of each value and those before it, `width` in all, none of them from before `cut`.

    An average that looks ahead, or back over the error, lets curves part where their values do not.
    Values that are not finite count for nothing; without another there is no mean, NaN.
    """
    at = np.arange(len(values))
    first = np.maximum(at - width + 1, np.where(at >= cut, cut, 0))
    known = np.isfinite(values)
    total, count = (
        np.concatenate([[0], np.cumsum(x)]) for x in (np.where(known, values, 0.0), known)
    )
    total, count = total[at + 1] - total[first], count[at + 1] - count[first]
    return np.divide(total, count, out=np.full(len(at), np.nan), where=count > 0)


def profile_rows(pair: AlignedPair, quantity: str, values: np.ndarray, width: int) -> list[Row]:
    rows: list[Row] = []
    for side, (trajectory, place) in zip(("wrong", "right"), pair.sides, strict=True):
        own = values[trajectory.rows]
        smooth = smoothed(own, width, place.span.first)
        fixed: Row = {"quantity": quantity, "prompt_id": trajectory.prompt_id, "side": side}
        at = {"sample": trajectory.sample, "error": place.span.first}
        for token, (value, level) in enumerate(zip(own, smooth, strict=True)):
            levels = {"token": token, "value": float(value), "smoothed": float(level)}
            rows.append({**fixed, **at, **levels})
    return rows


def one_of_each_prompt(pairs: Sequence[AlignedPair], change: np.ndarray) -> list[int]:
    """The median pair of every prompt that has one with tokens on both sides, in order."""
    members: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        if np.isfinite(change[row]):
            members.setdefault(pair.wrong.prompt_id, []).append(row)
    return [rows[representative(change[rows])] for rows in members.values()]
