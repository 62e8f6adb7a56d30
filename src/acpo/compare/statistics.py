"""What may be said about rows from a handful of seeds each.

The seed is the unit of chance: one number per row and seed. Rows are compared seed by seed, since
runs of one seed share prompts, rollout randomness and evaluation problems.
"""

import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acpo.intervals import LEVEL, mean_and_half_width, student_probability, student_quantile


class SeedEstimate(NamedTuple):
    """A mean over seeds with an interval; no interval from one seed."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    def within(self, least: float, most: float) -> "SeedEstimate":
        """The interval cut to what is possible, which costs it no coverage."""
        if self.low is None or self.high is None:
            return self
        return self._replace(low=max(self.low, least), high=min(self.high, most))


def mean_over_seeds(values: Sequence[float]) -> SeedEstimate:
    """The mean with Student's interval; of equal values, an interval of width 0."""
    count = len(values)
    mean, half = mean_and_half_width(values)
    if count < 2:
        return SeedEstimate(mean, None, None, count)
    return SeedEstimate(mean, mean - half, mean + half, count)


def p_value(differences: Sequence[float]) -> float:
    """Student's two-sided p of a mean of 0; 1 where the spread says nothing of chance."""
    estimate = mean_over_seeds(differences)
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return 1.0
    freedom = len(differences) - 1
    half = (estimate.high - estimate.low) / 2
    t = abs(estimate.value) / half * student_quantile(freedom, LEVEL)
    return 1 - student_probability(t, freedom)


def holm(p_values: Mapping[str, float], family: int) -> dict[str, float]:
    """Holm's adjustment: rejecting below 5% errs in 5% of families at most.

    Of the `family` of comparisons that are planned, some may be still to come.
    """
    adjusted: dict[str, float] = {}
    highest = 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min(1.0, (family - place) * p_values[name]))
        adjusted[name] = highest
    return adjusted


def signed_rank_p(differences: Sequence[float]) -> float:
    """Wilcoxon's exact two-sided p; zeros are left out, equal sizes share their mean rank."""
    sizes = sorted(abs(value) for value in differences if value)
    twice = {size: 2 * sizes.index(size) + sizes.count(size) + 1 for size in sizes}
    sums = {0: 1}  # of twice the ranks with a positive sign, and in how many ways
    for size in sizes:
        after = dict(sums)
        for total, ways in sums.items():
            after[total + twice[size]] = after.get(total + twice[size], 0) + ways
        sums = after
    centre = sum(twice[size] for size in sizes) / 2
    found = abs(sum(twice[abs(value)] for value in differences if value > 0) - centre)
    extreme = sum(ways for total, ways in sums.items() if abs(total - centre) >= found)
    return extreme / 2 ** len(sizes)


def effect_size(differences: Sequence[float]) -> float | None:
    """Hedges' g of paired differences: their mean in standard deviations, corrected for few."""
    count = len(differences)
    if count < 3 or not mean_and_half_width(differences)[1]:
        return None
    spread = statistics.stdev(differences)
    return statistics.fmean(differences) / spread * (1 - 3 / (4 * (count - 1) - 1))


def bootstrap(differences: Sequence[Sequence[float]], *, draws: int = 4000) -> SeedEstimate:
    """Percentile interval of the mean of [seeds, problems], both drawn anew with replacement."""
    table = np.asarray(differences)
    seeds, problems = table.shape
    of_seeds, of_problems = _times_drawn(seeds, problems, draws)
    means = ((of_seeds @ table) * of_problems).sum(1) / (seeds * problems)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return SeedEstimate(float(table.mean()), float(low), float(high), seeds)


@functools.lru_cache(maxsize=2)
def _times_drawn(seeds: int, problems: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each seed, [draws, seeds], and each problem, [draws, problems], is drawn."""
    rng = np.random.default_rng(0)
    of_seeds = rng.multinomial(seeds, [1 / seeds] * seeds, size=draws)
    return of_seeds, rng.multinomial(problems, [1 / problems] * problems, size=draws)


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest; equal values share a rank."""
    return {
        name: 1 + sum(other > value for other in values.values()) for name, value in values.items()
    }
