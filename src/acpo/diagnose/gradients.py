"""Figure "logit-space gradient geometry": how δ and entropy pull beside the sampled token."""

import math
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acpo.diagnose import geometry
from acpo.diagnose.figures import (
    REVERSED,
    Series,
    close_panel,
    decade_axis,
    draw_series,
    letter,
    look,
    panels,
)
from acpo.diagnose.report import Finding, Table, number, percent
from acpo.diagnose.tokens import Survey, chunks, describe, survey
from acpo.errors import ACPOError
from acpo.records import Trace

AXIS = decade_axis(-8, 0, 4)
COUPLING = 2.0
"""f(1) / f'(1) with τ_pos = 1, as in the protocol."""

SIGNALS = {"delta": "δ", "entropy": "ē"}
MULTIPLIERS = {"e": "c⁺ = ē", "2+e": "c⁺ = 2 + ē", "2+delta": "c⁺ = 2 + δ"}
GROUPS = {"aligned": True, "mismatched": False}
READING = (
    "(a), (b): cosine and norm ratio between the gradient of the signal and g_local, against "
    "δ = 1 - p_max on a logarithmic axis (confident tokens on the left). Lines are means per bin, "
    "dots a sample of tokens. (c), (d): cosine between the whole positive update at w = 1, "
    "τ_pos = 1, and g_local; below zero (shaded) the update is reversed: a token of a good answer "
    "is made less likely."
)


PANELS = {"cosine": SIGNALS, "norm_ratio": SIGNALS, "composite_cosine": MULTIPLIERS}
AllSeries = dict[tuple[str, str, str], Series]
"""By panel, signal and group: what is measured, of what, on which tokens."""


def gradients(trace: Trace, *, h_max: float | None = None, every_token: bool = False) -> Finding:
    """Measure the trace.

    Entropy is normalised by `h_max` nats, the trace's largest unless given; `every_token` counts
    all tokens in (c) and (d), not those with a positive advantage.
    """
    if h_max is not None and not 0 < h_max < math.inf:
        raise ACPOError(f"--h-max {h_max} must be positive and finite")
    counted = survey(trace, every_token=every_token)
    h_max = h_max or counted.h_max
    if not h_max > 0:
        raise ACPOError("entropy is 0 at every token, so no gradient has a direction")
    series = _empty_series(counted)
    for chunk in chunks(trace, *geometry.COLUMNS):
        positive, t = counted.mask(chunk, positive=True), chunk.scalars
        for group, aligned in GROUPS.items():
            own = t.where(t.is_mode == aligned)
            signals = {"delta": geometry.surrogate(own), "entropy": geometry.shannon(own, h_max)}
            for signal, direction in signals.items():
                series["cosine", signal, group].add(own.delta, direction.cosine)
                series["norm_ratio", signal, group].add(own.delta, direction.ratio)
            own = t.where((t.is_mode == aligned) & positive)
            for multiplier, update in composites(own, h_max):
                series["composite_cosine", multiplier, group].add(own.delta, update.cosine)
    facts = _facts(series, counted)
    return Finding(
        name="gradients",
        headline=next((fact for fact in facts if "reverses" in fact), ""),
        title="Logit-space gradient geometry",
        source=f"{describe(trace)}; ē = H / H_max with H_max = {h_max:.4f} nats",
        reading=READING,
        facts=facts,
        tables=[_signal_table(series), _reversal_table(series)],
        rows=[row for one in series.values() for row in one.rows()],
        figure=_figure(series),
    )


def _empty_series(counted: Survey) -> AllSeries:
    series = {}
    for panel, signals in PANELS.items():
        positive = True if panel == "composite_cosine" else None
        for signal in signals:
            for group, aligned in GROUPS.items():
                labels = {"panel": panel, "signal": signal, "group": group}
                expected = counted.expected(aligned=aligned, positive=positive)
                series[panel, signal, group] = Series(labels, AXIS, expected)
    return series


def composites(t: geometry.TokenScalars, h_max: float) -> Iterator[tuple[str, geometry.Direction]]:
    """The positive-branch updates that panels (c) and (d) compare."""
    for name, offset in (("e", 0.0), ("2+e", 2.0)):
        yield name, geometry.shannon_composite(t, h_max=h_max, offset=offset, coupling=COUPLING)
    yield "2+delta", geometry.surrogate_composite(t, offset=2, slope=1, coupling=COUPLING)


