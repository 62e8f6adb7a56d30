"""Statistics per bin and a few points to draw, collected chunk by chunk."""

from typing import Any, NamedTuple

import numpy as np


class Axis(NamedTuple):
    """Bins of x.

    Attributes:
        edges: `[bins + 1]`.
        centres: `[bins]`, where a bin's mean is drawn.
    """

    edges: np.ndarray
    centres: np.ndarray


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

    Args:
        labels: what distinguishes the series; columns of the CSV.
        axis: bins of x. What lies outside goes to the first or last one.
        expected: how many points will come, about; decides which are kept for drawing.
    """

    def __init__(self, labels: dict[str, str], axis: Axis, expected: int) -> None:
        self.labels, self.axis = labels, axis
        self.every = max(1, -(-expected // POINTS))
        bins = len(axis.centres)
        self.count = np.zeros(bins, dtype=np.int64)
        self.below_zero = np.zeros(bins, dtype=np.int64)
        self.above_one = np.zeros(bins, dtype=np.int64)
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
        return float(self.total.sum() / self.tokens) if self.tokens else float("nan")

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

    def means(self) -> np.ndarray:
        """Mean of y in each bin; NaN where it is empty, so that no line crosses what is not."""
        with np.errstate(invalid="ignore"):
            return self.total / self.count

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
