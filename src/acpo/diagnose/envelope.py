"""Entropy bounds from δ alone, how wide they are, and where a model's tokens lie between them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from acpo.diagnose.figures import legend, letter, look, panels
from acpo.diagnose.report import Finding, Table, number, percent, rows_of
from acpo.diagnose.tokens import chunks, describe, parts_of, require_usable, vocabulary
from acpo.errors import ACPOError
from acpo.objectives import theory
from acpo.records import Trace

WINDOW = 50
QWEN3 = 151_936
PAPER_WIDTHS = {100: 2.6286, 40: 1.9803, 20: 1.5235, 10: 1.1010, 5: 0.7178}
"""The paper's table of maximum widths, by support."""
READING = (
    "(a): the bounds L(δ) ≤ H ≤ U(δ), and the least entropy that distributions reach (exact "
    "minimum). (b): how far entropy can vary at a given δ: by the paper's bounds, and exactly."
)
READING_TRACE = (
    "The cells in (a) are the trace's tokens, darker where there are more. (c): δ and H / log|V| "
    "along one completion, raw and as moving averages."
)
TOLERANCE = 1e-4
"""Nats by which float32 statistics may lie outside the bounds."""


@dataclass(frozen=True)
class Profile:
    """One completion."""

    number: int  # of the completion in the trace
    token: np.ndarray  # places of those with finite statistics, counted from 0
    delta: np.ndarray  # per token
    entropy: np.ndarray  # H / log|V| per token
    window: int  # tokens in a moving average

    @property
    def smooth(self) -> list[np.ndarray]:
        """Moving averages of both, from where a whole window has passed."""
        return [moving_average(x, self.window) for x in (self.delta, self.entropy)]

    def rows(self) -> list[dict[str, Any]]:
        """One row per token."""
        missing = [math.nan] * (self.window - 1)
        delta, entropy = ([*missing, *x] for x in self.smooth)
        columns = {"token": self.token, "delta": self.delta, "entropy": self.entropy}
        return rows_of({**columns, "delta_average": delta, "entropy_average": entropy})


def longest(trace: Trace) -> int:
    """Number of the longest completion, the first of equals."""
    return int(np.concatenate([np.diff(part.starts) for part in parts_of(trace)]).argmax())


