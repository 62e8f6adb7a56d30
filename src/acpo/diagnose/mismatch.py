"""Figure "directional agreement under mode mismatch": which updates reverse, at which gap."""

import numpy as np
from matplotlib.figure import Figure

from acpo.diagnose import geometry
from acpo.diagnose.figures import (
    REVERSED,
    Series,
    close_panel,
    draw_bins,
    draw_series,
    letter,
    linear_axis,
    look,
    panels,
)
from acpo.diagnose.report import Finding, Table, number, percent
from acpo.diagnose.tokens import Survey, chunks, describe, require_temperatures, survey
from acpo.objectives.theory import mismatch_reversal_gap
from acpo.records import Trace

AXIS = linear_axis(0, 1, 20)
BRANCHES = {"positive": True, "non-positive": False}
MULTIPLIERS = {
    ("positive", "unrouted"): "Â > 0, c⁺ = 2 + δ",
    ("non-positive", "unrouted"): "Â < 0, c⁻ = 1 - δ",
    ("positive", "routed"): "Â > 0, routed 3 sg[δ]",
    ("non-positive", "routed"): "Â < 0, routed 3 (1 - sg[δ])",
}


AllSeries = dict[tuple[str, str], Series]
"""By branch and routing."""


def mismatch(
    trace: Trace, *, tau_pos: float = 1.0, tau_neg: float = 1.05, every_token: bool = False
) -> Finding:
    """Measure the mismatched tokens of a trace whose advantage is not zero; with `every_token`, all
    mismatched tokens, on both branches."""
    require_temperatures(tau_pos=tau_pos, tau_neg=tau_neg)
    counted = survey(trace, every_token=every_token)
    series = {}
    for branch, routing in MULTIPLIERS:
        expected = counted.expected(aligned=False, positive=BRANCHES[branch])
        labels = {"branch": branch, "routing": routing}
        series[branch, routing] = Series(labels, AXIS, expected)
    for chunk in chunks(trace, *geometry.COLUMNS):
        t = chunk.scalars
        for branch, positive in BRANCHES.items():
            picked = t.where(~t.is_mode & counted.mask(chunk, positive=positive))
            coupling = 2 / (tau_pos if positive else tau_neg)
            update = unrouted(picked, positive=positive, coupling=coupling)
            series[branch, "unrouted"].add(picked.gap, update.cosine)
            routed = geometry.routed(picked, positive=positive)
            series[branch, "routed"].add(picked.gap, routed.cosine)
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
    offset, slope = (2, 1) if positive else (1, -1)
    return geometry.surrogate_composite(t, offset=offset, slope=slope, coupling=coupling)


def _facts(series: AllSeries, counted: Survey, limit: float) -> list[str]:
    mismatched = counted.tokens - counted.aligned
    facts = [
        f"{mismatched:,} of {counted.tokens:,} tokens "
        f"({percent(mismatched / counted.tokens, 1)}) are mode-mismatched."
    ]
    for (branch, routing), one in series.items():
        if one.tokens:
            facts.append(
                f"{routing.capitalize()}, {branch} branch: {percent(one.reversed)} of "
                f"{one.tokens:,} updates reversed; cosine {number(one.low)} to {number(one.high)}."
            )
    negative = series["non-positive", "unrouted"]
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


def _table(series: AllSeries) -> Table:
    negative = series["non-positive", "unrouted"]
    positive = series["positive", "unrouted"]
    rows = []
    for i in np.flatnonzero(positive.count + negative.count):
        cells = [f"{AXIS.edges[i]:.2f} to {AXIS.edges[i + 1]:.2f}"]
        for one in (positive, negative):
            count = one.count[i]
            cells += [f"{count:,}", percent(one.below_zero[i] / count) if count else "-"]
        rows.append(cells)
    head = ["gap Δ", "Â > 0 tokens", "reversed", "Â < 0 tokens", "reversed "]
    return Table("Reversals of unrouted updates by gap", head, rows)


def _figure(series: AllSeries, limit: float) -> Figure:
    figure, (left, right) = panels(2, columns=2, size=(4.2, 3.1))
    left.axhspan(-1.08, 0, color=REVERSED, zorder=0)
    left.set_ylim(-1.08, 1.08)
    left.set_ylabel(r"$\cos(g_{\mathrm{update}}, g_{\mathrm{local}})$")
    right.set(ylabel="share of updates reversed", ylim=(-0.03, 1.03))
    for axes in (left, right):
        axes.axvline(limit, color="0.3", linestyle=":", linewidth=1)
        axes.set(xlim=(0, 1), xlabel=r"$\Delta = p_{\max} - p(y)$")
    for i, (key, title) in enumerate(MULTIPLIERS.items()):
        if series[key].tokens:
            draw_series(left, series[key], title, look(i))
            reversals = series[key].by_bin(series[key].below_zero)
            draw_bins(right, AXIS, reversals, title, look(i))
    close_panel(left, loc="lower right")
    close_panel(right, loc="upper right")
    letter((left, right), ("direction of the update", "reversals"))
    return figure
