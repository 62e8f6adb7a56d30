"""Figure "directional agreement under mode mismatch": which updates reverse, at which gap."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from acpo.diagnose import geometry
from acpo.diagnose.figures import (
    REVERSED,
    Series,
    draw_series,
    legend,
    letter,
    linear_axis,
    look,
    panels,
    say_empty,
)
from acpo.diagnose.report import Finding, Table, number, percent
from acpo.diagnose.tokens import Survey, chunks, describe, require_temperatures, survey
from acpo.records import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXIS = linear_axis(0, 1, 20)
BRANCHES = {"positive": True, "non-positive": False}
MULTIPLIERS = {
    ("positive", "unrouted"): "Â > 0, c⁺ = 2 + δ",
    ("non-positive", "unrouted"): "Â < 0, c⁻ = 1 - δ",
    ("positive", "routed"): "Â > 0, routed 3 sg[δ]",
    ("non-positive", "routed"): "Â < 0, routed 3 (1 - sg[δ])",
}


class BranchKey(NamedTuple):
    branch: str
    routing: str


def mismatch(
    trace: Trace, *, tau_pos: float = 1.0, tau_neg: float = 1.05, every_token: bool = False
) -> Finding:
    """Measure the mismatched tokens of a trace whose advantage is not zero.

    Args:
        trace: with the columns of `geometry.COLUMNS`.
        tau_pos: gate temperature of the positive branch.
        tau_neg: gate temperature of the non-positive branch.
        every_token: evaluate both branches at all mismatched tokens, whatever their advantage.

    Raises:
        ACPOError: A temperature that is not positive, or a trace without columns or tokens.
    """
    from acpo.objectives.theory import mismatch_reversal_gap

    require_temperatures(tau_pos=tau_pos, tau_neg=tau_neg)
    counted = survey(trace, every_token=every_token)
    series = _empty_series(counted)
    for chunk in chunks(trace, *geometry.COLUMNS):
        t = chunk.scalars
        for branch, positive in BRANCHES.items():
            chosen = ~t.is_mode & counted.mask(chunk, positive=positive)
            picked = geometry.TokenScalars(*(column[chosen] for column in t))
            coupling = 2 / (tau_pos if positive else tau_neg)
            update = unrouted(picked, positive=positive, coupling=coupling)
            series[BranchKey(branch, "unrouted")].add(picked.gap, update.cosine)
            routed = geometry.routed(picked, positive=positive)
            series[BranchKey(branch, "routed")].add(picked.gap, routed.cosine)
    limit = mismatch_reversal_gap(tau_neg)
    facts = _facts(series, counted, limit)
    return Finding(
        name="mismatch",
        headline=next((fact for fact in facts if "Unrouted, non-positive" in fact), ""),
        title="Directional agreement under mode mismatch",
        source=f"{describe(trace)}; w = 1, τ_pos = {tau_pos:g}, τ_neg = {tau_neg:g}",
        reading=(
            "(a): cosine between the whole update and g_local at mismatched tokens, against the "
            "gap Δ = p_max - p(y). Shaded: the update is reversed; right of the dotted line no "
            f"distribution allows that (Δ ≥ (2 - τ)/(2 + τ) = {limit:.4f}). (b): share of reversed "
            "updates per bin of the gap. Tokens of completions with advantage 0 are left out."
        ),
        facts=facts,
        tables=[_table(series)],
        rows=[row for one in series.values() for row in one.rows()],
        figure=_figure(series, limit),
    )


def unrouted(t: geometry.TokenScalars, *, positive: bool, coupling: float) -> geometry.Direction:
    """The update with a differentiable multiplier: 2 + δ, or 1 - δ."""
    if positive:
        return geometry.surrogate_composite(t, offset=2, slope=1, coupling=coupling)
    return geometry.surrogate_composite(t, offset=1, slope=-1, coupling=coupling)


def _empty_series(counted: Survey) -> dict[BranchKey, Series]:
    return {
        key: Series(
            key._asdict(),
            AXIS,
            counted.expected(aligned=False, positive=BRANCHES[key.branch]),
        )
        for key in (BranchKey(*pair) for pair in MULTIPLIERS)
    }


def _facts(series: dict[BranchKey, Series], counted: Survey, limit: float) -> list[str]:
    mismatched = counted.tokens - counted.aligned
    facts = [
        f"{mismatched:,} of {counted.tokens:,} tokens "
        f"({percent(mismatched / counted.tokens, 1)}) are mode-mismatched."
    ]
    for key, one in series.items():
        if not one.tokens:
            continue
        text = (
            f"{key.routing}, {key.branch} branch: {percent(one.reversed)} of {one.tokens:,} "
            f"updates reversed; cosine {number(one.low)} to {number(one.high)}."
        )
        facts.append(text[0].upper() + text[1:])
    negative = series[BranchKey("non-positive", "unrouted")]
    full = np.flatnonzero(negative.below_zero)
    if len(full):
        facts.append(
            f"Reversals were seen up to the gap bin [{AXIS.edges[full[-1]]:.2f}, "
            f"{AXIS.edges[full[-1] + 1]:.2f}); none is possible from {limit:.4f} on."
        )
    if not any(one.tokens for one in series.values()):
        why = "none is mismatched"
        if mismatched:
            why = "no mismatched one has an advantage other than 0 (--every-token takes them all)"
        facts.append(f"There is nothing to draw: {why}.")
    return facts + counted.note()


def _table(series: dict[BranchKey, Series]) -> Table:
    negative = series[BranchKey("non-positive", "unrouted")]
    positive = series[BranchKey("positive", "unrouted")]
    rows = [
        [
            f"{AXIS.edges[i]:.2f} to {AXIS.edges[i + 1]:.2f}",
            f"{positive.count[i]:,}",
            _share(positive, i),
            f"{negative.count[i]:,}",
            _share(negative, i),
        ]
        for i in range(len(AXIS.centres))
        if positive.count[i] or negative.count[i]
    ]
    head = ["gap Δ", "Â > 0 tokens", "reversed", "Â < 0 tokens", "reversed "]
    return Table("Reversals of unrouted updates by gap", head, rows)


def _share(one: Series, i: int) -> str:
    return percent(one.below_zero[i] / one.count[i]) if one.count[i] else "-"


def _figure(series: dict[BranchKey, Series], limit: float) -> "Figure":
    figure, (left, right) = panels(2, columns=2, size=(4.2, 3.1))
    left.axhspan(-1.08, 0, color=REVERSED, zorder=0)
    left.set_ylim(-1.08, 1.08)
    left.set_ylabel(r"$\cos(g_{\mathrm{update}}, g_{\mathrm{local}})$")
    right.set(ylabel="share of updates reversed", ylim=(-0.03, 1.03))
    for axes in (left, right):
        axes.axvline(limit, color="0.3", linestyle=":", linewidth=1)
        axes.set(xlim=(0, 1), xlabel=r"$\Delta = p_{\max} - p(y)$")
    shown = [key for key, one in series.items() if one.tokens]
    for i, key in enumerate(MULTIPLIERS):
        if BranchKey(*key) in shown:
            draw_series(left, series[BranchKey(*key)], MULTIPLIERS[key], look(i))
            _draw_shares(right, series[BranchKey(*key)], MULTIPLIERS[key], i)
    if shown:
        legend(left, loc="lower right")
        legend(right, loc="upper right")
    else:
        say_empty(left, "no such tokens in the trace")
        say_empty(right, "no such tokens in the trace")
    letter((left, right), ("direction of the update", "reversals"))
    return figure


def _draw_shares(axes: "Axes", one: Series, label: str, number: int) -> None:
    with np.errstate(invalid="ignore"):
        shares = one.below_zero / one.count
    style = look(number)
    axes.plot(
        one.axis.centres,
        shares,
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markersize=3.5,
        linewidth=1.3,
        label=label,
    )