def profile(trace: Trace, number: int, support: int) -> Profile:
    """δ and normalised entropy of a completion."""
    ends = np.cumsum([part["rollouts"] for part in trace.parts])
    place = int(np.searchsorted(ends, number, side="right"))
    if number < 0 or place == len(ends):
        raise ACPOError(f"--rollout {number}: the trace has completions 0 to {ends[-1] - 1}")
    part = list(parts_of(trace))[place]
    row = number - (ends[place] - part.parts[0]["rollouts"])
    here = slice(*part.starts[row : row + 2])
    columns = part.tokens("log_pmax", "entropy").values()
    log_pmax, entropy = (values[here].astype(np.float64) for values in columns)
    delta = -np.expm1(np.minimum(log_pmax, 0.0))
    entropy /= math.log(support)
    usable = np.isfinite(delta) & np.isfinite(entropy)
    length = int(usable.sum())
    window = WINDOW if length >= 2 * WINDOW else max(1, length // 5)
    return Profile(number, np.flatnonzero(usable), delta[usable], entropy[usable], window)


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Means of each `window` consecutive values."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    return (sums[window:] - sums[:-window]) / window


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def draw_profile(axes: Axes, one: Profile) -> None:
    """Raw values thin, moving averages thick."""
    names = (r"$\delta$", r"$H_{\mathrm{norm}} = H/\log|\mathcal{V}|$")
    for i, (name, values) in enumerate(zip(names, (one.delta, one.entropy), strict=True)):
        axes.plot(one.token, values, color=look(i).color, alpha=0.3, linewidth=0.6)
        whole = one.token[one.window - 1 :]
        label = f"{name}, {one.window}-token average"
        axes.plot(whole, one.smooth[i], **look(i).line, label=label)
    axes.set(xlabel="token", ylabel="uncertainty")
    legend(axes, loc="best")


class Cloud:
    """Where tokens lie in the (δ, H) plane, for a vocabulary of `support` tokens."""

    def __init__(self, support: int) -> None:
        self.support = support
        self.edges = (np.linspace(0, 1, 81), np.linspace(0, np.log(support) * 1.0001, 81))
        self.counts = np.zeros((80, 80), dtype=np.int64)
        self.tokens = self.left_out = self.outside = self.below_exact = self.placed = 0
        self.sums = np.zeros(5)
        self.used = 0.0

    def add(self, delta: np.ndarray, entropy: np.ndarray) -> None:
        lower, exact, upper = bounds(delta, self.support)
        self.tokens += len(delta)
        self.outside += int(((entropy < lower - TOLERANCE) | (entropy > upper + TOLERANCE)).sum())
        self.below_exact += int((entropy < exact - TOLERANCE).sum())
        width = upper - exact
        wide = width > 0  # where p_max is 1 there is no way to be part of
        place = (entropy[wide] - exact[wide]) / width[wide]
        self.placed += len(place)
        self.used += float(np.clip(place, 0, 1).sum())
        self.counts += np.histogram2d(delta, entropy, bins=self.edges)[0].astype(np.int64)
        products = (delta, entropy, delta**2, entropy**2, delta * entropy)
        self.sums += [values.sum() for values in products]

    @property
    def place(self) -> float:
        """Mean way from the exact minimum (0) to the upper bound (1); NaN if they never differ."""
        return self.used / self.placed if self.placed else float("nan")

    @property
    def correlation(self) -> float:
        """Pearson's, of δ and H over all tokens; NaN if either is constant."""
        x, y, xx, yy, xy = self.sums / max(self.tokens, 1)
        spread = (xx - x * x) * (yy - y * y)
        return float((xy - x * y) / np.sqrt(spread)) if spread > 1e-24 else float("nan")

    def rows(self) -> list[dict[str, Any]]:
        x, y = self.edges
        return [
            {"delta_from": x[i], "delta_to": x[i + 1], "entropy_from": y[j], "entropy_to": y[j + 1]}
            | {"tokens": int(self.counts[i, j])}
            for i, j in np.argwhere(self.counts)
        ]


def bounds(delta: np.ndarray, support: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """L(δ), the exact minimum, and U(δ)."""
    d = torch.from_numpy(np.ascontiguousarray(delta))
    return (
        theory.entropy_lower_bound(d).numpy(),
        theory.exact_entropy_minimum(d).numpy(),
        theory.entropy_upper_bound(d, support).numpy(),
    )


def envelope(
    trace: Trace | None = None, *, support: int | None = None, rollout: int | None = None
) -> Finding:
    """The bounds; with a trace, its tokens between them and δ beside H along one completion.

    Unless given, `support`, the size of the vocabulary, is the trace's, or Qwen3's, and `rollout`,
    the number of the completion to draw, that of the longest.
    """
    if trace is None and rollout is not None:
        raise ACPOError(f"--rollout {rollout}: name the trace it is of")
    if support is None:
        support = QWEN3 if trace is None else vocabulary(trace.header)
    if not 2 <= support < 2**31:
        raise ACPOError(
            f"support={support}: an envelope needs a vocabulary of at least 2 tokens, below 2^31"
        )
    cloud = drawn = None
    if trace is not None:
        cloud = _cloud(trace, support)
        drawn = profile(trace, longest(trace) if rollout is None else rollout, support)
    figure, grid = panels(2 if trace is None else 3, columns=2, size=(4.2, 3.1))
    _draw_bounds(grid[0], support, cloud)
    _draw_widths(grid[1], support)
    titles = [f"envelope, |V| = {support:,}", "width"]
    if drawn:
        draw_profile(grid[2], drawn)
        titles.append(f"completion {drawn.number}")
    letter(grid, titles)
    facts = _facts(support, cloud, drawn)
    return Finding(
        name="envelope",
        headline=next((fact for fact in facts if "outside the bounds" in fact), ""),
        title="Entropy envelope",
        source=describe(trace) + f"; vocabulary of {support:,} tokens",
        reading=READING if trace is None else f"{READING} {READING_TRACE}",
        facts=facts,
        tables=[_widths(support), _paper_widths()],
        rows=_grid_rows(support),
        figure=figure,
        extra={"tokens": cloud.rows(), "rollout": drawn.rows()} if cloud and drawn else {},
    )


def _cloud(trace: Trace, support: int) -> Cloud:
    cloud = Cloud(support)
    for chunk in chunks(trace, "log_pmax", "entropy"):
        cloud.left_out += chunk.left_out
        cloud.add(-np.expm1(chunk.columns["log_pmax"]), chunk.columns["entropy"])
    require_usable(trace, cloud.tokens, cloud.left_out)
    return cloud


def _delta_grid(support: int, points: int = 2001) -> np.ndarray:
    return np.linspace(0, 1 - 1 / support, points)


def exact_spread(support: int) -> tuple[float, float]:
    """The largest U(δ) minus the exact minimum, and the δ where it is."""
    delta = _delta_grid(support)
    for _ in range(3):
        _, exact, upper = bounds(delta, support)
        best = int(np.argmax(upper - exact))
        centre, most = delta[best], float(upper[best] - exact[best])
        near = delta[max(best - 1, 0)], delta[min(best + 1, len(delta) - 1)]
        delta = np.linspace(*near, len(delta))
    return most, float(centre)


def _grid_rows(support: int) -> list[dict[str, float]]:
    delta = _delta_grid(support, 201)
    lower, exact, upper = bounds(delta, support)
    columns = {"delta": delta, "lower": lower, "exact_minimum": exact, "upper": upper}
    return rows_of({**columns, "width": upper - lower, "exact_spread": upper - exact})


def _widths(support: int) -> Table:
    rows = []
    for k in sorted({*PAPER_WIDTHS, support}):
        most, at = exact_spread(k)
        rows.append([f"{k:,}", f"{theory.max_envelope_width(k):.4f}", f"{most:.4f}", f"{at:.4f}"])
    head = ["support k", "max U - L (nats)", "max U - exact minimum (nats)", "at δ"]
    return Table("Maximum widths, computed", head, rows)


def _paper_widths() -> Table:
    rows = [[str(k), f"{width:.4f}"] for k, width in sorted(PAPER_WIDTHS.items())]
    return Table("The paper's table", ["support k", "maximum envelope width"], rows)


def _facts(support: int, cloud: Cloud | None, drawn: Profile | None) -> list[str]:
    widest, (most, at) = theory.max_envelope_width(support), exact_spread(support)
    lower, exact, upper = (float(b[0]) for b in bounds(np.array([0.1]), 10))
    facts = [
        f"With {support:,} tokens the envelope is at most {widest:.4f} nats wide; the entropies "
        f"that distributions reach span at most {most:.4f} (at δ = {at:.4f}).",
        f"Ten tokens, δ = 0.1: bounds {upper - lower:.3f} nats apart, reached {upper - exact:.3f}.",
    ]
    if cloud:
        facts += [
            f"{cloud.outside:,} of {cloud.tokens:,} tokens lie outside the bounds by more than "
            f"{TOLERANCE:g} nats, {cloud.below_exact:,} below the exact minimum.",
            f"On average a token lies {percent(cloud.place, 1)} of the way from the "
            f"exact minimum to the upper bound; correlation of δ and H: "
            f"{number(cloud.correlation)}.",
        ]
        if cloud.left_out:
            facts.append(f"{cloud.left_out:,} tokens without finite statistics were left out.")
    if drawn:
        facts.append(
            f"Along completion {drawn.number} ({len(drawn.delta):,} tokens) δ and H / log|V| "
            f"correlate at {number(_correlation(drawn.delta, drawn.entropy))} raw, "
            f"{number(_correlation(*drawn.smooth))} as {drawn.window}-token moving averages."
        )
    return facts


def _draw_bounds(axes: Axes, support: int, cloud: Cloud | None) -> None:
    if cloud and cloud.counts.any():  # a token may lie outside all that is drawn
        x, y = cloud.edges
        shown = np.ma.masked_equal(cloud.counts.T, 0)
        mesh = axes.pcolormesh(x, y, shown, norm=LogNorm(vmin=0.2), cmap="Greys", rasterized=True)
        axes.figure.colorbar(mesh, ax=axes, label="tokens")
    delta = _delta_grid(support)
    names = (r"$L(\delta)$", "exact minimum", r"$U(\delta)$")
    for i, (name, values) in enumerate(zip(names, bounds(delta, support), strict=True)):
        axes.plot(delta, values, **look(i).line, label=name)
    axes.set(xlabel=r"$\delta = 1-\pi_\theta(v^*)$", ylabel="entropy $H$ (nats)", xlim=(0, 1))
    legend(axes, loc="upper left")


def _draw_widths(axes: Axes, support: int) -> None:
    for i, k in enumerate(sorted({5, 10, 100, support})):
        delta = _delta_grid(k)
        lower, exact, upper = bounds(delta, k)
        color, linestyle, marker = look(i)
        axes.plot(delta, upper - lower, color=color, linestyle=linestyle, label=f"k = {k:,}: $U-L$")
        dots: dict[str, Any] = {"linestyle": ":", "marker": marker, "markevery": 0.1}
        axes.plot(delta, upper - exact, color=color, **dots, markersize=4, label="   exact spread")
    axes.set(xlabel=r"$\delta$", ylabel="width (nats)", xlim=(0, 1))
    axes.set_ylim(0, 1.5 * axes.get_ylim()[1])
    legend(axes, loc="upper left", ncols=2)