def _facts(series: AllSeries, counted: Survey) -> list[str]:
    delta = series["norm_ratio", "delta", "aligned"]
    entropy = series["norm_ratio", "entropy", "aligned"]
    facts = [
        f"{counted.tokens:,} tokens, {percent(counted.aligned / counted.tokens, 1)} of them "
        "mode-aligned."
    ]
    if delta.tokens:
        cosine = series["cosine", "delta", "aligned"]
        facts += [
            f"Aligned, the gradient of δ is anti-parallel to g_local (cosine {cosine.low:.6f} to "
            f"{cosine.high:.6f}) and at most {number(delta.high)} times as long.",
            f"Aligned, the gradient of ē is up to {number(entropy.high)} times as long as g_local, "
            f"and longer than it at {percent(entropy.share(entropy.above_one))} of the tokens.",
        ]
    for name, title in MULTIPLIERS.items():
        parts = []
        for group in GROUPS:
            one = series["composite_cosine", name, group]
            if one.tokens:
                parts.append(f"{percent(one.reversed)} of {one.tokens:,} {group}")
        if parts:
            kind = "positive-advantage tokens" if counted.by_advantage else "tokens"
            facts.append(f"{title} reverses {' and '.join(parts)} {kind}.")
    if not any("reverses" in fact for fact in facts):
        facts.append(
            "No token has a positive advantage: (c) and (d) are empty. --every-token fills them."
        )
    undefined = sum(series["cosine", "delta", group].undefined for group in GROUPS)
    if undefined:
        facts.append(f"At {undefined:,} tokens p_max is 1 in float32: no gradient, no direction.")
    return facts + counted.note()


def _signal_table(series: AllSeries) -> Table:
    rows = []
    for signal, symbol in SIGNALS.items():
        for group in GROUPS:
            cosine = series["cosine", signal, group]
            ratio = series["norm_ratio", signal, group]
            ranges = [
                f"{number(x.mean)} [{number(x.low)}, {number(x.high)}]" for x in (cosine, ratio)
            ]
            longer = percent(ratio.share(ratio.above_one))
            rows.append([symbol, group, f"{cosine.tokens:,}", *ranges, longer])
    head = ["signal", "tokens are", "tokens", "cosine, mean [range]", "norm ratio, mean [range]"]
    return Table("Signal against g_local", [*head, "ratio > 1"], rows)


def _reversal_table(series: AllSeries) -> Table:
    rows = []
    for multiplier, title in MULTIPLIERS.items():
        for group in GROUPS:
            one = series["composite_cosine", multiplier, group]
            shown = [f"{one.tokens:,}", number(one.mean), number(one.low), percent(one.reversed)]
            rows.append([title, group, *shown])
    head = ["multiplier", "tokens are", "tokens", "mean cosine", "least cosine", "reversed"]
    return Table("Positive-advantage updates against g_local", head, rows)


def _figure(series: AllSeries) -> Figure:
    figure, grid = panels(4, columns=2, size=(4.2, 3.0))
    local = r"g_{\mathrm{local}}"
    update = rf"$\cos(g_{{\mathrm{{update}}}}, {local})$"
    contents: list[tuple[str, Sequence[str], str]] = [
        ("cosine", list(SIGNALS), rf"$\cos(g_{{\mathrm{{signal}}}}, {local})$"),
        ("norm_ratio", list(SIGNALS), rf"$\|g_{{\mathrm{{signal}}}}\|_2 / \|{local}\|_2$"),
        ("composite_cosine", ("e", "2+delta"), update),
        ("composite_cosine", ("2+e", "2+delta"), update),
    ]
    for axes, (panel, signals, label) in zip(grid, contents, strict=True):
        axes.set(xscale="log", xlim=(AXIS.edges[0], 1), ylabel=label)
        axes.set_xlabel(r"$\delta = 1-\pi_\theta(v^*)$")
        if panel != "norm_ratio":
            axes.set_ylim(-1.08, 1.08)
        if panel == "composite_cosine":
            axes.axhspan(-1.08, 0, color=REVERSED, zorder=0)
        else:
            axes.axhline(0 if panel == "cosine" else 1, color="0.4", linewidth=0.8)
        _draw_panel(axes, series, panel, signals)
    titles = ["direction of the signal", "length of the signal", r"update, $\hat A>0$"]
    letter(grid, [*titles, r"update, $\hat A>0$, equal offsets"])
    return figure


def _draw_panel(axes: Axes, series: AllSeries, panel: str, signals: Sequence[str]) -> None:
    names = {**SIGNALS, **MULTIPLIERS}
    keys = [(signal, group) for signal in signals for group in GROUPS]
    for signal, group in keys:
        if series[panel, signal, group].tokens:
            # One look per quantity and group in all panels.
            style = look(("delta" not in signal) + 2 * (group == "mismatched"))
            draw_series(axes, series[panel, signal, group], f"{names[signal]}, {group}", style)
    close_panel(axes)
