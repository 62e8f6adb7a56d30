"""What may be said about rows from a handful of seeds each.

The seed is the unit of chance: one number per row and seed. Rows are compared seed by seed, since
runs of one seed share prompts, rollout randomness and evaluation problems.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.95
NO_WIDTH = 1e-9


class Estimate(NamedTuple):
    """A mean over seeds with an interval; no interval from one seed."""

    value: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0.

        An interval of no width does not: accuracies come in steps, and that two seeds fell on the
        same one is no measure of chance.
        """
        if self.low is None or self.high is None:
            return False
        return self.low * self.high > 0 and self.high - self.low > NO_WIDTH

    def within(self, least: float, most: float) -> "Estimate":
        """The interval cut to what is possible, which costs it no coverage."""
        if self.low is None or self.high is None:
            return self
        return self._replace(low=max(self.low, least), high=min(self.high, most))


def mean_over_seeds(values: Sequence[float], *, level: float = LEVEL) -> Estimate:
    """The mean with Student's interval; of equal values, an interval of width 0."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, None, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = student_quantile(count - 1, level) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half, count)


def paired_difference(
    ours: Mapping[int, float], theirs: Mapping[int, float], *, level: float = LEVEL
) -> Estimate | None:
    """Mean of ours minus theirs over the seeds both have; None when there are none."""
    shared = [seed for seed in ours if seed in theirs]
    if not shared:
        return None
    return mean_over_seeds([ours[seed] - theirs[seed] for seed in shared], level=level)


def simultaneous_level(comparisons: int) -> float:
    """Bonferroni: the level at which all intervals together hold with 95%."""
    return 1 - (1 - LEVEL) / max(1, comparisons)


def ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest; equal values share a rank."""
    return {
        name: 1 + sum(other > value for other in values.values()) for name, value in values.items()
    }


@functools.lru_cache(maxsize=4096)
def student_quantile(freedom: int, level: float = LEVEL) -> float:
    """t such that P(|T| < t) = level, by bisection."""
    if freedom < 1 or not 0 < level < 1:
        raise ValueError(f"freedom={freedom}, level={level}")
    low, high = 0.0, 1.0
    while central_probability(high, freedom) < level:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if central_probability(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return high


def central_probability(t: float, freedom: int) -> float:
    """P(|T| < t), by the finite series for whole degrees (Abramowitz & Stegun 26.7.3, 26.7.4)."""
    theta = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(theta)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for step in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (step - 1) / step
        total += term
    if odd:
        return 2 / math.pi * (theta + math.sin(theta) * total)
    return math.sin(theta) * total
