"""The numbers of the first-error analysis as sentences, tables and rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from acpo.annotate.pairs import Trajectory
from acpo.annotate.settled import AlignedPair, Evidence
from acpo.diagnose.clusters import Effect, cluster_means, interval
from acpo.diagnose.finding import Row, Table, number

if TYPE_CHECKING:
    from acpo.diagnose.first_error import Aligned

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

Effects = Mapping[tuple[str, str], Effect]
"""By quantity and kind."""


def evidence(pairs: Sequence[AlignedPair]) -> str:
    """Who vouches for the places."""
    counts = Counter(pair.evidence for pair in pairs)
    said = {
        Evidence.VERIFIED: "verified by a person",
        Evidence.COMPUTED: "computed by the task's checker",
        Evidence.PROPOSED: "proposed by a model and verified by NOBODY",
    }
    parts = [f"{counts[kind]} {text}" for kind, text in said.items() if counts[kind]]
    return f"places of {len(pairs)} pairs: {', '.join(parts)}"


def facts(
    pairs: Sequence[AlignedPair],
    outcomes: dict[str, int],
    effects: Effects,
) -> list[str]:
    """What was compared, and whether the quantities rise."""
    left_out = {name: n for name, n in outcomes.items() if name not in list(Evidence)}
    facts = [
        f"{len(pairs)} pairs of {_count([p.wrong for p in pairs])} wrong and "
        f"{_count([p.right for p in pairs])} right completions, from "
        f"{len({p.prompt_id for p in pairs})} prompts. Pairs share completions: the independent "
        "units are the prompts."
    ]
    if left_out:
        listed = ", ".join(f"{n} {name}" for name, n in left_out.items())
        facts.append(f"Pairs left out: {listed}.")
    for name in QUANTITIES:
        facts.append(f"{name}: {_sentence(effects[name, 'change'])}")
    few = effects["entropy", "change"].prompts
    if few < 10:
        facts.append(f"With {few} prompts the bootstrap intervals are too narrow; the test is not.")
    return facts


def _sentence(found: Effect) -> str:
    """The answer to the question, in words that follow from the numbers."""
    if found.p_value >= 0.05:
        answer = "no rise after the error is shown"
    else:
        answer = "it " + ("rises" if found.mean > 0 else "falls") + " after the error"
    return (
        f"{answer}: after minus before, wrong minus right, {found.mean:+.4f} "
        f"[{found.low:+.4f}, {found.high:+.4f}] over {found.pairs} pairs of {found.prompts} "
        f"prompts, {_p(found)}, d = {number(found.size)} [{number(found.size_low)}, "
        f"{number(found.size_high)}]."
    )


def _p(found: Effect) -> str:
    return f"p = {found.p_value:.2g} ({'exact' if found.exact else 'Monte Carlo'} sign flips)"


def _count(trajectories: Sequence[Trajectory]) -> str:
    """How many, and how many different texts."""
    rows = {trajectory.row: trajectory for trajectory in trajectories}
    texts = {(t.prompt_id, t.completion) for t in rows.values()}
    return f"{len(rows)} ({len(texts)} different)"


def effect_table(effects: Effects) -> Table:
    """Every effect, for the summary."""
    head = ("quantity", "effect", "pairs", "prompts", "mean [95%]", "d [95%]", "p")
    rows = [
        (
            name,
            EFFECTS[what],
            str(found.pairs),
            str(found.prompts),
            f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]",
            f"{number(found.size)} [{number(found.size_low)}, {number(found.size_high)}]",
            f"{found.p_value:.2g}",
        )
        for (name, what), found in effects.items()
    ]
    return Table("Effects, prompts counting equally", head, rows)


def effect_rows(effects: Effects) -> list[Row]:
    """Every effect, for the CSV."""
    return [
        {"quantity": name, "effect": EFFECTS[what], **found._asdict()}
        for (name, what), found in effects.items()
    ]


def pair_rows(
    pairs: Sequence[AlignedPair], measured: Mapping[str, Mapping[str, np.ndarray]]
) -> list[Row]:
    """Every pair with its places and its own effects."""
    return [
        {
            "prompt_id": pair.prompt_id,
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


def offset_rows(
    aligned: "Mapping[str, Aligned]", prompts: Sequence[str], *, seed: int
) -> list[Row]:
    """One row per quantity and offset: both sides over pairs, their difference over prompts."""
    rows: list[Row] = []
    for quantity, one in aligned.items():
        for column, offset in enumerate(one.offsets):
            row = _offset_row(one, column, prompts, seed)
            if row is not None:
                rows.append({"quantity": quantity, "t": int(offset), **row})
    return rows


def _offset_row(one: "Aligned", column: int, prompts: Sequence[str], seed: int) -> Row | None:
    wrong, right = one.wrong[:, column], one.right[:, column]
    both = np.isfinite(wrong) & np.isfinite(right)
    if not both.any():
        return None
    difference = np.where(both, wrong - right, np.nan)
    means = cluster_means(difference, prompts)
    low, high = interval(difference, prompts, seed=seed)
    return {
        "pairs": int(both.sum()),
        "prompts": len(means),
        "wrong_mean": float(wrong[both].mean()),
        "wrong_std": _std(wrong[both]),
        "right_mean": float(right[both].mean()),
        "right_std": _std(right[both]),
        "difference": float(means.mean()),
        "low": low,
        "high": high,
    }


def _std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else np.nan
