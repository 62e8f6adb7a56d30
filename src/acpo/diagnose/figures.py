"""How every figure looks: in print, for colour-blind readers, and the same bytes each time.

A `Series` is what most figures draw: statistics per bin and a few points, collected chunk by chunk.
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acpo.texts import one_line

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that the colour-blind can tell apart."""
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
REVERSED = "#f3e3e3"
"""Ground of the region where an update is reversed."""

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
    "figure.dpi": 150,
}


class Look(NamedTuple):
    """Colour, line and marker of a series: any one of them tells it apart."""

    color: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str

    @property
    def marked(self) -> dict[str, Any]:
        """What `plot` takes for a line with markers."""
        return self._asdict()

    @property
    def line(self) -> dict[str, Any]:
        """And for one without."""
        return {"color": self.color, "linestyle": self.linestyle}


def look(number: int) -> Look:
    kinds = len(OKABE_ITO)
    return Look(OKABE_ITO[number % kinds], LINES[number % kinds], MARKERS[number % kinds])


def panels(count: int, *, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, each `size` inches; one that is alone in its row fills it."""
    rows = -(-count // columns)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        grid = figure.add_gridspec(rows, columns)
        places = [grid[i // columns, i % columns] for i in range(count)]
        if columns > 1 and count % columns == 1:
            places[-1] = grid[rows - 1, :]
        return figure, [figure.add_subplot(place) for place in places]


class Axis(NamedTuple):
    """Bins of x."""

    edges: np.ndarray  # [bins + 1]
    centres: np.ndarray  # [bins], where a bin's mean is drawn


def linear_axis(low: float, high: float, bins: int) -> Axis:
    edges = np.linspace(low, high, bins + 1)
    return Axis(edges, (edges[:-1] + edges[1:]) / 2)


def decade_axis(low: int, high: int, per_decade: int) -> Axis:
    """From 10^low to 10^high, in equal steps of the logarithm."""
    edges = np.logspace(low, high, (high - low) * per_decade + 1)
    return Axis(edges, np.sqrt(edges[:-1] * edges[1:]))


POINTS = 2000
"""Points of a series that are drawn, at most."""


class Series:
    """y against x: exact statistics per bin of x, and every so-many-th point.

    What lies outside the axis goes to its first or last bin; labels are columns of the CSV, and
    `expected`, about how many points will come, decides which are kept for drawing.
    """

    def __init__(self, labels: dict[str, str], axis: Axis, expected: int) -> None:
        self.labels, self.axis = labels, axis
        self.every = max(1, -(-expected // POINTS))
        bins = len(axis.centres)
        self.count, self.below_zero, self.above_one = np.zeros((3, bins), dtype=np.int64)
        self.total = np.zeros(bins)
        self.least = np.full(bins, np.inf)
        self.most = np.full(bins, -np.inf)
        self.undefined = 0
        self.points: list[tuple[np.ndarray, np.ndarray]] = []
        self._seen = 0

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Take points in; those whose y is NaN are only counted."""
        defined = ~np.isnan(y)
        self.undefined += int(len(y) - defined.sum())
        x, y = x[defined], y[defined]
        bins = len(self.count)
        at = np.clip(np.searchsorted(self.axis.edges, x, side="right") - 1, 0, bins - 1)
        self.count += np.bincount(at, minlength=bins)
        self.below_zero += np.bincount(at[y < 0], minlength=bins)
        self.above_one += np.bincount(at[y > 1], minlength=bins)
        self.total += np.bincount(at, weights=y, minlength=bins)
        np.minimum.at(self.least, at, y)
        np.maximum.at(self.most, at, y)
        first = -self._seen % self.every
        # Copies: a view would keep the whole chunk.
        self.points.append((x[first :: self.every].copy(), y[first :: self.every].copy()))
        self._seen += len(y)

    @property
    def tokens(self) -> int:
        return int(self.count.sum())

    @property
    def reversed(self) -> float:
        """Share of negative values; NaN without any value."""
        return self.share(self.below_zero)

    @property
    def mean(self) -> float:
        return self.share(self.total)

    @property
    def low(self) -> float:
        return float(self.least.min()) if self.tokens else float("nan")

    @property
    def high(self) -> float:
        return float(self.most.max()) if self.tokens else float("nan")

    def share(self, part: np.ndarray) -> float:
        return float(part.sum() / self.tokens) if self.tokens else float("nan")

    def sample(self) -> tuple[np.ndarray, np.ndarray]:
        """The points to draw."""
        xs, ys = zip(*self.points, strict=True) if self.points else ((), ())
        return np.concatenate([np.empty(0), *xs]), np.concatenate([np.empty(0), *ys])

    def by_bin(self, part: np.ndarray) -> np.ndarray:
        """Its share in each bin; NaN where that is empty, so that no line crosses what is not."""
        with np.errstate(invalid="ignore"):
            return part / self.count

    def rows(self) -> list[dict[str, Any]]:
        """One row per bin that is not empty, for the CSV."""
        return [
            {
                **self.labels,
                "from": self.axis.edges[i],
                "to": self.axis.edges[i + 1],
                "tokens": int(self.count[i]),
                "mean": self.total[i] / self.count[i],
                "min": self.least[i],
                "max": self.most[i],
                "below_zero": int(self.below_zero[i]),
                "above_one": int(self.above_one[i]),
            }
            for i in np.flatnonzero(self.count)
        ]


def draw_series(axes: Axes, series: Series, label: str, style: Look) -> None:
    """Its points, and over them the means of its bins."""
    x, y = series.sample()
    x = np.clip(x, series.axis.edges[0], series.axis.edges[-1])
    faint = float(np.clip(6 / np.sqrt(len(x) + 1), 0.15, 0.6))
    axes.scatter(x, y, s=4, color=style.color, alpha=faint, linewidths=0, rasterized=True)
    draw_bins(axes, series.axis, series.by_bin(series.total), f"{label} ({series.tokens:,})", style)


def draw_bins(axes: Axes, axis: Axis, y: np.ndarray, label: str, style: Look) -> None:
    """One value per bin."""
    axes.plot(axis.centres, y, **style.marked, markersize=3.5, linewidth=1.3, label=label)


def legend(axes: Axes, **options: Any) -> bool:
    """A legend, if there is something to tell apart; whether there is."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, fontsize=7, framealpha=0.9, **options)
    return bool(handles)


def close_panel(
    axes: Axes, *, empty: str = "no such tokens in the trace", loc: str = "best"
) -> None:
    """The legend of what was drawn, or why nothing was."""
    if not legend(axes, loc=loc):
        axes.text(0.5, 0.5, empty, transform=axes.transAxes, ha="center", va="center", color="0.4")


def plain(text: str, limit: int = 48) -> str:
    """A name from data, so that it is drawn and not taken for a formula, nor for one to hide."""
    text = one_line(text, limit).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # which legends leave out


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as a PNG or PDF that depends on nothing but what is drawn."""
    stream = BytesIO()
    stamps = ("Software",) if kind == "png" else ("CreationDate", "Creator", "Producer")
    with matplotlib.rc_context(RC):
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine(None)  # else every file is laid out and drawn twice
        figure.savefig(stream, format=kind, metadata=dict.fromkeys(stamps))
    return stream.getvalue()


def letter(axes: Sequence[Axes], titles: Sequence[str]) -> None:
    """(a), (b), ... before the panels' titles."""
    for character, one, title in zip("abcdefgh", axes, titles, strict=False):
        one.set_title(f"({character}) {title}", loc="left", fontsize=9)
