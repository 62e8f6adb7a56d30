"""Figures "Entropy around the first reasoning error" and "Full-trajectory entropy profiles"."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acpo.annotate.annotations import Annotations
from acpo.annotate.evidence import Accept, AlignedPair, Evidence, aligned_pairs
from acpo.annotate.pairs import Trajectory, select
from acpo.diagnose.clusters import Effect, effect
from acpo.diagnose.error_alignment import (
    EFFECTS,
    QUANTITIES,
    Aligned,
    align,
    measure,
    of_the_fullest,
    offset_rows,
    one_of_each_prompt,
    pair_rows,
    profile_rows,
    representative,
    shared_prefixes,
)
from acpo.diagnose.figures import Look, legend, letter, look, panels, plain
from acpo.diagnose.report import Finding, Row, Table, escape, number
from acpo.diagnose.tokens import annotated, describe
from acpo.errors import ACPOError
from acpo.records import Trace

Effects = Mapping[tuple[str, str], Effect]
"""By quantity and kind."""

LOOKS = {"wrong": Look(look(1).color, "-", "o"), "right": Look(look(2).color, "--", "s")}


@dataclass(frozen=True)
class ProfileSettings:
    """How profiles are compared."""

    window: int = 32  # tokens on either side of the error
    smooth: int = 16  # tokens a full profile is averaged over
    profiles: int = 8  # full profiles drawn, one prompt each


def first_error(
    trace: Trace,
    annotations: Annotations,
    *,
    accept: Accept = Accept.SOUND,
    settings: ProfileSettings | None = None,
) -> list[Finding]:
    """Compare wrong with right completions around the first error of the wrong ones.

    The trace needs the token columns `entropy`, `delta`, `start` and `end`. Found are the profiles
    around the error with the test, and the full profiles.
    """
    settings = settings or ProfileSettings()
    trace = annotated(trace, annotations)
    trace.require(*QUANTITIES)
    # Further away nothing has a token, and every offset takes memory.
    longest = int(np.diff(trace.starts).max())
    lengths = {name: getattr(settings, name) for name in ("window", "smooth")}
    settings = replace(settings, **{name: min(n, longest) for name, n in lengths.items()})
    selection = select(trace, step=annotations.step)
    pairs, outcomes = aligned_pairs(selection, annotations, accept)
    columns = trace.tokens(*QUANTITIES)
    aligned = {name: align(pairs, columns[name], settings.window) for name in QUANTITIES}
    measured = {name: measure(aligned[name]) for name in QUANTITIES}
    if not np.isfinite(measured["entropy"]["change"]).any():
        raise ACPOError(f"{trace.path}: no pair has tokens on both sides of its error")
    source = f"{describe(trace)}; step {selection.step}; {evidence(pairs)}"
    around = _around(pairs, aligned, measured, settings, source, outcomes)
    change = measured["entropy"]["change"]
    return [around, _profiles(pairs, columns, change, settings, source)]


def _around(
    pairs: Sequence[AlignedPair],
    aligned: dict[str, Aligned],
    measured: dict[str, dict[str, np.ndarray]],
    settings: ProfileSettings,
    source: str,
    outcomes: dict[str, int],
) -> Finding:
    prompts = [pair.wrong.prompt_id for pair in pairs]
    effects = {
        (name, what): effect(values, prompts)
        for name, kinds in measured.items()
        for what, values in kinds.items()
    }
    change = measured["entropy"]["change"]
    shown = representative(of_the_fullest(change, aligned["entropy"]))
    rows = offset_rows(aligned, prompts)
    return Finding(
        name="first-error",
        title="Entropy around the first reasoning error",
        source=source,
        reading=_reading(settings, pairs[shown]),
        facts=facts(pairs, outcomes, effects),
        tables=[effect_table(effects)],
        rows=rows,
        figure=aligned_figure(rows, aligned, shown),
        extra={
            "effects": [
                {"quantity": name, "effect": EFFECTS[what], **found._asdict()}
                for (name, what), found in effects.items()
            ],
            "pairs": pair_rows(pairs, measured),
        },
    )


def _reading(settings: ProfileSettings, shown: AlignedPair) -> str:
    return (
        "Wrong and right completions of the same prompt, centred at t = 0: the first token of the "
        "wrong one's first error, and of what corresponds to it in the right one. (a, d): of the "
        "pairs with the most offsets to compare, the one with the median change (prompt "
        f"{escape(shown.wrong.prompt_id[:40])}, wrong {shown.wrong.sample}, right "
        f"{shown.right.sample}). (b, e): mean ± standard deviation over pairs. (c, f): wrong minus "
        "right at each offset, mean over prompts with its 95% interval. Before: t = "
        f"-{settings.window} to -1, after: t = 1 to {settings.window}, wherever both "
        "completions have a token. Grey: how many prompts have the offset; (b, c, e, f) leave out "
        "those that few have. Before the error, completions that share a prefix agree by "
        "construction: that says nothing about the policy."
    )


def _profiles(
    pairs: Sequence[AlignedPair],
    columns: dict[str, np.ndarray],
    change: np.ndarray,
    settings: ProfileSettings,
    source: str,
) -> Finding:
    chosen = [pairs[row] for row in one_of_each_prompt(pairs, change)[: settings.profiles]]
    rows = [
        row
        for name in QUANTITIES
        for pair in chosen
        for row in profile_rows(pair, name, columns[name], settings.smooth)
    ]
    return Finding(
        name="first-error-profiles",
        title="Full-trajectory entropy profiles",
        source=source,
        reading=(
            f"Entropy and δ over whole completions, each token averaged with up to "
            f"{settings.smooth - 1} before it and none across the error, of one "
            f"pair from each of the first {len(chosen)} prompts: the one whose change is the "
            "median of its prompt. Dotted lines: the first error of the wrong completion and the "
            "corresponding token of the right one. Profiles illustrate; the test is in "
            "first-error.md."
        ),
        facts=[f"{len(chosen)} of {len({p.wrong.prompt_id for p in pairs})} prompts are drawn."],
        rows=rows,
        figure=profile_figure(rows),
    )


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


def facts(pairs: Sequence[AlignedPair], outcomes: dict[str, int], effects: Effects) -> list[str]:
    """What was compared, and whether the quantities rise."""
    left_out = {name: n for name, n in outcomes.items() if name not in list(Evidence)}
    facts = [
        f"{len(pairs)} pairs of {_count([p.wrong for p in pairs])} wrong and "
        f"{_count([p.right for p in pairs])} right completions, from "
        f"{len({p.wrong.prompt_id for p in pairs})} prompts. Pairs share completions: the "
        "independent units are the prompts.",
        f"In {shared_prefixes(pairs)} of {len(pairs)} pairs both completions are the same text up "
        "to the error: there no difference can show before it.",
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
    mean, size = _ends(found)
    return (
        f"{answer}: after minus before, wrong minus right, {mean} over {found.pairs} pairs of "
        f"{found.prompts} prompts, p = {found.p_value:.2g} "
        f"({'exact' if found.exact else 'Monte Carlo'} sign flips), d = {size}."
    )


def _ends(found: Effect) -> tuple[str, str]:
    """Mean and size, with their intervals."""
    if found.prompts < 2:
        return f"{found.mean:+.4f}", "-"
    return (
        f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]",
        f"{number(found.size)} [{number(found.size_low)}, {number(found.size_high)}]",
    )


def _count(trajectories: Sequence[Trajectory]) -> str:
    """How many, and how many different texts."""
    rows = {trajectory.row: trajectory for trajectory in trajectories}
    texts = {(t.prompt_id, t.completion) for t in rows.values()}
    return f"{len(rows)} ({len(texts)} different)"


def effect_table(effects: Effects) -> Table:
    """Every effect, for the summary."""
    head = ("quantity", "effect", "pairs", "prompts", "mean [95%]", "d [95%]", "p")
    rows = []
    for (name, what), found in effects.items():
        counts = (str(found.pairs), str(found.prompts))
        rows.append((name, EFFECTS[what], *counts, *_ends(found), f"{found.p_value:.2g}"))
    return Table("Effects, prompts counting equally", head, rows)


def aligned_figure(rows: Sequence[Row], aligned: Mapping[str, Aligned], shown: int) -> Figure:
    """The pair `shown`, means with spread, and the difference, for each quantity."""
    figure, axes = panels(3 * len(QUANTITIES), columns=3, size=(3.6, 2.5))
    letter(axes, ["one pair", "mean ± std over pairs", "wrong − right, 95% over prompts"] * 2)
    for row, (quantity, label) in enumerate(QUANTITIES.items()):
        one, mean, difference = axes[3 * row : 3 * row + 3]
        own = [row for row in rows if row["quantity"] == quantity and row["shown"]]
        pair = aligned[quantity]
        for side, values in (("wrong", pair.wrong[shown]), ("right", pair.right[shown])):
            _line(one, pair.offsets, values, side)
        _means(mean, own)
        _difference(difference, own)
        _counts(difference, own)
        for each in (one, mean, difference):
            each.axvline(0, color="0.3", linestyle=":", linewidth=1)
            each.set_xlabel("tokens from the first error")
        for each in (one, mean):
            each.set_ylabel(label)
            legend(each)
        difference.set_ylabel(f"difference in {quantity}")
    return figure


def _line(axes: Axes, x: np.ndarray, y: np.ndarray, side: str) -> None:
    known = np.isfinite(y)
    axes.plot(x[known], y[known], **LOOKS[side].line, label=side, linewidth=1.3)


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])


def _means(axes: Axes, rows: Sequence[Row]) -> None:
    t = _column(rows, "t")
    for side, style in LOOKS.items():
        mean, std = _column(rows, f"{side}_mean"), np.nan_to_num(_column(rows, f"{side}_std"))
        _line(axes, t, mean, side)
        axes.fill_between(t, mean - std, mean + std, color=style.color, alpha=0.15, linewidth=0)


def _difference(axes: Axes, rows: Sequence[Row]) -> None:
    t, low, high = (_column(rows, name) for name in ("t", "low", "high"))
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.fill_between(t, low, high, color=look(0).color, alpha=0.2, linewidth=0)
    axes.plot(t, _column(rows, "difference"), color=look(0).color, linewidth=1.3)


def _counts(axes: Axes, rows: Sequence[Row]) -> None:
    """How many prompts an offset is the mean of, behind it."""
    behind = axes.twinx()
    t, prompts = ([row[name] for row in rows] for name in ("t", "prompts"))
    behind.bar(t, prompts, width=1.0, color="0.5", alpha=0.2, linewidth=0)
    behind.set(ylabel="prompts", ylim=(0, 3 * max(prompts, default=1)))
    behind.grid(visible=False)
    behind.tick_params(labelsize=7)


def profile_figure(rows: Sequence[Row]) -> Figure:
    """Full profiles: one column of panels per prompt, one row per quantity."""
    prompts = list(dict.fromkeys(row["prompt_id"] for row in rows))
    columns = min(4, len(prompts))
    strips = -(-len(prompts) // columns)
    figure, axes = panels(2 * strips * columns, columns=columns, size=(3.0, 1.9))
    for place in range(2 * strips * columns):
        strip, column = divmod(place, columns)
        quantity = list(QUANTITIES)[strip % 2]
        prompt = (strip // 2) * columns + column
        if prompt >= len(prompts):
            axes[place].set_axis_off()
            continue
        wanted = (prompts[prompt], quantity)
        own = [row for row in rows if (row["prompt_id"], row["quantity"]) == wanted]
        _profile(axes[place], own, quantity)
        if place == 0:
            legend(axes[place])
        if quantity == "entropy":
            axes[place].set_title(plain(f"prompt {prompts[prompt]}", 30), fontsize=8)
    return figure


def _profile(axes: Axes, rows: Sequence[Row], quantity: str) -> None:
    for side, style in LOOKS.items():
        own = [row for row in rows if row["side"] == side]
        if own:
            _line(axes, _column(own, "token"), _column(own, "smoothed"), side)
            axes.axvline(own[0]["error"], color=style.color, linestyle=":", linewidth=1.2)
    axes.set_ylabel(quantity)
    axes.set_xlabel("token")
